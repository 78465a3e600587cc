#!/bin/sh
# suite.sh [-o FILE] [PART...] - the benchmark suite: a table of what this machine does beside what it should do.
#
#   ./dev suite                                       builds what it needs, then all parts
#   tests/bench/suite.sh                              all parts, with the programs of build/bin
#   tests/bench/suite.sh text prefill                 some
#   tests/bench/suite.sh -o tests/bench/results/x     also into x.txt, and as JSON into x.json
#
# Parts: text depth prefill streams:N[:STEP_MS] poisson beside ttft overhead memory start type:QUANT shape:SHAPE[:QUANT[:LAYERS]] isa:ISA threads:N
#
# Not among all, for their size: shape:qwen3-30b-a3b:q4_k_m:8 shape:gpt-oss-20b:mxfp4:6 shape:gemma3-4b:q4_k_m:12 shape:qwen3.5-4b:q4_k_m:16, cut to
# their first layers.
#
# BIN: where hearthd, mkmodel, bench_serve and bench_hops are. MODELS: where the models are made, once (random weights; build/bench).
# MEASURE: a command put before every part, e.g. one that keeps the machine quiet meanwhile.
#
# Every fraction is of a limit that was measured around every repetition in the same process (hearthd bench).
# A part during which other processes (or, on a shared host, other guests) had more than 3 % of the machine is marked.
# No part asserts anything: the verdict is printed, the exit status is 0 (2 for a part that there is not).
set -eu
top=$(cd "$(dirname "$0")/../.." && pwd)
bin=${BIN:-$top/build/bin}
models=${MODELS:-$top/build/bench}
demo=$top/models/hearth-stories-6m-q4_k_m.gguf
tab=$(printf '\t')
all="text depth prefill streams:8 streams:16 streams:32 streams:8:200 streams:16:200 streams:32:200 poisson beside ttft overhead memory start
     type:q8_0 type:q6_k type:q5_k_m type:q4_0 type:f16 type:bf16 shape:llama-3.2-1b shape:qwen2.5-0.5b isa:avx2 threads:1 threads:4"

# ---- rows: name, measured, limit, what is compared, sense, required, aim, remark ----

row() { (IFS=$tab && echo "$*") >>"$rows"; }
model() { # SHAPE QUANT [LAYERS]; the file's name
    file=$models/$1-$2${3:+-$3}.gguf
    [ -f "$file" ] || {
        mkdir -p "$models" && "$bin/mkmodel" --shape "$1" --quant "$2" ${3:+--layers "$3"} --out "$file.part" >&2 && mv "$file.part" "$file"
    } || return 1
    echo "$file"
}
shape_model() { # SHAPE[:QUANT[:LAYERS]]
    quant=$(echo "$1:" | cut -d: -f2)
    model "${1%%:*}" "${quant:-q4_k_m}" "$(echo "$1:" | cut -d: -f3)"
}
calc() { awk "BEGIN { printf \"${2:-%.2f}\", $1 }"; }
bench() { "$bin/hearthd" bench --config /dev/null --json "$@" >"$dir/bench.json"; }
# TEST KEY of the last bench; jansson writes flat objects of one line
field() { tr '{' '\n' <"$dir/bench.json" | sed -n "s|^\"test\": \"$1\".*\"$2\": \([0-9.e+-]*\).*|\1|p"; }
# NAME TEST REQUIRED AIM [REMARK]: a test of the last bench as a fraction of the read bandwidth
read_row() {
    speed=$(field "$2" tokens_per_s) bytes=$(field "$2" bytes_per_token) limit=$(field "$2" read_GBps)
    row "$1" "$(calc "$speed" %.1f) tokens/s" "$(calc "$limit" %.1f) GB/s read" "$(calc "$(field "$2" read_fraction)" %.3f)" '>=' "$3" "$4" \
        "$(calc "$bytes/1e6" %.0f) MB/token${5:+, $5}"
}
int8_row() {
    speed=$(field "$2" tokens_per_s) ops=$(field "$2" int8_ops_per_token) limit=$(field "$2" int8_TOPS) attention=$(field "$2" attention_ops_per_token)
    row "$1" "$(calc "$speed" %.0f) tokens/s" "$(calc "$limit") TOPS int8" "$(calc "$(field "$2" int8_fraction)" %.3f)" '>=' "$3" "$4" \
        "$(calc "$ops/1e9" %.3f) GOP/token; attention beside them $(calc "$attention/1e9" %.3f)${5:+; $5}"
}

