#!/bin/bash
# booted.sh BUILD_DIR - installs as the README says, starts under a real systemd, and does with the units what operators do. That systemd
# is process 1 of namespaces of its own, over a copy-on-write copy of this machine's root: nothing of it stays.
set -eu

# --- inside: makes the new root and becomes systemd ---

devices="null:1:3 zero:1:5 full:1:7 random:1:8 urandom:1:9 tty:5:0"
# These units would reach for the machine instead of its own namespaces.
masked="systemd-sysctl.service systemd-udevd.service systemd-udev-trigger.service systemd-modules-load.service systemd-remount-fs.service
    systemd-networkd.service systemd-resolved.service systemd-timesyncd.service networking.service systemd-firstboot.service
    systemd-binfmt.service systemd-random-seed.service systemd-hwdb-update.service systemd-udevd-kernel.socket
    systemd-udevd-control.socket dev-hugepages.mount dev-mqueue.mount sys-kernel-debug.mount sys-kernel-tracing.mount
    sys-kernel-config.mount sys-fs-fuse-connections.mount proc-sys-fs-binfmt_misc.automount swap.target"

mount_cgroups() {
    if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
        mount -t cgroup2 cgroup2 sys/fs/cgroup
        return
    fi
    mount -t tmpfs tmpfs sys/fs/cgroup
    for controller in systemd devices pids; do
        mkdir sys/fs/cgroup/$controller
        options=$controller
        [ $controller != systemd ] || options=none,name=systemd
        mount -t cgroup -o $options cgroup sys/fs/cgroup/$controller
    done
}

