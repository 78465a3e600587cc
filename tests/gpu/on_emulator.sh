#!/bin/sh
# on_emulator.sh DIR [--first] - check.sh on the emulated driver (HEARTH_LIBCUDA): every part must be ok, there must be no
# figure of speed, and a device that fails must be told from one that works. The programs are those of GPU_BIN, or with
# GPU_PACK, a build tree, those that pack.sh takes out of it, from the folder that would go to another machine.
set -u
here=$(cd "$(dirname "$0")" && pwd)
out=$1
export GPU_PATIENCE=10 # the machine may be busy with other tests
rm -rf "$out"
fail() {
    echo "FAILED  $1"
    cat "$out/report.md"
    exit 1
}
if [ -n "${GPU_PACK:-}" ]; then
    folder=$out-packed
    log=$("$here/pack.sh" "$GPU_PACK" "$folder" 2>&1) || { echo "FAILED  pack.sh: $log"; exit 1; }
    # Nothing but the C library is the machine's own. (A library that is missing has no path.)
    foreign=$(LD_LIBRARY_PATH="$folder/lib" ldd "$folder"/bin/* | awk '$2 == "=>" && index($3, "'"$folder"'/lib/") != 1 { print $1 }' |
        grep -vE '^(libc|libm|libdl|libpthread|librt)\.so\.' | sort -u)
    [ -z "$foreign" ] || { echo "FAILED  pack.sh leaves behind: $foreign"; exit 1; }
    here=$folder
    unset GPU_BIN
fi
"$here/check.sh" "$@" || fail "exit code $?"
grep -q '^# Hearth on SIMT emulator' "$out/report.md" || fail "the report does not say what it is of"
grep -E '"result": "(failed|timeout|left-out)"' "$out/report.json" && fail "not every part is ok"
figures='"([a-z0-9_]*(_us|gbps|_ns)|us|ns|watts|sm_mhz|tokens_per_s|[a-z_]*(median|min|max|after_park)_ms|ready_s)": [-0-9]'
grep -E "$figures" "$out/report.json" && fail "a figure of the emulator's speed"

[ "${2:-}" = --first ] || exit 0
# The third launch does not come about: `first` must fail, the parts after it must have run, and the code must tell.
if SIMT_FAULT=launch:3 "$here/check.sh" "$out/broken" --first >"$out/log" 2>&1; then
    cat "$out/log"
    fail "a kernel that cannot be launched passes"
fi
grep -qE '^first +failed' "$out/log" || fail "the part that fails is not named"
grep -qE '^echo ' "$out/log" || fail "a part that fails takes the others along"
grep -q 'cuLaunch' "$out/broken/report.md" || fail "the report does not say why"
# The driver where only check.sh looks. Not where there is a real one: that would be found first.
if { /sbin/ldconfig -p || ldconfig -p; } 2>/dev/null | grep -q 'libcuda\.so\.1 '; then
    exit 0
fi
mkdir -p "$out/driver"
ln -s "$HEARTH_LIBCUDA" "$out/driver/libcuda.so.1"
(
    unset HEARTH_LIBCUDA
    GPU_DRIVER_PLACES="$out/nowhere $out/driver" GPU_BUDGET_S=60 "$here/check.sh" "$out/placed" --first >"$out/log" 2>&1
)
grep -qE '^device +ok' "$out/log" || fail "a driver that lies elsewhere is not found: $(cat "$out/log")"