# ---- a daemon ----

serve() {
    "$bin/hearthd" serve --config /dev/null --port 0 "$@" >"$dir/hearthd.log" 2>&1 &
    daemon=$!
    for _ in $(seq 600); do
        port=$(sed -n 's|.*http://127\.0\.0\.1:\([0-9]*\) .*|\1|p' "$dir/hearthd.log" | head -n 1)
        [ -n "$port" ] && curl -sf "http://127.0.0.1:$port/health/ready" >/dev/null && return 0
        sleep 0.05
    done
    cat "$dir/hearthd.log" >&2
    exit 1
}
stop() { kill "$daemon" && wait "$daemon"; }
stat() { curl -sf "http://127.0.0.1:$port/stats" | sed "s/.*\"$1\":\([0-9.]*\).*/\1/"; }
clients() { "$bin/bench_serve" streams "$port" "$@" >"$dir/clients"; }
seen() { awk -v name="$1" '$1 == name { print $2 }' "$dir/clients"; }
# nanoseconds of CPU that the threads of this name have had; without a name all
cpu_ns() { for t in /proc/"$daemon"/task/*; do [ $# -gt 0 ] && [ "$(cat "$t/comm")" != "$1" ] || cat "$t/schedstat"; done | awk '{ n += $1 } END { printf "%.0f", n }'; }

# ---- parts ----

part_text() { # one stream, short context
    bench --model "$(model qwen3-0.6b q4_k_m)" -p 0 -n 128
    read_row "decode, 1 stream, context < 256" tg128 0.93 0.97
}
part_depth() { # one stream after 4,096 tokens; q8_0 keys and values read half the bytes
    bench --model "$(model qwen3-0.6b q4_k_m)" -p 0 -n 64 -d 4096 --kv-type bf16
    read_row "decode, context 4096, bf16 KV" tg64@d4096 0.85 0.95 "weights and KV"
    bench --model "$(model qwen3-0.6b q4_k_m)" -p 0 -n 64 -d 4096 --kv-type f16
    read_row "decode, context 4096, f16 KV" tg64@d4096 0.85 0.95 "weights and KV"
    f16=$(field tg64@d4096 tokens_per_s)/$(field tg64@d4096 read_GBps)
    bench --model "$(model qwen3-0.6b q4_k_m)" -p 0 -n 64 -d 4096 --kv-type q8_0
    read_row "decode, context 4096, q8_0 KV" tg64@d4096 0.80 - "weights and KV"
    row "  its speed beside f16's" "" "" "$(calc "$(field tg64@d4096 tokens_per_s)/$(field tg64@d4096 read_GBps)/($f16)")" '>=' 1.25 - "at equal read bandwidth: the host's moves between the two"
}
part_prefill() {
    for type in bf16 f16 q8_0; do # bf16 is what this model has by default
        bench --model "$(model qwen3-0.6b q4_k_m)" -p 512,2048 -n 0 --kv-type $type
        int8_row "prefill 512, $type KV" pp512 0.50 0.60
        int8_row "prefill 2048, $type KV" pp2048 0.36 0.45
    done
}
# N[:STEP_MS] at once, 128 tokens of prompt and 64 of text each; every row is to be a token: no drafts. The cache is full
# before anything counts, as it is after a while: memory that is touched for the first time costs a twentieth.
part_streams() {
    n=${1%%:*} step=${1#"$n"} step=${step#:}
    serve --model "$(model qwen3-0.6b q4_k_m)" --speculation off --kv-memory 1G ${step:+--step-ms "$step"}
    clients "$n" 128 64 $((48 / n + 1))
    clients "$n" 128 64 5
    stop
    speed=$(seen tokens_per_s)
    case $n in 8) required=750 aim=1000 ;; *) required=$(awk -F "$tab" '/concurrent streams/ { v = $4 } END { print v ? v : "-" }' "$rows") aim=- ;; esac
    row "$n concurrent streams${step:+, step_ms $step}" "$speed tokens/s" "" "$speed" '>=' "$required" $aim "128 + 64 tokens, prompt and text; clients took $(calc "100*$(seen client_cpu)" %.1f) % of a core"
    p50=$(seen inter_token_p50_ms) required=-
    [ "$1" != 8 ] || required=14
    row "  inter-token p50" "$p50 ms" "" "$p50" '<=' $required - "p99 $(seen inter_token_p99_ms) ms; TTFT p50 $(seen ttft_p50_ms), p95 $(seen ttft_p95_ms), p99 $(seen ttft_p99_ms) ms"
}
part_poisson() { # requests that arrive at random, at 0.7 of what eight streams get
    serve --model "$(model qwen3-0.6b q4_k_m)" --speculation off --kv-memory 1G
    clients 8 128 64 2
    per_minute=$(calc "0.7*60*$(seen tokens_per_s)/192" %.0f)
    "$bin/bench_serve" poisson "$port" 48 128 64 "$per_minute" >"$dir/clients"
    stop
    row "requests at random, $per_minute a minute" "$(seen tokens_per_s) tokens/s" "" "" - - - \
        "128 + 64 tokens, 0.7 of what 8 streams get; TTFT p50 $(seen ttft_p50_ms), p95 $(seen ttft_p95_ms) ms; inter-token p50 $(seen inter_token_p50_ms), p99 $(seen inter_token_p99_ms) ms"
}
part_beside() { # 4 texts, then beside a prompt of 32,000 tokens: two layers, which read it within a minute
    serve --model "$(model qwen3-0.6b q4_k_m 2)" --speculation off --kv-memory 2G --n-ctx 36864 --slots 8
    "$bin/bench_serve" beside "$port" 4 0 800 >"$dir/clients"
    alone=$(seen inter_token_p99_ms)
    "$bin/bench_serve" beside "$port" 4 32000 1 >"$dir/clients"
    stop
    p99=$(seen inter_token_p99_ms)
    row "inter-token p99 beside a prompt of 32,000" "$p99 ms" "" "$p99" '<=' "$(calc "(2*$alone > 50 ? 2*$alone : 50)" %.1f)" - \
        "the larger of step_ms and twice the $alone ms without it; p50 $(seen inter_token_p50_ms) ms, largest $(seen inter_token_max_ms) ms"
}
part_ttft() { # the prefill is that of the same request: its speed moves with the host from minute to minute
    bench --model "$(model qwen3-0.6b q4_k_m)" -p 128 -n 0 -r 9
    before=$(field pp128 tokens_per_s)
    serve --model "$(model qwen3-0.6b q4_k_m)"
    clients 1 128 2 9
    stop
    bench --model "$(model qwen3-0.6b q4_k_m)" -p 128 -n 0 -r 9
    prefill=$(calc "64000/$before + 64000/$(field pp128 tokens_per_s)" %.1f)
    beyond=$(seen ttft_beyond_prefill_p50_ms)
    row "TTFT beyond prefill, 128 tokens, idle" "$(seen ttft_p50_ms) ms in all" "" "$(calc "$beyond" %.1f)" '<=' 3 - "ms, with the same request's prefill; hearthd bench before and after: $prefill ms without the first token's head"
}
# CPU time of the event loop's thread, and of the engine's thread outside of steps (/stats busy_ms), over the tokens
# that it sent; with one compute thread, since a step's clock must not run while others have its core.
part_overhead() {
    serve --model "$demo" --threads 1 --speculation off
    for n in 1 8; do
        clients $n 8 400 1
        loop=$(cpu_ns hearthd) engine=$(cpu_ns engine) busy=$(stat busy_ms) tokens=$(stat generated)
        clients $n 8 400 8
        tokens=$(($(stat generated) - tokens))
        loop=$(calc "($(cpu_ns hearthd)-$loop)/$tokens/1e3") engine=$(calc "(($(cpu_ns engine)-$engine)-1e6*($(stat busy_ms)-$busy))/$tokens/1e3")
        name="HTTP and engine per token, $n stream$([ $n = 1 ] || echo s)" both=$(calc "$loop+$engine" %.1f)
        case $engine in # a step's clock also runs while others have its core: more of that than the engine's own is no figure
        -*) row "$name" "$both us" "" "" - - - "no verdict: others had the core during steps; event loop $loop, engine outside of steps $engine" ;;
        *) row "$name" "$both us" "" "$both" '<=' 30 10 "of one core; event loop $loop, engine outside of steps $engine" ;;
        esac
        [ $n != 1 ] || pace=$(calc "1000*$(seen inter_token_p50_ms)" %.0f)
    done
    stop
    "$bin/bench_hops" 48 "$pace" 4000 >"$dir/hops"
    hops=$(awk '$1 == "total_us" { print $2 }' "$dir/hops")
    row "  ringing, waking and sending alone" "$(calc "$hops" %.1f) us" "" "$(calc "$hops" %.1f)" - - - "what the system takes for the same two threads and a packet at one stream's pace, without a daemon (bench_hops)"
}
part_memory() {
    serve --model "$(model qwen3-0.6b q4_k_m)"
    clients 1 128 16 1
    rss=$(awk '/^VmRSS/ { print $2 * 1024 }' /proc/$daemon/status) used=$(stat memory_used) scratch=$(stat scratch)
    row "resident beyond weights and KV" "$(calc "$rss/1e6" %.0f) MB in all" "$(calc "($used-$scratch)/1e6" %.0f) MB of them" "$(calc "($rss-$used+$scratch)/1e6" %.0f)" '<=' 64 - "MB; scratch $(calc "$scratch/1e6" %.0f) MB reserved"
    sleep 1
    cpu=$(cpu_ns) && sleep 10
    cpu=$(calc "($(cpu_ns)-$cpu)/1e8" %.3f)
    stop
    row "CPU of an idle daemon" "$cpu % of a core" "" "$cpu" '<=' 0.1 0 ""
}
part_start() {
    cat "$(model qwen3-0.6b q4_k_m)" >/dev/null
    "$bin/bench_serve" start 5 "$bin/hearthd" serve --config /dev/null --port $((20000 + $$ % 10000)) --log-level error --model "$(model qwen3-0.6b q4_k_m)" >"$dir/clients"
    row "start to ready, file in page cache" "$(seen start_ms) ms" "" "$(seen start_ms)" '<=' 600 300 ""
}
part_type() {
    bench --model "$(model qwen3-0.6b "$1")" -p 512 -n 64
    read_row "decode, $1" tg64 0.80 -
    row "  prefill 512, $1" "$(calc "$(field pp512 tokens_per_s)" %.0f) tokens/s" "" "" - - - ""
}
part_shape() { # SHAPE[:QUANT[:LAYERS]]
    bench --model "$(shape_model "$1")" --n-ctx 2048 -p 512 -n 64 -b 1,8 -r 3
    read_row "decode, $1" tg64 0.85 -
    row "  8 texts at once" "$(calc "$(field tg64@b8 tokens_per_s)" %.0f) tokens/s" "" "" - - - ""
    int8_row "  prefill 512" pp512 - -
}
part_isa() {
    bench --model "$(model qwen3-0.6b q4_k_m)" -p 512 -n 64 --isa "$1"
    read_row "decode, $1 alone" tg64 0.70 -
    int8_row "  prefill 512, $1 alone" pp512 - - "of the best instruction set's peak"
}
part_threads() {
    bench --model "$(model qwen3-0.6b q4_k_m)" -p 512 -n 64 --threads "$1"
    read_row "decode, $1 thread$([ "$1" = 1 ] || echo s)" tg64 - -
    int8_row "  prefill 512, $1 thread$([ "$1" = 1 ] || echo s)" pp512 - -
}

# ---- the table ----

busy_ticks() { awk '/^cpu / { print $2 + $3 + $4 + $7 + $8 + $9; exit }' /proc/stat; }
own_ticks() { awk -v hz="$(getconf CLK_TCK)" '{ for (i = 1; i <= 2; i++) { split($i, t, "m"); s += t[1] * 60 + t[2] } } END { print s * hz }' "$dir/times"; }
run_part() { # NAME[:ARGUMENT], in a process of its own; what others took of the machine goes behind its last row
    since=$(cut -d" " -f1 /proc/uptime) ticks=$(busy_ticks)
    case $1 in *:*) "part_${1%%:*}" "${1#*:}" ;; *) "part_$1" ;; esac
    times >"$dir/times"
    others=$(calc "100*($(busy_ticks)-$ticks-$(own_ticks))/($(getconf CLK_TCK)*$(nproc)*($(cut -d' ' -f1 /proc/uptime)-$since))" %.0f)
    [ "$others" -le 3 ] || row "  ! others had $others % of the machine" "" "" "" - - - ""
}
verdict='function verdict() {
    if ($6 == "-") return ""
    if (!($5 == ">=" ? $4 >= $6 : $4 <= $6)) return "SHORT"
    return $7 != "-" && ($5 == ">=" ? $4 >= $7 : $4 <= $7) ? "aim" : "reached"
}'
print_table() {
    awk -F "$tab" "$verdict"'
        BEGIN { printf "%-42s %-20s %-20s %9s %9s %7s  %-8s %s\n", "work", "measured", "limit", "ratio", "required", "aim", "", "remark" }
        {
            printf "%-42s %-20s %-20s %9s %9s %7s  %-8s %s\n", $1, $2, $3, $4, $6 == "-" ? "" : $5 " " $6, $7 == "-" ? "" : $7, verdict(), $8
        }' "$rows"
}
print_json() {
    awk -F "$tab" -v cpu="$cpu" -v limits="$limits" -v tuning="$tuning" -v commit="$commit" -v date="$date" -v command="$command" "$verdict"'
        function number(v) { return v ~ /^-?[0-9.]+$/ ? v + 0 : "null" }
        BEGIN { printf "{\"cpu\":\"%s\",\"limits\":\"%s\",\"tuning\":\"%s\",\"commit\":\"%s\",\"date\":\"%s\",\"command\":\"%s\",\"rows\":[", cpu, limits, tuning, commit, date, command }
        { sub(/^ */, "", $1) }
        /^! / { marks = marks sprintf("%s\n{\"behind\":\"%s\",\"mark\":\"%s\"}", (marks == "" ? "" : ","), last, substr($1, 3)); next }
        {
            printf "%s\n{\"work\":\"%s\",\"measured\":\"%s\",\"limit\":\"%s\",\"value\":%s,\"sense\":\"%s\",\"required\":%s,\"aim\":%s,\"verdict\":\"%s\",\"remark\":\"%s\"}",
                (last == "" ? "" : ","), $1, $2, $3, number($4), $5, number($6), number($7), verdict(), $8
            last = $1
        }
        END { print "\n],\"marks\":[" marks "\n]}" }' "$rows"
}