become_systemd() { # WORK BUILD_DIR
    mount -t tmpfs tmpfs "$1"
    mkdir "$1/up" "$1/work" "$1/root"
    mount -t overlay overlay -o "lowerdir=/,upperdir=$1/up,workdir=$1/work" "$1/root"
    DESTDIR=$1/root cmake --install "$2" >/dev/null
    cd "$1/root"
    hostname booted
    ip link set lo up
    mount -t proc proc proc
    mount -o bind proc/sys proc/sys
    mount -o remount,ro,bind proc/sys
    mount -t sysfs -o ro sysfs sys
    mount_cgroups
    mount -t tmpfs tmpfs dev
    for device in $devices; do
        IFS=: read -r name major minor <<<"$device"
        mknod -m 666 "dev/$name" c "$major" "$minor"
    done
    mkdir dev/pts dev/shm
    mount -t devpts -o newinstance devpts dev/pts
    ln -s /proc/self/fd dev/fd
    ln -s pts/ptmx dev/ptmx
    mount -t tmpfs tmpfs run
    rm -rf etc/systemd/system/*.wants etc/systemd/system/default.target var/lib/hearth
    for unit in $masked; do ln -sf /dev/null "etc/systemd/system/$unit"; done
    : >etc/fstab
    : >etc/machine-id
    mkdir .old
    pivot_root . .old
    umount -l .old
    exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin container=other chroot . /lib/systemd/systemd --system --unit=basic.target \
        --log-target=null --show-status=0
}

if [ "$1" = --inside ]; then
    become_systemd "$2" "$3"
fi

# --- outside ---

build=$1
skip() {
    echo "SKIP booted $1: $2"
    exit 0
}
[ "$(id -u)" = 0 ] || skip root "only root may make a root file system"
[ -x /lib/systemd/systemd ] && [ -x "$(command -v ip)" ] || skip systemd "systemd and iproute2 are not installed"
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then hierarchies=/sys/fs/cgroup; else hierarchies="/sys/fs/cgroup/systemd /sys/fs/cgroup/devices /sys/fs/cgroup/pids"; fi
group=hearth-booted-$$
work=$(mktemp -d)
init=""
clean() {
    [ -z "$init" ] || kill -KILL "$init" 2>/dev/null || true
    wait || true
    for hierarchy in $hierarchies; do
        [ ! -d "$hierarchy/$group" ] || find "$hierarchy/$group" -depth -type d -exec rmdir {} \; || true
    done
    rm -rf "$work"
}
trap clean EXIT
for hierarchy in $hierarchies; do
    mkdir "$hierarchy/$group" 2>/dev/null || skip namespaces "no cgroup may be made in $hierarchy"
done
unshare --mount --pid --fork --net --uts --ipc --cgroup true 2>/dev/null || skip namespaces "none may be made"
(
    for hierarchy in $hierarchies; do echo $BASHPID >"$hierarchy/$group/cgroup.procs"; done
    exec setpriv --pdeathsig KILL unshare --mount --propagation private --pid --fork --kill-child --net --uts --ipc --cgroup "$0" --inside "$work" "$build"
) >"$work.log" 2>&1 &
outer=$!

# Waits until a command says yes; fails when that systemd is gone.
until_true() {
    until "$@"; do
        kill -0 $outer 2>/dev/null || { cat "$work.log"; echo "systemd has gone"; exit 1; }
        sleep 0.1
    done
}
find_init() { init=$(pgrep -P $outer -x systemd); }
until_true find_init
enter() { nsenter -t "$init" -m -p -u -i -n -C -r -w env -i PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"; }
is_up() { [ "$(enter systemctl is-system-running 2>/dev/null)" = running ]; }
until_true is_up

url=http://127.0.0.1:8080
passed=0
ok() {
    passed=$((passed + 1))
    echo "ok - $1"
}
fail() {
    echo "not ok - $1: $2"
    enter journalctl -u hearthd -n 30 --no-pager -o cat || true
    exit 1
}
same() { [ "$2" = "$3" ] || fail "$1" "\"$2\", not \"$3\""; }
show() { enter systemctl show hearthd.service -P "$1"; }
health() { enter curl -s $url/health; }
is_ready() { [ "$(health)" = '{"status":"ready"}' ]; }
generate() { enter curl -sN --max-time 300 -d "$1" $url/generate; }

set_watchdog() {
    enter mkdir -p /run/systemd/system/hearthd.service.d
    enter sh -c "printf '[Service]\nWatchdogSec=$1\n' >/run/systemd/system/hearthd.service.d/watchdog.conf"
    enter systemctl daemon-reload
}

enter systemd-sysusers
set_watchdog 600 # for the unit's 30 s a machine that runs other things may be too slow
enter systemctl enable --now hearthd.socket hearthd.service 2>/dev/null
same "start returns when a token can be made" "$(health)" '{"status":"ready"}'
ok "installed, enabled and started: systemctl returns when a token can be made"

same "who may enter its directories" "$(enter stat -c '%a %U' /var/lib/hearth /var/lib/hearth/prefix /var/cache/hearth /run/hearth | tr '\n' ' ')" \
    "700 hearth 700 hearth 700 hearth 750 hearth "
same "the largest core" "$(enter sed -nE 's/^Max core file size *([0-9]+) .*/\1/p' "/proc/$(show MainPID)/limits")" 0
ok "prefix cache and state are the daemon's alone, and no core is written"

enter systemctl reload hearthd
is_ready || fail reload "$(health)"
ok "reload leaves it serving"

prompt="$(printf 'The little dog ran to the park and saw a big red ball. %.0s' {1..20})"
ask="{\"prompt\":\"$prompt\",\"temperature\":0,\"max_tokens\":1}"
generate "$ask" >/dev/null
on_disk() { [ -n "$(enter find /var/lib/hearth/prefix -name '*.kv')" ]; }
until_true on_disk
begin_stream() {
    generate '{"prompt":"Once","max_tokens":900,"ignore_eos":true,"stream":true}' >"$work.stream" &
    stream=$!
}
# It may be over before it is seen: then another one.
is_running() {
    kill -0 $stream 2>/dev/null || begin_stream
    generate_line=$(enter curl -s $url/requests) && [[ $generate_line == *'"state":"decode"'* ]]
}
begin_stream
until_true is_running
enter systemctl restart hearthd
wait $stream
same "a stream over a restart" "$(grep -c '"completion_tokens":900' "$work.stream") $(tail -n 2 "$work.stream" | head -n 1)" "1 data: [DONE]"
ok "a stream that runs while the unit is restarted gets all its tokens"
same "the prefix cache" "$(generate "$ask" | grep -o '"cached_tokens":[0-9]*')" '"cached_tokens":256'
ok "the new process finds the pages of the old one"

enter systemctl kill -s KILL hearthd
restarted() { [ "$(show NRestarts)" -ge 1 ] && is_ready; }
until_true restarted
ok "killed, it is started again"

conf=$(enter find /etc/hearth /usr/local/etc/hearth -name hearthd.conf 2>/dev/null | head -n 1)
enter sed -i 's|^#model =.*|model = /srv/none.gguf|' "$conf"
! enter systemctl restart hearthd.service 2>/dev/null || fail "a model that is not there" "it has started"
same "a model that is not there" "$(show ExecMainStatus) $(show NRestarts) $(show ActiveState)" "3 0 failed"
enter sed -i -e 's|^model =.*|#model =|' -e '$ a prot = 1' "$conf"
! enter systemctl restart hearthd.service 2>/dev/null || fail "an unknown key" "it has started"
same "an unknown key" "$(show ExecMainStatus) $(show NRestarts) $(show ActiveState)" "2 0 failed"
enter journalctl -u hearthd -p err -n 1 --no-pager -o cat >"$work.said"
grep -q 'unknown key "prot"; did you mean port?' "$work.said" || fail "its words" "$(cat "$work.said")"
ok "what is misconfigured fails at once, is not tried again, and says why, as an error"

enter sed -i '$ d' "$conf"
enter systemctl reset-failed hearthd.service hearthd.socket
enter systemctl start hearthd.socket hearthd.service
is_ready || fail "the configuration put right" "$(health)"
enter systemctl stop hearthd.socket hearthd.service
same "stop" "$(show ActiveState) $(show ExecMainStatus) $(show Result)" "inactive 0 success"
ok "stopped, it ends with 0"

enter systemctl start hearthd.socket
until_true is_ready
ok "the socket alone starts it when a client connects"

# Several instances share a configuration: what only one can have is given to each of its own.
enter mkdir -p /run/systemd/system/hearthd@.service.d
# A minute is for machines that do nothing else.
enter sh -c "printf '[Unit]\nStartLimitIntervalSec=1h\n' >/run/systemd/system/hearthd@.service.d/limit.conf"
enter systemctl daemon-reload
show1() { enter systemctl show hearthd@1.service -P "$1"; }
! enter systemctl start hearthd@1.service 2>/dev/null || fail "a port that another one has" "it has started"
given_up() { [ "$(show1 ActiveState)" = failed ]; }
until_true given_up
same "a port that another one has" "$(show1 ExecMainStatus) $(show1 NRestarts)" "8 20"
enter sh -c "printf '[Service]\nWatchdogSec=600\nEnvironment=HEARTH_PORT=808%%i\nEnvironment=HEARTH_UNIX_SOCKET=%%t/hearth-%%i/hearth.sock\n' \
    >/run/systemd/system/hearthd@.service.d/own.conf"
enter systemctl daemon-reload
enter systemctl reset-failed hearthd@1.service
enter systemctl start hearthd@1.service
own=$(enter curl -s http://127.0.0.1:8081/health --next -s --unix-socket /run/hearth-1/hearth.sock http://localhost/health)
same "two instances" "$(health) $own" '{"status":"ready"} {"status":"ready"}
{"status":"ready"}'
same "who may enter its directories" "$(enter stat -c '%a %U' /var/lib/hearth/1 /var/lib/hearth/1/prefix /var/cache/hearth /run/hearth-1 | tr '\n' ' ')" \
    "700 hearth 700 hearth 700 hearth 750 hearth "
enter systemctl stop hearthd@1.service
ok "an instance whose port another one has is given up after twenty starts; with one of its own it serves"

set_watchdog 3
enter systemctl restart hearthd
enter systemctl kill -s STOP --kill-who=main hearthd
until_true restarted
ok "a process that is not responding is ended and started again"
echo "$passed passed, systemd $(/lib/systemd/systemd --version | awk 'NR == 1 {print $2}')"
