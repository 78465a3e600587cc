#!/bin/sh
# on_emulator.sh DIR [--first] - runs check.sh on the emulated driver (HEARTH_LIBCUDA): every part must be ok, the report
# must have no figure of speed, and a failing device must be reported. The programs are those of GPU_BIN; with GPU_PACK, a
# build tree, they come from the folder that pack.sh makes for another machine.
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
    # Only the C library may be this machine's. (A missing library has no path.)
    foreign=$(LD_LIBRARY_PATH="$folder/lib" ldd "$folder"/bin/* | awk '$2 == "=>" && index($3, "'"$folder"'/lib/") != 1 { print $1 }' |
        grep -vE '^(libc|libm|libdl|libpthread|librt)\.so\.' | sort -u)
    [ -z "$foreign" ] || { echo "FAILED  pack.sh leaves behind: $foreign"; exit 1; }
    here=$folder
    unset GPU_BIN
fi
# Tools that keep what they were asked, and whose words must come back. The device is throttled, has an ECC error and an
# Xid only when it is looked at again.
export GPU_TOOLS="$out/tools"
mkdir -p "$GPU_TOOLS"
cat >"$GPU_TOOLS/nvidia-smi" <<'END'
#!/bin/sh
[ "$*" = -q ] || exit 1
cap="Not Active" errors=0
[ ! -e "${0%/*}/again" ] || cap=Active errors=1
cat <<TEXT
GPU 00000000:01:00.0
    Product Name                          : Test Device
    Clocks Event Reasons
        Idle                              : Active
        SW Power Cap                      : $cap
    ECC Errors
        Volatile
            SRAM Correctable              : 0
            DRAM Uncorrectable            : $errors
    Temperature
        GPU Current Temp                  : 41
TEXT
END
cat >"$GPU_TOOLS/dmesg" <<'END'
#!/bin/sh
echo "[1.0] NVRM: Xid (PCI:0000:01:00): 13, an old one"
[ ! -e "${0%/*}/again" ] || echo "[9.0] NVRM: Xid (PCI:0000:01:00): 31, pid=7"
: >"${0%/*}/again"
END
cat >"$GPU_TOOLS/compute-sanitizer" <<'END'
#!/bin/sh
while [ "$1" != --log-file ]; do check="$check $1"; shift; done
echo "=====$check of $*" >"$2"
shift 2
case "$check" in *memcheck*) exec "$@" ;; *) echo '{}' ;; esac
END
sed 's/=====/==PROF==/; s/\*memcheck\*/*/' "$GPU_TOOLS/compute-sanitizer" >"$GPU_TOOLS/ncu"
chmod +x "$GPU_TOOLS"/*
"$here/check.sh" "$@" || fail "exit code $?"
[ -s "$out/smi-before.txt" ] && [ -s "$out/smi-after.txt" ] || fail "nvidia-smi -q was not kept"
health=$(grep -E '^- (before|after): ' "$out/report.md")
expected="- before: not throttled, no ECC errors
- after: throttled: SW Power Cap
- after: ECC Volatile: DRAM Uncorrectable: 1
- after: [9.0] NVRM: Xid (PCI:0000:01:00): 31, pid=7"
[ "$health" = "$expected" ] || fail "the state of the device is not in the report: $health"
grep -q '^# Hearth on SIMT emulator' "$out/report.md" || fail "the report does not name the emulator"
grep -E '"result": "(failed|timeout|left-out)"' "$out/report.json" && fail "a part is not ok"
figures='"([a-z0-9_]*(_us|gbps|_ns)|us|ns|watts|sm_mhz|tokens_per_s|[a-z_]*(median|min|max|after_park)_ms|ready_s)": [-0-9]'
grep -E "$figures" "$out/report.json" && fail "the report has a figure of the emulator's speed"

without=$(sed -n 's/.*"part": "\([^"]*\)".*/\1/p' "$out/report.json" | grep -vE '^(model|sanitizer|ncu)' | while read -r name; do
    grep -q '"before_mhz"' "$out/parts/$name.json" "$out/parts/$name.clock.json" 2>/dev/null || echo "$name"
done)
[ -z "$without" ] || fail "parts without the clock of the SMs: $without"

