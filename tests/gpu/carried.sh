#!/bin/sh
# carried.sh DIR BUILD - the visit to another machine, rehearsed: the archive that pack.sh makes of BUILD is unpacked in a
# root that has nothing but the C library, sh and the tools of every Linux; check.sh --first runs there on the emulated
# driver (HEARTH_LIBCUDA), is killed, and what comes back in GPU_ARCHIVE is a report of the parts that had ended; then it
# runs to its end. SKIP if namespaces cannot be made.
set -u
if [ "$1" = --inside ]; then # in the root; $2: a part after which the check is killed, or nothing
    out=$([ -n "$2" ] && echo /tmp/killed || echo /tmp/report)
    tar -xzf /tmp/gpu-check.tgz -C /tmp
    LD_BIND_NOW=1 LD_LIBRARY_PATH=/tmp/gpu-check/lib /tmp/gpu-check/bin/hearthd --version || exit
    GPU_ARCHIVE=/out/${out##*/}.tgz /tmp/gpu-check/check.sh "$out" --first >/tmp/log 2>&1 &
    check=$!
    if [ -n "$2" ]; then
        until grep -q "^$2 " /tmp/log; do
            kill -0 $check 2>/dev/null || break
            sleep 0.1
        done
        kill -KILL $check
    fi
    wait $check
    rc=$?
    cat /tmp/log
    exit $rc
fi
here=$(cd "$(dirname "$0")" && pwd)
work=$1
rm -rf "$work"
mkdir -p "$work" && work=$(cd "$work" && pwd) || exit 2
fail() {
    echo "FAILED  $1"
    cat "$work/log"
    exit 1
}
user=--map-root-user
[ "$(id -u)" != 0 ] || user=
# shellcheck disable=SC2086 # no word is one option less
unshare $user --mount --pid --fork chroot / true 2>/dev/null || { echo "SKIP carried namespaces: none may be made"; exit 0; }

"$here/pack.sh" "$2" "$work/gpu-check" >"$work/log" 2>&1 || fail "pack.sh"
root=$work/root
mkdir -p "$root/tmp" "$root/out" "$root/proc" "$root/dev" "$root/bin" "$root/driver"
mv "$work/gpu-check.tgz" "$root/tmp/"
# keep FILE...: copies files, and the libraries that the loader finds for them, to their places below the root.
keep() {
    for file in "$@"; do
        for needed in "$file" $(ldd "$file" 2>/dev/null | sed -n 's/^[^/]*\(\/[^ ]*\) (.*/\1/p'); do
            mkdir -p "$root${needed%/*}" && cp -L "$needed" "$root$needed"
        done
    done
}
for tool in sh awk grep sed tar gzip ldd basename cat cp cut date df dirname env head ls mkdir mktemp mv rm sleep sort tail tee timeout wc; do
    place=$(command -v "$tool") || fail "$tool is not installed"
    keep "$place"
    [ -e "$root/bin/$tool" ] || ln -s "$place" "$root/bin/$tool"
done
keep "$HEARTH_LIBCUDA"
cp "$HEARTH_LIBCUDA" "$root/driver/" # by its name gpu_serve knows that it is no device
cp "$here/carried.sh" "$root/bin/"
[ ! -e "$root$(ldd "$2/bin/hearthd" | sed -n 's/.*=> \(\/.*libmicrohttpd[^ ]*\) .*/\1/p')" ] || fail "the root has the daemon's libraries"

# inside [PART]: in the root, with nothing of this shell's environment.
inside() {
    # shellcheck disable=SC2016,SC2086
    env -i PATH=/bin GPU_PATIENCE=10 HEARTH_LIBCUDA="/driver/${HEARTH_LIBCUDA##*/}" unshare $user --mount --pid --fork --kill-child \
        /bin/sh -c '/bin/mount --rbind /proc "$0/proc" && /bin/mount --rbind /dev "$0/dev" && exec /usr/sbin/chroot "$0" /bin/sh /bin/carried.sh --inside "$1"' \
        "$root" "${1:-}" >"$work/log" 2>&1
}

inside echo && fail "a killed check passes" # the line of a part comes before its report: `first` is in that
mkdir "$work/back"
tar -xzf "$root/out/killed.tgz" -C "$work/back" || fail "the archive of the killed check is not whole"
grep -q '"part": "first"' "$work/back/killed/report.json" || fail "the archive lacks the part that had ended"
grep -q 'NOT ENDED' "$work/back/killed/report.md" || fail "its report does not say that the check was stopped"
inside || fail "check.sh --first in the root: exit code $?"
tar -xzf "$root/out/report.tgz" -C "$work/back" || fail "the archive is not whole"
grep -q '^# Hearth on SIMT emulator' "$work/back/report/report.md" || fail "the report does not name the device"
for part in device first echo selftest decoder hop copy stream; do
    grep -q "\"part\": \"$part\"" "$work/back/report/report.json" || fail "the report lacks $part"
done
[ "$(find "$root/out" -type f | wc -l)" = 2 ] || fail "more than the archives came back"
rm -rf "$root" "$work/gpu-check"