if [ "${1:-}" = --part ]; then
    rows=$3 dir=$4
    run_part "$2"
    exit 0
fi
command="tests/bench/suite.sh $*" out=
usage() { sed -n '2,/^# No part/s/^# \{0,1\}//p' "$0"; }
is_count() { case $1 in '' | *[!0-9]* | 0*) return 1 ;; esac; }
is_part() { # before anything is made or measured
    case $1 in
    text | depth | prefill | poisson | beside | ttft | overhead | memory | start) ;;
    streams:*:*) is_count "$(echo "$1" | cut -d: -f2)" && is_count "$(echo "$1" | cut -d: -f3-)" ;;
    streams:* | threads:*) is_count "${1#*:}" ;;
    isa:auto | isa:avx512 | isa:avxvnni | isa:avx2 | isa:amx | isa:scalar) ;;
    type:?* | shape:?*) ;; # mkmodel knows which
    *) return 1 ;;
    esac
}
case ${1:-} in
-h | --help) usage && exit 0 ;;
-o)
    [ $# -gt 1 ] || { echo "suite.sh: -o needs a name" >&2 && exit 2; }
    out=$2 && shift 2
    [ -d "$(dirname "$out")" ] || { echo "suite.sh: there is no directory $(dirname "$out")" >&2 && exit 2; }
    ;;
esac
for part in "$@"; do
    is_part "$part" || { echo "suite.sh: there is no part $part; see suite.sh --help" >&2 && exit 2; }
done
for program in hearthd mkmodel bench_serve bench_hops; do
    [ -x "$bin/$program" ] || { echo "suite.sh: no $bin/$program: ./dev suite builds what it needs" >&2 && exit 2; }
done
[ $# -gt 0 ] || set -- $all
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
rows=$dir/rows
: >"$rows"
for part in "$@"; do # made before anything is measured
    case $part in
    type:*) model qwen3-0.6b "${part#type:}" ;;
    shape:*) shape_model "${part#shape:}" ;;
    beside) model qwen3-0.6b q4_k_m 2 ;;
    *) model qwen3-0.6b q4_k_m ;;
    esac >/dev/null || exit 2