if [ "${2:-}" != --first ]; then
    grep -q '^bench-tiny-persistent, tg2, 3 blocks:' "$out/report.md" || fail "the report has no step by its blocks"
    [ "$(grep -c '"cat":"work"' "$out/trace-tiny.json")" -gt 100 ] || fail "trace-tiny.json has no ops"
    # On a device every call may wait; the part must end before it is stopped.
    planned=$("$here/check.sh" none --plan | awk '$1 == "calls" { print $3 }')
    waiting=$(sed -n 's/.*"all_wait_s": \([0-9]*\).*/\1/p' "$out/parts/calls.json")
    [ "${waiting:-1000}" -le $((planned * 2)) ] || fail "the calls may wait for ${waiting:-?} s, and are stopped after $((planned * 2))"
    for check in memcheck racecheck synccheck; do
        grep -q "^===== --tool $check --error-exitcode 9 .*gpu_witness tokens" "$out/sanitizer-$check.txt" || fail "no report of $check"
        grep -qE "\"part\": \"sanitizer-$check\"" "$out/report.json" || fail "no part of $check"
    done
    grep -q '^==PROF== --clock-control none .*hearthd bench .*--executor eager' "$out/ncu.txt" || fail "no report of ncu"
    exit 0
fi
# With a failing third launch `first` must fail, the parts after it must run, and the exit code must not be 0.
if SIMT_FAULT=launch:3 "$here/check.sh" "$out/broken" --first >"$out/log" 2>&1; then
    cat "$out/log"
    fail "a kernel that cannot be launched passes"
fi
grep -qE '^first +failed' "$out/log" || fail "the failed part is not named"
grep -qE '^echo ' "$out/log" || fail "a failed part stops the others"
grep -q 'cuLaunch' "$out/broken/report.md" || fail "the report has no reason"
# A decoder that hangs: the process names the block and ends, and another one looks at the nodes.
programs=${GPU_BIN:-$here/bin}
data=$here/data
[ -d "$data" ] || data=$here/../data
SIMT_FAULT=lost:3000 LD_LIBRARY_PATH="$here/lib" "$programs/gpu_witness" first "$data" 6 >"$out/hung.json" 2>"$out/log" && fail "a decoder that hangs passes"
grep -q 'block 1, still there' "$out/log" && grep -q 'If part nodes passes' "$out/log" || { cat "$out/log"; fail "the block that hangs is not named"; }
grep -q misuse "$out/log" && { cat "$out/log"; fail "a device that hangs is used again"; }
# With several executors nothing more runs after one that fails.
for what in "golden $data" "tokens $data/tiny-qwen3-s11-q4_k_m.gguf 1 4 1"; do
    # shellcheck disable=SC2086 # several words
    SIMT_FAULT=lost:3000 LD_LIBRARY_PATH="$here/lib" "$programs/gpu_witness" $what >"$out/hung.json" 2>"$out/log" && fail "$what: a decoder that hangs passes"
    grep -q 'persistent: .*Nothing else was run on this device' "$out/log" || { cat "$out/log"; fail "$what: the executor that hangs is not named"; }
    grep -qE '"(graph|eager)"' "$out/hung.json" && { cat "$out/hung.json"; fail "$what: a device that hangs is used again"; }
