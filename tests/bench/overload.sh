#!/bin/sh
# overload.sh BIN MODEL [check] - more clients than hearthd can serve, and a long prompt beside running streams.
# BIN holds hearthd, bench_load, bench_serve and mkmodel. Every accepted request must finish, every refused one get a
# whole 503 with Retry-After, health answer all the time, and memory must not grow from wave to wave. With `check`
# that is all (nothing of it is a time). Without, on a machine that does nothing else, also:
#   p99 of hearth_reject_seconds below 5 ms;
#   five times, of a daemon of its own each: p99 of the times between tokens of eight streams, seen by their client while
#   prompts of 32,000 tokens are prefilled, at most max(2 x the same alone, step_ms), of 4,000 times. Speculation off.
# The times of /health over new connections meanwhile are printed, as their client sees them.
set -eu
bin=$1 model=$2 check=${3:-}
clients=1040 # of max_connections 1000: some are above it
dir=$(mktemp -d)
started=
trap 'kill $started 2>/dev/null || true; wait; rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM

fail() {
    echo "overload.sh: $*"
    tail -n 5 "$dir"/*.log
    exit 1
}
# Starts hearthd with these flags; $at is where.
serve() {
    "$bin/hearthd" --config /dev/null --port 0 "$@" >"$dir/hearthd.log" 2>&1 &
    started=$!
    for _ in $(seq 600); do
        at=$(grep -o '127\.0\.0\.1:[0-9]*' "$dir/hearthd.log" | head -n 1)
        [ -n "$at" ] && curl -sf "http://$at/health" >/dev/null && return 0
        sleep 0.1
    done
    fail "hearthd does not start"
}
stop() {
    kill "$started"
    wait "$started" || fail "hearthd left with $?"
    started=
}
metric() { curl -sf "http://$at/metrics" | awk -v name="$1" '$1 == name { print $2 }'; }
# ask_health starts to ask for it all the time; health_told ends that, $health is what it found.
ask_health() {
    "$bin/bench_serve" health "${at##*:}" >"$dir/health" 2>&1 &
    asker=$!
}
health_told() {
    kill "$asker" 2>/dev/null || true
    wait "$asker" || fail "$(cat "$dir/health")"
    health=$(cat "$dir/health")
}
idle() {
    for _ in $(seq 600); do
        [ "$(metric hearth_requests_running)" = 0 ] && [ "$(metric hearth_connections)" -le 1 ] && return 0
        sleep 0.1
    done
    fail "requests or connections are left"
}

serve --model "$model"
echo "$clients clients at once, 32 slots, queue_limit 256, max_connections 1000"
waves="1 2 3 4 5 6 7 8"
late=7 # the first of the last two waves
[ -n "$check" ] || {
    waves="$waves 9 10 11 12"
    late=11
}
most=0
least=
for wave in $waves; do
    [ -n "$check" ] || ask_health
    "$bin/bench_load" wave "${at##*:}" $clients >"$dir/wave.log" 2>&1 &
    load=$!
    asked=0
    while [ -n "$check" ] && kill -0 $load 2>/dev/null; do
        curl -sf -m 20 "http://$at/health" >/dev/null || fail "health did not answer in wave $wave"
        asked=$((asked + 1))
    done
    wait $load || fail "wave $wave"
    health="health asked $asked times"
    [ -n "$check" ] || health_told
    idle
    # Without the decoder's own, whose KV pages are taken from the system a little ahead of use. On a busy machine that may still go
    # on: both figures are of one answer.
    curl -sf "http://$at/metrics" >"$dir/metrics"
    all=$(awk '$1 == "hearth_process_anonymous_bytes" { print $2 }' "$dir/metrics")
    decoder=$(awk '$1 == "hearth_device_memory_bytes" { print $2 }' "$dir/metrics")
    memory=$((all - decoder))
    echo "wave $wave: $(tail -n 1 "$dir/wave.log"), $health, RssAnon $((all / 1024)) KB, $((decoder / 1024)) KB of it the decoder's"
    [ -n "$check" ] || head -n 1 "$dir/wave.log"
    [ "$wave" -gt 2 ] || [ "$memory" -le $most ] || most=$memory
    [ "$wave" -lt $late ] || [ "$memory" -ge "${least:-$((memory + 1))}" ] || least=$memory
done
# A wave's memory serves the next one. After some waves an allocator keeps 3 to 7 MB of it, after others it gives them back, so the
# least after the last two waves is compared with the most after the first two. Five waves between them show a leak of 600 bytes a request.
[ $((least - most)) -lt 3145728 ] || fail "memory has grown by $((least - most)) bytes"
refused=$(metric hearth_rejects_total'{type="queue_full"}')
[ "$refused" -gt 0 ] || fail "no request was refused"
if [ -z "$check" ]; then
    curl -sf "http://$at/metrics" | awk '
        /^hearth_reject_seconds_bucket/ { split($1, part, "\""); le[++n] = part[2]; below[n] = $2 }
        /^hearth_reject_seconds_sum/ { sum = $2 }
        END {
            for (i = 1; below[i] < 0.99 * below[n]; i++) { }
            printf "reject p99 <= %g ms (5 allowed), mean %.4f ms, of %d (hearth_reject_seconds)\n", le[i] * 1e3, sum / below[n] * 1e3, below[n]
            exit le[i] == "+Inf" || le[i] > 0.005
        }' || fail "refusals take too long"
fi
stop
[ -z "$check" ] || exit 0

"$bin/mkmodel" --shape tiny-llama3 --quant q4_k_m --n-ctx 40960 --out "$dir/long.gguf"
streams=8 step_ms=50
failed=
value() { awk -v name="$1" '$1 == name { print $2 }' "$dir/streams"; }
# between_tokens TOKENS: of the streams, alone (0), or while prompts of so many tokens are prefilled.
between_tokens() {
    "$bin/bench_serve" beside "${at##*:}" $streams "$1" 4000 >"$dir/streams" || fail "$streams streams beside $1 tokens"
    gaps=$(value gaps) p99=$(value inter_token_p99_ms)
    seen="p50 $(value inter_token_p50_ms) ms, p99 $p99 ms, max $(value inter_token_max_ms) ms of $gaps"
}
for run in 1 2 3 4 5; do
    serve --model "$dir/long.gguf" --n-ctx 33000 --kv-memory 200M --speculation off --step-ms $step_ms
    between_tokens 0
    echo "run $run: between tokens of $streams streams alone: $seen"
    bound=$(awk -v alone="$p99" -v step=$step_ms 'BEGIN { print (2 * alone > step ? 2 * alone : step) }')
    ask_health
    between_tokens 32000
    health_told
    echo "    while 32,000 tokens are prefilled: $seen ($bound allowed); $health"
    [ "$gaps" -ge 1000 ] || fail "too few times to speak of a p99"
    awk -v p99="$p99" -v bound="$bound" 'BEGIN { exit !(p99 <= bound) }' || failed="$failed $run"
    stop
done
# K and V, 2 layers, 2 kv heads, 64 wide, two bytes each.
"$bin/hearthd" bench --roofline --json | awk '{
    match($0, /"read_GBps": *[0-9.]*/)
    speed = substr($0, RSTART, RLENGTH)
    sub(/.*: */, "", speed)
    bytes = 2 * 2 * 2 * 64 * 2 * 32000
    printf "floor: one row at that depth reads %.1f MB of keys and values, %.2f ms at %s GB/s\n", bytes / 1e6, bytes / 1e6 / speed, speed
}'
[ -z "$failed" ] || fail "above what is allowed in run$failed"