done
for part in "$@"; do
    echo "$part ..." >&2
    ${MEASURE:-} "$0" --part "$part" "$rows" "$dir" || row "$part" failed "" "" - - - ""
done
# A hypervisor may hide the model's name: family and model tell CPUs apart, the instruction set what they can.
cpuinfo() { sed -n "s/^$1[^:]*: //p" /proc/cpuinfo | head -n 1; }
isa=$(cpuinfo flags | tr ' ' '\n' | awk '{ has[$1] } END { print "avx512_vnni" in has ? "avx512 vnni" : "avx_vnni" in has ? "avx2 vnni" : "avx2" in has ? "avx2" : "no avx2" }')
cpu="$(cpuinfo 'model name') (family $(cpuinfo 'cpu family') model $(cpuinfo 'model	'), $isa), $(nproc) CPUs"
limits=$(${MEASURE:-} "$bin/hearthd" bench --config /dev/null --roofline | head -n 1)
# The variants that a load of the model takes beside the built-in constants, and how much faster they were.
${MEASURE:-} "$bin/hearthd" bench --config /dev/null --json --model "$(model qwen3-0.6b q4_k_m)" -p 0 -n 1 -r 1 >"$dir/bench.json"
tuning=$(tr '{' '\n' <"$dir/bench.json" | sed -n 's|^"weights": "\([^"]*\)", "first": \([0-9]*\), "last": \([0-9a-z]*\), "kernels": "\([^"]*\)", "shape": "\([^"]*\)", "hint": "\([^"]*\)", "ahead": \([0-9]*\), "measured": true, "gain": \([0-9.]*\).*|\1 \2-\3 \4 \5 \6 \7 \8|p' |
    awk '{ sub("-null", "+", $2); printf "%s%s columns %s: %s, %s, hint %s, %s ahead, x %.2f", (NR > 1 ? "; " : ""), $1, $2, $3, $4, $5, $6, $7 }')
date=$(date -u +%Y-%m-%d)
commit=$(git -C "$top" describe --always --dirty 2>/dev/null || echo unknown)
{
    echo "$cpu · commit $commit · $date · $command"
    echo "$limits"
    echo "tuning: ${tuning:-none}"
    echo
    print_table
} >"$dir/table"
cat "$dir/table"
[ -z "$out" ] || { cp "$dir/table" "$out.txt" && print_json >"$out.json"; }
