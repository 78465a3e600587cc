#!/bin/sh
# run.sh [SECONDS [DIR]] - every fuzz target of build-fuzz for SECONDS (20), as many at a time as there are cores. Corpora and logs
# stay in DIR (build-logs/fuzz), and so does an input that a target failed on: DIR/crash-<target>-*.
set -u
cd "$(dirname "$0")/../.."

if [ "${1:-}" = one ]; then # SECONDS DIR PROGRAM
    target=${4##*/fuzz_}
    words=""
    [ ! -e "tests/fuzz/words/$target.dict" ] || words=-dict=tests/fuzz/words/$target.dict
    mkdir -p "$3/corpora/$target"
    "$4" -max_total_time="$2" -rss_limit_mb=4096 -timeout=120 -print_final_stats=1 -artifact_prefix="$3/crash-$target-" \
        $words "$3/corpora/$target" "tests/fuzz/seeds/$target" >"$3/$target.log" 2>&1
    status=$?
    echo "== $target: $(sed -nE 's/^stat::number_of_executed_units: *([0-9]+)/\1 runs/p' "$3/$target.log"), exit code $status"
    [ $status = 0 ] || { tail -n 40 "$3/$target.log"; exit 1; }
    exit 0
fi

seconds=${1:-20}
dir=${2:-build-logs/fuzz}
mkdir -p "$dir"
ls build-fuzz/bin/fuzz_* >"$dir/targets" || exit 1 # none was built
missing=$(for source in tests/fuzz/fuzz_*.c; do grep -q "/$(basename "$source" .c)\$" "$dir/targets" || echo "$source"; done)
[ -z "$missing" ] || { echo "not built: $missing"; exit 1; }
xargs -P "$(nproc)" -n 1 "$0" one "$seconds" "$dir" <"$dir/targets"
