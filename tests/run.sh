#!/bin/sh
# run.sh [--all] - the test suite, in the order in which a fault is cheapest to find. `./dev test` calls it. With --all the tests and
# the longer runs too that README.md lists: before a release.
# build-logs/times.txt has the seconds of each test; the longest are printed at the end, and each test that had to be tried again.
# Every skipped test prints a line `SKIP <test>: <reason>`; a skip that tests/skips.txt does not list is a failure, and where
# CI is set only those marked `ci` there may be skipped.
set -u
cd "$(dirname "$0")/.."
LOGS=build-logs
rm -rf "$LOGS"
mkdir -p "$LOGS"
JOBS=$(nproc)
ALL=OFF
kernels="" # --all: the sanitized trees have their own, sanitized too
if [ "${1:-}" = --all ]; then
    ALL=ON
    kernels=-DHEARTH_KERNELS_FROM=
fi
FAILED=$LOGS/failed.txt # the stages that failed, one a line: some run beside others
: >"$FAILED"
started=$(date +%s)

# A test that fails is tried twice more: one that talks to a daemon can lose to whatever else the machine does. One that
# passes then is named, with what it said: it is to be mended. Many of them sleep most of their time: one more than there are cores.
CTEST="--verbose -j $((JOBS + 1)) --repeat until-pass:3"

# Each try of each test in a stage's log: "seconds stage test result".
tries() {
    sed -nE 's/^ *([0-9]+\/[0-9]+)? *Test +#[0-9]+: ([^ ]+) \.+( +|\*\*\*)([A-Za-z: ]*[A-Za-z]) +([0-9.]+) sec$/\5 '"$1"' \2 \4/p' "$LOGS/$1.log"
}

# Prints the end of what each test in a log said that failed at least once.
failures() {
    for number in $(sed -nE 's/^.*Test +#([0-9]+):.*\*\*\*.*/\1/p' "$1" | sort -un); do
        grep -E "Test +#$number: .*(\*\*\*|Passed)" "$1" | sed -E 's/^.*Test +#/#/'
        grep -E "^$number: " "$1" | grep -vE "^$number: (Test command|Working Directory|Environment variables|Test timeout)" | tail -n 80
    done
}

# CPU seconds, user and system, of what this shell has waited for.
cpu_seconds() {
    times >"$LOGS/$1.cpu"
    sed -n 2p "$LOGS/$1.cpu" | sed 's/[ms]/ /g' | awk '{ printf "%.0f\n", $1 * 60 + $2 + $3 * 60 + $4 }'
    rm "$LOGS/$1.cpu"
}

# A stage's line has its seconds, and those of the cores: with two cores a stage of 100 s that took 150 s of them left 50 s idle.
stage() {
    name=$1
    shift
    begin=$(date +%s)
    cpu_seconds "$name" >"$LOGS/$name.before"
    if "$@" >"$LOGS/$name.log" 2>&1; then
        result=ok
    else
        result=FAILED
        echo "$name" >>"$FAILED"
    fi
    seconds=$(($(date +%s) - begin))
    cpu_seconds "$name" >"$LOGS/$name.after"
    cpu=$(($(cat "$LOGS/$name.after") - $(cat "$LOGS/$name.before")))
    rm "$LOGS/$name.before" "$LOGS/$name.after"
    printf '%-7s %-10s %4d s, %4d s of the cores\n' $result "$name" $seconds $cpu
    [ $result = ok ] || tail -n 30 "$LOGS/$name.log" | sed 's/^/    /'
    failures "$LOGS/$name.log" | sed 's/^/    /'
}

# configure_and_build PRESET PRIORITY [FLAGS]
configure_and_build() {
    preset=$1
    priority=$2
    shift 2
    cmake --preset "$preset" -G Ninja -DHEARTH_TESTS=ON -DHEARTH_ALL=$ALL "$@" &&
        nice -n "$priority" cmake --build --preset "$preset" -j "$JOBS"
}

