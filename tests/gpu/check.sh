#!/bin/sh
# check.sh DIR [--first|--report|--plan] - everything that needs a GPU, in at most eight minutes: DIR/report.json, DIR/report.md.
#
# Runs from a folder that pack.sh made (bin/ lib/ models/ data/ beside this file), or with GPU_BIN naming the programs
# of a build tree. Needs only the driver: no internet, nothing to install. Each part has its own time limit, so that one
# that fails or hangs does not stop the others. Parts of kind `right` come before figures; exit code 0 only if they pass.
# --first: the first two minutes on a new machine. --report: writes the report again from DIR/parts, of a run that was killed.
# --plan: runs nothing, prints the seconds planned for each part, and fails if they are more than the budget.
# HEARTH_LIBCUDA: another driver, for example the emulated one, which gives no figures. GPU_PATIENCE: factor for all time
# limits. GPU_ARCHIVE: a file that has all of DIR, as tar and gzip make it, renewed after each part: for a machine that
# gives few files back. GPU_TOOLS: a folder of nvidia-smi, dmesg, compute-sanitizer, ncu, before those of the machine. TMPDIR: holds models of up to 5 GB until the end.
set -u
usage="usage: check.sh DIR [--first|--report|--plan]"
[ $# -ge 1 ] || { echo "$usage" >&2; exit 2; }
out=$1
first=""
again=""
plan=""
case "${2:-}" in
--first) first=1 ;;
--report) again=1 ;;
--plan) plan=1 ;;
"") ;;
*) echo "$usage" >&2; exit 2 ;;
esac
here=$(cd "$(dirname "$0")" && pwd)
bin=${GPU_BIN:-$here/bin}
[ -n "$plan" ] || [ -x "$bin/gpu_bench" ] || { echo "check.sh: $bin has no programs; see README.md" >&2; exit 2; }
made=$(mktemp -d) # models
trap 'rm -rf "$made"' EXIT
[ -z "$plan" ] || out=$made/plan
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 2
work=$out/parts # the output of each part, kept there as the part ends

# In a container the driver may be outside the loader's search path.
libraries=${LD_LIBRARY_PATH:-}
if [ -z "${HEARTH_LIBCUDA:-}" ] && ! { /sbin/ldconfig -p || ldconfig -p; } 2>/dev/null | grep -q 'libcuda\.so\.1 '; then
    for place in ${GPU_DRIVER_PLACES:-/usr/local/nvidia/lib64 /usr/local/nvidia/lib /usr/lib64/nvidia /usr/lib/wsl/lib}; do
        [ ! -e "$place/libcuda.so.1" ] || libraries=${libraries:+$libraries:}$place
    done
fi

# The environment of this folder's programs, and of the vendor's tools that run them.
path="$here/lib${libraries:+:$libraries}"
[ -d "$here/lib" ] || path=$libraries
own() {
    env ${path:+"LD_LIBRARY_PATH=$path"} "$@"
}

report() {
    own "$bin/gpu_report" "$work" "$out"
    reported=$?
    if [ -n "${GPU_ARCHIVE:-}" ] && [ -z "$plan" ]; then
        tar -czf "$GPU_ARCHIVE.new" -C "$out/.." "${out##*/}" && mv "$GPU_ARCHIVE.new" "$GPU_ARCHIVE"
    fi
    return $reported
}

if [ -n "$again" ]; then
    [ -e "$work/parts" ] || { echo "check.sh: $work has no parts" >&2; exit 2; }
    report
    exit
fi
rm -rf "$work"
mkdir "$work" || exit 2
# shellcheck source=/dev/null
. "$here/check_tools.sh"
child=""
smi_hangs="" # nvidia-smi did not answer, and is asked nothing more
stop() {
    trap '' INT TERM HUP
    if [ -n "$child" ]; then # it prints what it has measured, if it can
        kill -s TERM -- "-$child" 2>/dev/null || kill -TERM "$child" 2>/dev/null
        wait_for_child 2
    fi
    report # before the device is asked: it may not answer
    health after
    report
    exit 130
}
trap stop INT TERM HUP
export CUDA_CACHE_PATH="$made/cache" # kernels are compiled once for all parts
mkdir "$CUDA_CACHE_PATH"
start=$(date +%s)
patience=${GPU_PATIENCE:-1}
budget=$((${GPU_BUDGET_S:-470} * patience))
shares=0 # seconds that the parts so far were planned to take
: >"$work/parts"

seconds_left() {
    echo $((start + budget - $(date +%s)))
}

# note NAME KIND RESULT SECONDS: adds a part that ended to the report; KIND is `right` (must pass) or `figure`.
note() {
    rm -f "$work/running"
    echo "$1|$2|$3|$4" >>"$work/parts"
    printf '%-24s %-10s %s s\n' "$1" "$3" "$4"
    report >/dev/null
}

# Waits for $child for at most $1 seconds, and sets rc: 124 if it still runs then. A process that hangs in the driver
# survives SIGKILL, and timeout(1) would wait for it.
wait_for_child() {
    until=$(($(date +%s) + $1))
    while kill -0 "$child" 2>/dev/null && [ "$(date +%s)" -le "$until" ]; do
        sleep 0.1
    done
    if kill -0 "$child" 2>/dev/null; then
        kill -s KILL -- "-$child" 2>/dev/null || kill -KILL "$child"
        rc=124
    else
        wait "$child"
        rc=$?
    fi
    child=""
}

