#!/bin/sh
# soak.sh BIN MODEL [REQUESTS [CONNECTIONS]] - 100,000 requests of every kind, after as many tenths to warm up: whole replies,
# streams, several choices, long prompts, bad input, requests ended by leaving and by DELETE, at the first text and before.
# After every tenth, with no request left: what it brought, and what the daemon holds. It fails when
#   a reply is wrong, no request was left or none deleted, or pages are still used;
#   RssAnon + VmSwap, without what the decoder has, is more than 2 MB larger at the end than after the warm-up;
#   descriptors or threads are not as many as after the warm-up;
#   tokens per CPU-second of the daemon, the median of the last three tenths, are below 0.8 of that of the first three.
# CPU time is compared, since tokens per second say as much of the machine's other work. The decoder has blocks
# of its own, taken in huge pages at first touch (the mappings marked "hg"): they are bounded by its configuration, and a page
# of them that is touched for the first time is no growth of what requests hold.
set -eu
bin=$1 model=$2 requests=${3:-100000} connections=${4:-16}
dir=$(mktemp -d)
started=
trap 'kill $started 2>/dev/null || true; wait; rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM

# No request shall time out in the queue when the whole machine is stopped for a while.
"$bin/hearthd" --config /dev/null --port 0 --model "$model" --queue-timeout-ms 3600000 >"$dir/hearthd.log" 2>&1 &
started=$!
at=
until [ -n "$at" ] && curl -sf "http://$at/health" >/dev/null; do
    kill -0 $started || exit 1
    sleep 0.1
    at=$(grep -o '127\.0\.0\.1:[0-9]*' "$dir/hearthd.log" | head -n 1)
done
metrics() { curl -sf "http://$at/metrics" >"$dir/metrics"; }
metric() { awk -v name="$1" '$1 == name { print $2 }' "$dir/metrics"; }
busy() {
    metrics
    [ $(($(metric hearth_requests_running) + $(metric hearth_requests_waiting))) -gt 0 ]
}
fail() {
    echo "soak.sh: $*"
    exit 1
}

# Tokens so far (prompts' and generated), ns, and ticks of CPU time.
read_clocks() {
    tokens=$(awk '/^hearth_(prompt|generated)_tokens_total/ { n += $2 } /^hearth_prompt_cached/ { n -= $2 } END { printf "%d", n }' "$dir/metrics")
    ticks=$(awk '{ print $14 + $15 }' /proc/$started/stat)
    now=$(date +%s%N)
}
figures() {
    while busy; do sleep 0.1; done
    sleep 1 # connections that were left are closed
    metrics
    awk '/^(Anonymous|Swap):/ { n += $2 } /^VmFlags:/ { if (/ hg( |$)/) decoder += n; else memory += n; n = 0 }
        END { printf "%d %d\n", memory, decoder }' /proc/$started/smaps >"$dir/memory"
    read -r memory decoder <"$dir/memory"
    threads=$(awk '/^Threads:/ { print $2 }' /proc/$started/status)
    files=$(find /proc/$started/fd -mindepth 1 | wc -l)
    held="RssAnon+VmSwap $memory KB and the decoder's $decoder, $files descriptors, $threads threads"
}
first=0
# load N: N requests; prints their speeds, and appends tokens per CPU-second to "speeds".
load() {
    metrics
    read_clocks
    from_tokens=$tokens from_ticks=$ticks from=$now
    "$bin/bench_load" soak "${at##*:}" "$1" "$connections" "$first" >"$dir/load" || fail "$(cat "$dir/load")"
    while busy; do sleep 0.01; done
    read_clocks
    first=$((first + $1))
    speeds=$(awk -v n=$((tokens - from_tokens)) -v ns=$((now - from)) -v ticks=$((ticks - from_ticks)) -v hz="$(getconf CLK_TCK)" \
        'BEGIN { printf "%.0f %.0f", n * 1e9 / ns, n * hz / ticks }')
    echo "${speeds#* }" >>"$dir/speeds"
    figures
    echo "$(cat "$dir/load"): ${speeds% *} tokens/s, ${speeds#* } per CPU-second; $held"
}
median() { sort -n | sed -n 2p; }

figures
echo "at the start: $held"
echo "to warm up, $((requests / 10)) requests:"
load $((requests / 10))
before_memory=$memory before_files=$files before_threads=$threads
rm "$dir/speeds"
for tenth in 1 2 3 4 5 6 7 8 9 10; do
    printf 'tenth %d: ' $tenth
    load $((requests / 10))
done
grep -E '^hearth_(requests_total|prompt_tokens_total|generated_tokens_total|kv_pages_used)' "$dir/metrics"
early=$(head -n 3 "$dir/speeds" | median) late=$(tail -n 3 "$dir/speeds" | median)
echo "grown by $((memory - before_memory)) KB (2048 allowed), $((files - before_files)) descriptors, $((threads - before_threads)) threads;" \
    "tokens per CPU-second $early in the first tenths, $late in the last (0.8 of it allowed)"
[ $((memory - before_memory)) -le 2048 ] || fail "memory has grown"
[ "$files" = "$before_files" ] || fail "descriptors are left open"
[ "$threads" = "$before_threads" ] || fail "threads are left"
[ "$(metric hearth_kv_pages_used)" = 0 ] || fail "pages are left"
[ $((late * 10)) -ge $((early * 8)) ] || fail "it has become slower"
left=$(sed -E 's/.* left ([0-9]*) .*/\1/' "$dir/load") deleted=$(sed -E 's/.* deleted ([0-9]*) .*/\1/' "$dir/load")
[ "$left" -gt 0 ] || fail "no client left"
[ "$deleted" -gt 0 ] || fail "no request was deleted"
kill $started
wait $started
started=
