#!/bin/sh
# units.sh BUILD_DIR - installs into an empty root and lets systemd judge the units there.
set -eu
build=$1
if ! command -v systemd-analyze >/dev/null; then
    echo "SKIP units systemd-analyze: not installed (package systemd)"
    exit 0
fi
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
DESTDIR=$root cmake --install "$build" >/dev/null
service=$(find "$root" -name hearthd.service)
socket=$(find "$root" -name hearthd.socket)

# The targets that units refer to, and what ExecStart names, must exist below the root.
mkdir -p "$root/lib/systemd/system" "$root/bin"
for directory in /lib/systemd/system /usr/lib/systemd/system; do
    [ -d "$directory" ] && cp -n "$directory"/*.target "$root/lib/systemd/system/" 2>/dev/null || true
done
cp -n "$service" "$socket" "$root/lib/systemd/system/"
cp "${service%.service}@.service" "$root/lib/systemd/system/hearthd@0.service"
cp "${socket%.socket}@.socket" "$root/lib/systemd/system/hearthd@0.socket"
# With the addition for several instances that OPERATIONS.md gives.
addition=$(sed -n '/^    \[Service\]$/,/^$/s/^    //p' "$(dirname "$0")/../../../config/OPERATIONS.md")
case $addition in
*HEARTH_TLS_PORT=*HEARTH_PORT=*HEARTH_UNIX_SOCKET=*) ;;
*)
    echo "OPERATIONS.md: no addition to hearthd@.service, but \"$addition\""
    exit 1
    ;;
esac
mkdir "$root/lib/systemd/system/hearthd@0.service.d"
echo "$addition" >"$root/lib/systemd/system/hearthd@0.service.d/own.conf"
printf '#!/bin/sh\n' >"$root/bin/kill"
chmod +x "$root/bin/kill"

status=0
said=$(systemd-analyze --root="$root" verify hearthd.service hearthd.socket hearthd@0.service hearthd@0.socket 2>&1) || status=1
if [ "$status" != 0 ] || [ -n "$said" ]; then
    echo "systemd-analyze verify: $said"
    status=1
fi

# The sandbox's exposure, as systemd counts it: 0 is closed, 10 open.
for unit in hearthd.service hearthd@0.service; do
    exposure=$(systemd-analyze --root="$root" --offline=yes --threshold=17 security "$unit" --no-pager 2>&1) || {
        echo "$exposure" | tail -n 3
        status=1
    }
    for line in LimitCORE=0 StateDirectoryMode=0700 CacheDirectoryMode=0700 RuntimeDirectoryMode=0750 PrivateMounts=yes SystemCallFilter=~@privileged; do
        grep -qx "$line" "$root/lib/systemd/system/$unit" || { echo "$unit lacks $line"; status=1; }
    done
done
# An instance has state and a runtime directory of its own, which the modes above close; the driver's kernels are shared.
for line in StateDirectory=hearth/%i RuntimeDirectory=hearth-%i CacheDirectory=hearth; do
    grep -qx "$line" "$root/lib/systemd/system/hearthd@0.service" || { echo "hearthd@.service lacks $line"; status=1; }
done

# The installed daemon finds its model and accepts its configuration.
binary=$(find "$root" -type f -path "*bin/hearthd")
"$binary" check-config --config "$(find "$root" -name hearthd.conf -path '*etc*')" || status=1
# Two instances have no address in common.
for instance in 0 1; do
    values=$(env $(echo "$addition" | sed -n "s|%i|$instance|g; s|%t|/run|g; s/^Environment=//p") "$binary" --print-config | sed -nE 's/^(port|tls_port|unix_socket) = ([^ ]*).*/\2/p' | tr '\n' ' ')
    [ "$values" = "808$instance /run/hearth-$instance/hearth.sock 844$instance " ] || { echo "instance $instance has $values"; status=1; }
done
if ! "$binary" run --max-tokens 2 --temperature 0 "Once upon a time" >/dev/null 2>"$root/said"; then
    cat "$root/said"
    status=1
fi
for file in "share/hearth/models/*.gguf" "lib/sysusers.d/hearthd.conf" "man8/hearthd.8" "man5/hearthd.conf.5" "LICENSE"; do
    find "$root" -path "*$file" | grep -q . || { echo "not installed: $file"; status=1; }
done

# Completion knows the commands, the flags of the command that stands before, and the words of every flag that takes one of a few.
complete() {
    PATH=$(dirname "$binary"):$PATH bash -c 'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _hearthd; echo "${COMPREPLY[*]}"' \
        "$(find "$root" -path "*completions/hearthd")" "$@" 2>/dev/null
}
[ "$(complete hearthd st)" = stats ] || { echo "completion of st: $(complete hearthd st)"; status=1; }
[ "$(complete hearthd bench --roof)" = --roofline ] || { echo "completion of --roof: $(complete hearthd bench --roof)"; status=1; }
[ "$(complete hearthd --queue-l)" = --queue-limit ] || { echo "completion of --queue-l: $(complete hearthd --queue-l)"; status=1; }
choices=$("$binary" check-config --man | sed -nE '/^\.B [a-z_]+$/{N;s/^\.B ([a-z_]+)\n.*\(([a-z0-9_]+(, [a-z0-9_]+)* or [a-z0-9_]+); default.*/\1 \2/p}')
[ "$(echo "$choices" | wc -l)" -ge 10 ] || { echo "too few keys with choices: $choices"; status=1; }
echo "$choices" >"$root/choices"
while read -r key words; do
    for word in $(echo "$words" | sed 's/,//g; s/ or / /'); do
        flag=--$(echo "$key" | tr _ -)
        complete hearthd "$flag" "" | tr ' ' '\n' | grep -qx "$word" || { echo "completion of $flag does not know $word"; status=1; }
    done
done <"$root/choices"
exit $status
