#!/bin/sh
# overload.sh BIN MODEL [check] - more clients than hearthd can serve, and a long prompt beside running streams.
# BIN holds hearthd, bench_load and mkmodel. Every accepted request must finish, every refused one get a whole 503
# with Retry-After, health answer all the time, and memory must not grow from wave to wave. With `check` that is
# all (nothing of it is a time); else the times are printed.
set -eu
bin=$1 model=$2 check=${3:-}
clients=1040 # of max_connections 1000: some are above it
dir=$(mktemp -d)
started=
trap 'kill $started 2>/dev/null || true; wait; rm -rf "$dir"' EXIT

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
# A member of /stats by name; the last of that name that stands behind $2.
stat() { curl -sf "http://$at/stats" | sed "s/.*\"$2\":{[^}]*\"$1\":\([0-9.]*\).*/\1/"; }
idle() {
    for _ in $(seq 600); do
        [ "$(metric hearth_requests_running)" = 0 ] && [ "$(metric hearth_connections)" -le 1 ] && return 0
        sleep 0.1
    done
    fail "requests or connections are left"
}

serve --model "$model"
echo "$clients clients at once, 32 slots, queue_limit 256, max_connections 1000"
first=
for wave in 1 2 3 4; do
    "$bin/bench_load" wave "${at##*:}" $clients >"$dir/wave.log" 2>&1 &
    load=$!
    asked=0
    while kill -0 $load 2>/dev/null; do
        curl -sf -m 20 "http://$at/health" >/dev/null || fail "health did not answer in wave $wave"
        asked=$((asked + 1))
    done
    wait $load || fail "wave $wave"
    idle
    # Without the decoder's own, whose KV pages are taken from the system a little ahead of use.
    all=$(metric hearth_process_anonymous_bytes) decoder=$(metric hearth_device_memory_bytes)
    memory=$((all - decoder))
    echo "wave $wave: $(tail -n 1 "$dir/wave.log"), health asked $asked times, RssAnon $((all / 1024)) KB, $((decoder / 1024)) KB of it the decoder's"
    [ -n "$check" ] || head -n 1 "$dir/wave.log"
    first=${first:-$memory}
done
# What a wave leaves is there for the next one: 4 MB are what an allocator may keep in other places.
[ $((memory - first)) -lt 4194304 ] || fail "memory has grown by $((memory - first)) bytes"
refused=$(metric hearth_rejects_total'{type="queue_full"}')
[ "$refused" -gt 0 ] || fail "nobody was refused"
if [ -z "$check" ]; then
    curl -sf "http://$at/metrics" | awk '
        /^hearth_reject_seconds_bucket/ { split($1, part, "\""); le[++n] = part[2]; below[n] = $2 }
        /^hearth_reject_seconds_sum/ { sum = $2 }
        END {
            for (i = 1; below[i] < 0.99 * below[n]; i++) { }
            printf "reject p99 <= %g ms, mean %.4f ms, of %d (hearth_reject_seconds)\n", le[i] * 1e3, sum / below[n] * 1e3, below[n]
        }'
fi
stop
[ -z "$check" ] || exit 0

# Four streams, alone and while a prompt of 32,000 tokens is prefilled.
"$bin/mkmodel" --shape tiny-llama3 --quant q4_k_m --n-ctx 40960 --out "$dir/long.gguf"
awk 'BEGIN { printf "{\"max_tokens\":1,\"prompt\":[5"; for (i = 1; i < 32000; i++) printf ",%d", 5 + i * 37 % 90; print "]}" }' >"$dir/prompt"
streams() {
    list=
    for i in 1 2 3 4; do
        curl -sf -N -d "{\"prompt\":[$i,7,9],\"max_tokens\":25,\"ignore_eos\":true,\"stream\":true}" "http://$at/generate" >"$dir/stream$i" &
        list="$list $!"
    done
    for i in $list; do wait "$i" || fail "a stream"; done
}
# With $1, beside the prompt. A daemon of its own each time: the percentiles are since the start.
inter_token() {
    serve --model "$dir/long.gguf" --n-ctx 33000 --kv-memory 200M
    if [ -n "$1" ]; then
        curl -sf -d @"$dir/prompt" "http://$at/generate" >"$dir/reply" &
        prompt=$!
        while ! curl -s "http://$at/requests" | grep -q "\"state\":\"prefill\""; do sleep 0.05; done
    fi
    streams
    if [ -n "$1" ]; then
        curl -s "http://$at/requests" | grep -q '"state":"prefill"' || echo "(the prompt was done before the streams)"
        kill $prompt 2>/dev/null || true
    fi
    p50=$(stat p50 inter_token) p99=$(stat p99 inter_token)
    stop
}
inter_token ""
echo "4 streams alone: inter-token p50 $p50 ms, p99 $p99 ms"
inter_token beside
echo "4 streams while 32,000 tokens are prefilled: inter-token p50 $p50 ms, p99 $p99 ms (step_ms 50)"
# K and V, 2 layers, 2 kv heads, 64 wide, f16.
"$bin/hearthd" bench --roofline --json | awk '{
    match($0, /"read_GBps": *[0-9.]*/)
    speed = substr($0, RSTART, RLENGTH)
    sub(/.*: */, "", speed)
    bytes = 2 * 2 * 2 * 64 * 2 * 32000
    printf "floor: one row at that depth reads %.1f MB of keys and values, %.2f ms at %s GB/s\n", bytes / 1e6, bytes / 1e6 / speed, speed
}'