done
LD_LIBRARY_PATH="$here/lib" "$programs/gpu_witness" nodes "$data" 6 >"$out/nodes.json" 2>"$out/log" || { cat "$out/log"; fail "node by node something differs"; }
SIMT_FAULT=launch:1 "$here/check.sh" "$out/refused" --first >"$out/log" 2>&1 && fail "a decoder that cannot be launched passes"
grep -qE '^nodes +failed' "$out/log" || { cat "$out/log"; fail "a decoder that fails is not followed by its nodes"; }
# A kernel that dies while its answer is awaited: the driver's words, at once.
SIMT_FAULT=step:2000 LD_LIBRARY_PATH="$here/lib" "$programs/gpu_bench" first >"$out/died.json" 2>"$out/log" && fail "a kernel that dies passes"
grep -q '^gpu_bench first: step [0-9]* got no answer: cuStreamQuery: CUDA_ERROR_ILLEGAL_ADDRESS' "$out/log" || { cat "$out/log"; fail "the driver's words are not there"; }
# The vendor's tools where there are none: their parts are named, not silent.
mkdir -p "$out/none"
# shellcheck disable=SC2016,SC2034 # for the inner shell
named=$(here=$here out=$out/none data=$data bin=$programs GPU_TOOLS=$out/none sh -c 'work=$out plan=""
    . "$here/check_tools.sh"
    note() { printf "%s " "$1=$3"; }
    check_tools')
[ "$named" = "sanitizer-memcheck=left-out sanitizer-racecheck=left-out sanitizer-synccheck=left-out ncu=left-out " ] ||
    fail "tools that are not installed are not named: $named"
grep -q 'ncu is not installed' "$out/none/ncu.err" || fail "the missing ncu has no reason"
# With no time left every part is left out and named, and the check must fail.
if GPU_PATIENCE=1 GPU_BUDGET_S=1 "$here/check.sh" "$out/late" --first >"$out/log" 2>&1; then
    fail "a check without time passes"
fi
[ "$(grep -c 'left-out  *0 s' "$out/log")" = 8 ] || fail "a part is not left out: $(cat "$out/log")"
[ "$(grep -c '"result": "left-out"' "$out/late/report.json")" = 8 ] || fail "the report does not list the parts left out"
# Watts from a program that has only the second field.
mkdir -p "$out/smi"
cat >"$out/smi/nvidia-smi" <<'END'
#!/bin/sh
echo "$*" >>"${0%/*}/asked"
case "$*" in
*power.draw.instant*) echo "[N/A], 1980" ;;
*power.draw,clocks.sm*) echo "101.50, 1980" ;;
*) echo "535.1, Test Device, 1024 MiB, P0, 1980 MHz" ;;
esac
END
chmod +x "$out/smi/nvidia-smi"
LD_LIBRARY_PATH="$here/lib" GPU_POWER="$out/smi/nvidia-smi -i 0 --query-gpu=power.draw,clocks.sm" "${GPU_BIN:-$here/bin}/gpu_bench" idle \
    >"$out/idle.json" 2>&1 || fail "idle: $(cat "$out/idle.json")"
grep -qE '"watts": 101\.5' "$out/idle.json" || fail "watts are not nvidia-smi's: $(cat "$out/idle.json")"
grep -qE '"sm_mhz": 1980' "$out/idle.json" || fail "the clock is not nvidia-smi's: $(cat "$out/idle.json")"
# A driver in a place that only check.sh searches. Skipped if there is a real one: it would be found first.
if { /sbin/ldconfig -p || ldconfig -p; } 2>/dev/null | grep -q 'libcuda\.so\.1 '; then
    exit 0
fi
mkdir -p "$out/driver"
ln -s "$HEARTH_LIBCUDA" "$out/driver/libcuda.so.1"
(
    unset HEARTH_LIBCUDA
    : >"$out/smi/asked"
    PATH=$out/smi:$PATH GPU_DRIVER_PLACES="$out/nowhere $out/driver" GPU_BUDGET_S=60 "$here/check.sh" "$out/placed" --first >"$out/log" 2>&1
)
grep -qE '^device +ok' "$out/log" || fail "the driver in another place is not found: $(cat "$out/log")"
[ "$(grep -cE 'power\.draw(\.instant)?,clocks\.sm' "$out/smi/asked")" = 2 ] || fail "nvidia-smi was not asked for watts: $(cat "$out/smi/asked")"