# bounded SECONDS COMMAND...: runs a command that asks the driver, like a part: if it hangs there it is left behind. Its
# output goes to a file, never to a pipe, which it would hold open.
bounded() {
    bounded_s=$1
    shift
    env timeout -k 2 "$bounded_s" "$@" &
    child=$!
    wait_for_child $((bounded_s + 4))
    return $rc
}

# clock_after NAME PROGRAM: the clock of an SM behind a program that does not measure it, as $work/NAME.clock.json.
clock_share=2
clock_after() {
    case "$2" in */hearthd | */gpu_serve) ;; *) return ;; esac
    env ${path:+"LD_LIBRARY_PATH=$path"} timeout -k 2 $((5 * patience)) "$bin/gpu_bench" clock >"$work/$1.clock.json" 2>/dev/null &
    child=$!
    saved=$rc
    wait_for_child $((5 * patience + 4))
    rc=$saved
}

# part NAME KIND SHARE COMMAND...: its stdout is its JSON, its stderr is kept for the report. SHARE is what it should
# take, in seconds; it is stopped at twice that, or when the budget of the whole check is used.
part() {
    name=$1 kind=$2 limit=$(($3 * 2 * patience))
    shares=$((shares + $3))
    case "${4:-}" in */hearthd | */gpu_serve) shares=$((shares + clock_share)) ;; esac
    if [ -n "$plan" ]; then
        printf '%-28s %-7s %4s s\n' "$name" "$kind" "$3"
        return 0
    fi
    shift 3
    left=$(seconds_left)
    if [ "$left" -lt "$((limit / 8 + 2))" ]; then
        echo "not enough time left: $left s of $budget s" >"$work/$name.err"
        result=left-out
        note "$name" "$kind" "$result" 0
        return 1
    fi
    [ "$left" -ge "$limit" ] || limit=$left
    begin=$(date +%s)
    echo "$name|$kind" >"$work/running"
    env ${path:+"LD_LIBRARY_PATH=$path"} timeout -k 2 "$limit" "$@" >"$work/$name.json" 2>"$work/$name.err" &
    child=$! # timeout, the leader of its process group
    wait_for_child $((limit + 4))
    case $rc in
    0) result=ok ;;
    124 | 137) result=timeout ;;
    *) result=failed ;;
    esac
    clock_after "$name" "$1"
    note "$name" "$kind" "$result" $(($(date +%s) - begin))
    [ $rc = 0 ] || sed 's/^/    /' "$work/$name.err" | tail -n 5
    [ $rc = 0 ]
}

# A command that prints watts and MHz, if nvidia-smi is present.
smi=""
[ -n "$plan" ] || smi=$(command -v nvidia-smi || ls /usr/local/nvidia/bin/nvidia-smi 2>/dev/null || true)
GPU_POWER=""
if [ -n "$smi" ] && [ -z "${HEARTH_LIBCUDA:-}" ]; then
    for field in power.draw.instant power.draw; do
        GPU_POWER="$smi -i 0 --query-gpu=$field,clocks.sm --format=csv,noheader,nounits"
        # shellcheck disable=SC2086 # several words
        bounded 10 $GPU_POWER >"$work/watts" 2>/dev/null
        case $rc in 124 | 137) smi_hangs=1 ;; esac
        grep -qE '^[0-9.]+, [0-9]+' "$work/watts" && [ -z "$smi_hangs" ] && break
        GPU_POWER=""
        [ -z "$smi_hangs" ] || break
    done
    [ -n "$smi_hangs" ] ||
        bounded 10 "$smi" --query-gpu=driver_version,name,memory.total,pstate,clocks.max.sm --format=csv,noheader >"$work/smi" 2>/dev/null
fi
export GPU_POWER

data=$here/data
[ -d "$data" ] || data=$here/../data
[ -n "$plan" ] || health before

# The first part has the driver compile every kernel, for the cache that all share: half a minute of one core.
part device figure 30 "$bin/gpu_bench" device
part first right 10 "$bin/gpu_bench" first
part echo figure 6 "$bin/gpu_bench" echo
part selftest right 8 "$bin/gpu_bench" selftest
part decoder right 20 "$bin/gpu_witness" first "$data" 6 || [ "$result" = left-out ] ||
    part nodes right 10 "$bin/gpu_witness" nodes "$data" 6 # arithmetic or waits?
[ -n "$first" ] || part product figure 26 "$bin/gpu_bench" product
[ -n "$first" ] || part attention figure 15 "$bin/gpu_bench" attention
part hop figure 8 "$bin/gpu_bench" hop
part copy figure 8 "$bin/gpu_bench" copy
part stream figure 8 "$bin/gpu_bench" stream

if [ -z "$first" ]; then
    # shellcheck source=/dev/null
    . "$here/check_models.sh"
    check_tools
fi
if [ -n "$plan" ]; then
    echo "planned: $shares s of $budget s"
    [ "$shares" -le "$budget" ]
    exit
fi
health after
echo "planned: $shares s, taken: $(($(date +%s) - start)) s" | tee "$work/ended"
report