# An ASan report in a child process must fail the suite even where the test itself passed. But what a failed assertion leaves
# allocated in its own process is no leak of ours, and the test may pass when it is tried again.
asan_tests() {
    reports=$PWD/$LOGS/asan
    rm -rf "$reports"
    mkdir -p "$reports"
    ASAN_OPTIONS="log_path=$reports/report:abort_on_error=0:detect_leaks=1" UBSAN_OPTIONS="print_stacktrace=1:log_path=$reports/ub" \
        LSAN_OPTIONS="suppressions=$PWD/tests/lsan.supp:print_suppressions=0" ctest --preset asan $CTEST
    status=$?
    for report in "$reports"/*; do
        [ -s "$report" ] || continue
        test=$(grep -B1 criterion_internal_test_main "$report" | sed -nE 's/.*\/([a-z0-9_]+)\.c:[0-9:]+$/\1/p' | sort -u)
        if grep -q 'ERROR: LeakSanitizer' "$report" && grep -qE "Test +#[0-9]+: [a-z]+\.$test .*\*\*\*Failed" "$LOGS/asan.log"; then
            continue
        fi
        echo "sanitizer report $report:"
        head -n 60 "$report"
        status=1
    done
    return $status
}

tsan_tests() {
    TSAN_OPTIONS="halt_on_error=1:second_deadlock_stack=1" ctest --preset tsan --verbose -j "$JOBS"
}

# beside STAGES: runs them in the background; join() waits and prints their lines. Tests sleep much of their time: the builds of the other
# trees take what they leave, at the lowest priority. A background job of a script does not hear Ctrl-C: it ends with the group.
beside() {
    "$@" >"$LOGS/beside.txt" 2>&1 &
}
join() {
    wait
    cat "$LOGS/beside.txt"
}
trap 'trap - INT TERM; kill 0' INT TERM

build_asan() {
    # shellcheck disable=SC2086 # no flag, or one
    stage build-asan configure_and_build asan 19 $kernels
}
build_tsan_and_fuzz() {
    # shellcheck disable=SC2086 # no flag, or one
    stage build-tsan configure_and_build tsan 19 $kernels
    stage build-fuzz configure_and_build fuzz 19
}

stage build configure_and_build release 0
beside build_asan
stage tests ctest --preset release $CTEST
stage layers tests/checks/layers.sh
stage links tests/checks/links.sh
stage checklist tests/checks/checklist.sh
stage trace tests/checks/trace.sh
join
beside build_tsan_and_fuzz
stage asan asan_tests
join
stage tsan tsan_tests
fuzz_seconds=5
[ $ALL = OFF ] || fuzz_seconds=20
stage fuzz tests/fuzz/run.sh "${HEARTH_FUZZ_SECONDS:-$fuzz_seconds}" "$LOGS/fuzz"

# The written skip list against what was skipped.
grep -rhoE 'SKIP [a-z0-9_.-]+( [a-z0-9_.-]+)?: .*' "$LOGS"/*.log | sort -u >"$LOGS/skipped.txt"
skips=0
while IFS= read -r line; do
    skips=$((skips + 1))
    name=$(echo "$line" | sed -E 's/^SKIP ([^:]+):.*/\1/')
    if grep -qxF "$name ci" tests/skips.txt || { [ -z "${CI:-}" ] && grep -qxF "$name" tests/skips.txt; }; then
        echo "$line"
    else
        echo "FAILED  a skip that tests/skips.txt does not allow here: $line"
        echo skips >>"$FAILED"
    fi
done <"$LOGS/skipped.txt"

passed=$(grep -rhE '^[0-9]+% tests passed' "$LOGS"/*.log | sed -E 's/.*, ([0-9]+) tests failed out of ([0-9]+)/\2 \1/' | awk '{n += $1 - $2; f += $2} END {print n + 0, f + 0}')
for stage in tests asan tsan; do
    tries $stage
done | sort -rn >"$LOGS/times.txt"
echo "the longest of $LOGS/times.txt, in seconds:"
head -n 15 "$LOGS/times.txt" | sed 's/^/    /'
# Counts the failures of each test that passed in the end.
awk '$4 == "Passed" { ended[$2 " " $3] = 1; next } { n[$2 " " $3]++ }
    END { for (test in n) if (test in ended) printf "retried: %s (%d)\n", test, n[test] }' "$LOGS/times.txt"
echo "in $(($(date +%s) - started)) s"
echo "${passed% *} passed, ${passed#* } failed, $skips skipped"
if [ -s "$FAILED" ]; then
    echo "failed: $(sort -u "$FAILED" | paste -sd ' ') (logs in $LOGS/)"
    exit 1
fi
