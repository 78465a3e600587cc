#!/bin/sh
# check.sh DIR [--first] - everything that needs a GPU, in at most eight minutes: DIR/report.json, DIR/report.md.
#
# Runs from a folder that pack.sh made (bin/ lib/ models/ data/ beside this file), or with GPU_BIN naming the programs
# of a build tree. Needs only the driver: no internet, nothing to install. Each part has its own time limit, so that one
# that fails or hangs does not stop the others. Parts of kind `right` come before figures; exit code 0 only if they pass.
# --first: the first minute on a new machine. HEARTH_LIBCUDA: another driver, for example the emulated one, which gives
# no figures. GPU_PATIENCE: factor for all time limits. TMPDIR: holds models of up to 5 GB until the end.
set -u
usage="usage: check.sh DIR [--first]"
[ $# -ge 1 ] || { echo "$usage" >&2; exit 2; }
out=$1
first=""
case "${2:-}" in
--first) first=1 ;;
"") ;;
*) echo "$usage" >&2; exit 2 ;;
esac
here=$(cd "$(dirname "$0")" && pwd)
bin=${GPU_BIN:-$here/bin}
[ -x "$bin/gpu_bench" ] || { echo "check.sh: $bin has no programs; see README.md" >&2; exit 2; }
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 2
work=$(mktemp -d)
made=$(mktemp -d) # models
trap 'rm -rf "$work" "$made"' EXIT
trap 'exit 130' INT TERM
export CUDA_CACHE_PATH="$made/cache" # kernels are compiled once for all parts
mkdir "$CUDA_CACHE_PATH"
start=$(date +%s)
patience=${GPU_PATIENCE:-1}
budget=$((${GPU_BUDGET_S:-470} * patience))
: >"$work/parts"

# In a container the driver may be outside the loader's search path.
libraries=${LD_LIBRARY_PATH:-}
if [ -z "${HEARTH_LIBCUDA:-}" ] && ! { /sbin/ldconfig -p || ldconfig -p; } 2>/dev/null | grep -q 'libcuda\.so\.1 '; then
    for place in ${GPU_DRIVER_PLACES:-/usr/local/nvidia/lib64 /usr/local/nvidia/lib /usr/lib64/nvidia /usr/lib/wsl/lib}; do
        [ ! -e "$place/libcuda.so.1" ] || libraries=${libraries:+$libraries:}$place
    done
fi

# Runs one of this folder's programs with its libraries; other programs do not get them.
own() {
    if [ -d "$here/lib" ]; then
        LD_LIBRARY_PATH="$here/lib${libraries:+:$libraries}" "$@"
    elif [ -n "$libraries" ]; then
        LD_LIBRARY_PATH="$libraries" "$@"
    else
        "$@"
    fi
}

seconds_left() {
    echo $((start + budget - $(date +%s)))
}

# name|kind|result|seconds for the report; kind is `right` (must pass) or `figure`.
note() {
    echo "$1|$2|$3|$4" >>"$work/parts"
    printf '%-24s %-10s %s s\n' "$1" "$3" "$4"
}

# part NAME KIND LIMIT COMMAND...: its stdout is its JSON, its stderr is kept for the report.
part() {
    name=$1 kind=$2 limit=$(($3 * patience))
    shift 3
    left=$(seconds_left)
    if [ "$left" -lt "$((limit / 4 + 2))" ]; then
        echo "not enough time left: $left s of $budget s" >"$work/$name.err"
        note "$name" "$kind" "left-out" 0
        return 1
    fi
    [ "$left" -ge "$limit" ] || limit=$left
    begin=$(date +%s)
    own timeout -k 5 "$limit" "$@" >"$work/$name.json" 2>"$work/$name.err"
    rc=$?
    case $rc in
    0) result=ok ;;
    124 | 137) result=timeout ;;
    *) result=failed ;;
    esac
    note "$name" "$kind" "$result" $(($(date +%s) - begin))
    [ $rc = 0 ] || sed 's/^/    /' "$work/$name.err" | tail -n 5
    [ $rc = 0 ]
}

# A command that prints watts and MHz, if nvidia-smi is present.
smi=$(command -v nvidia-smi || ls /usr/local/nvidia/bin/nvidia-smi 2>/dev/null || true)
GPU_POWER=""
if [ -n "$smi" ] && [ -z "${HEARTH_LIBCUDA:-}" ]; then
    for field in power.draw.instant power.draw; do
        GPU_POWER="$smi -i 0 --query-gpu=$field,clocks.sm --format=csv,noheader,nounits"
        $GPU_POWER 2>/dev/null | grep -qE '^[0-9.]+, [0-9]+' && break
        GPU_POWER=""
    done
    "$smi" --query-gpu=driver_version,name,memory.total,pstate,clocks.max.sm --format=csv,noheader >"$work/smi" 2>/dev/null
fi
export GPU_POWER

data=$here/data
[ -d "$data" ] || data=$here/../data

part device figure 60 "$bin/gpu_bench" device
part first right 60 "$bin/gpu_bench" first
part selftest right 60 "$bin/gpu_bench" selftest
part decoder right 120 "$bin/gpu_witness" first "$data" 6
part copy figure 60 "$bin/gpu_bench" copy
part stream figure 60 "$bin/gpu_bench" stream
part hop figure 30 "$bin/gpu_bench" hop
part echo figure 30 "$bin/gpu_bench" echo

if [ -z "$first" ]; then
    # shellcheck source=/dev/null
    . "$here/check_models.sh"
fi

own "$bin/gpu_report" "$work" "$out"
