#!/bin/sh
# soak.sh BIN MODEL [REQUESTS [CONNECTIONS]] - 100,000 requests of every kind, after as many tenths to warm up:
# RssAnon + VmSwap, descriptors and threads must end where they began, and every reply be whole. Prints them and the
# speed of every tenth, for drift.
set -eu
bin=$1 model=$2 requests=${3:-100000} connections=${4:-16}
dir=$(mktemp -d)
started=
trap 'kill $started 2>/dev/null || true; wait; rm -rf "$dir"' EXIT

# Nobody is to wait in vain where the whole machine is stopped for a while.
"$bin/hearthd" --config /dev/null --port 0 --model "$model" --queue-timeout-ms 3600000 >"$dir/hearthd.log" 2>&1 &
started=$!
at=
until [ -n "$at" ] && curl -sf "http://$at/health" >/dev/null; do
    kill -0 $started || exit 1
    sleep 0.1
    at=$(grep -o '127\.0\.0\.1:[0-9]*' "$dir/hearthd.log" | head -n 1)
done
waits() { curl -sf "http://$at/metrics" | awk '$1 == "hearth_requests_running" || $1 == "hearth_requests_waiting" { n += $2 } END { exit n == 0 }'; }
figures() {
    while waits; do sleep 0.1; done
    sleep 1 # connections that were left are closed
    # Without the decoder's own, whose KV pages are taken from the system a little ahead of use.
    decoder=$(curl -sf "http://$at/metrics" | awk '$1 == "hearth_device_memory_bytes" { print int($2 / 1024) }')
    all=$(awk '/^(RssAnon|VmSwap):/ { n += $2 } END { print n }' /proc/$started/status)
    memory=$((all - decoder))
    threads=$(awk '/^Threads:/ { print $2 }' /proc/$started/status)
    files=$(find /proc/$started/fd -mindepth 1 | wc -l)
    echo "$1: RssAnon+VmSwap $all KB, $decoder KB of it the decoder's, $files descriptors, $threads threads"
}

figures "at the start"
"$bin/bench_load" soak "${at##*:}" $((requests / 10)) "$connections" >"$dir/warm.log"
figures "warm, after $((requests / 10)) requests"
before_memory=$memory before_files=$files before_threads=$threads
"$bin/bench_load" soak "${at##*:}" "$requests" "$connections"
figures "after $requests more"
curl -sf "http://$at/metrics" | grep -E '^hearth_(requests_total|generated_tokens_total|kv_pages_used)'
[ $((memory - before_memory)) -lt 2048 ] || { echo "memory has grown by $((memory - before_memory)) KB"; exit 1; }
[ "$files" = "$before_files" ] || { echo "descriptors are left open"; exit 1; }
[ "$threads" = "$before_threads" ] || { echo "threads are left"; exit 1; }
kill $started
wait $started
started=
