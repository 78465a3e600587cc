#!/bin/sh
# check_texts.sh BIN MODEL [PROMPTS TOKENS AT_ONCE] - checks that two daemons serve the same texts, one with backend cuda
# and one with cpu: PROMPTS (20) different prompts of TOKENS (256) tokens, AT_ONCE (8) clients, every other prompt sampled.
# HEARTH_LIBCUDA: another driver, for example the emulated one. Exit code 0 only if all texts are equal in every token,
# none is cut short, and cuda needed one launch for all of them (or if curl is missing: it prints SKIP). Its output is the record.
set -eu
bin=$1 model=$2 prompts=${3:-20} tokens=${4:-256} at_once=${5:-8}
command -v curl >/dev/null || { echo "SKIP gpu_texts curl: not installed (package curl)"; exit 0; }
dir=$(mktemp -d)
daemon=""
trap '[ -z "$daemon" ] || kill "$daemon" 2>/dev/null || true; rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM

fail() {
    echo "FAILED  $1" >&2
    cat "$dir"/*.log >&2
    exit 1
}

# serve BACKEND: starts the daemon on a socket in $dir. The limits are long because an emulated device may be slow.
serve() {
    rm -f "$dir/socket"
    "$bin/hearthd" serve --config /dev/null --backend "$1" --libcuda "${HEARTH_LIBCUDA:-}" --model "$model" --port 0 \
        --unix-socket "$dir/socket" --slots "$at_once" --n-ctx 512 --park-after-ms 0 --watchdog-ms 600000 \
        --queue-timeout-ms 0 >"$dir/$1.log" 2>&1 &
    daemon=$!
    until curl -sf --unix-socket "$dir/socket" http://localhost/health/ready >"$dir/ready"; do
        kill -0 $daemon 2>/dev/null || fail "the daemon with backend $1 did not start"
        sleep 0.05
    done
}

# figure PATTERN: prints the value that follows it in /stats.
figure() {
    sed -n "s/.*$1\([^,}\"]*\).*/\1/p" "$dir/stats"
}

body() {
    case $(($1 % 5)) in
    0) words="Once upon a time, $1" ;;
    1) words="The little dog number $1" ;;
    2) words="There were $1 birds in the tree and" ;;
    3) words="Tom said to his $1 friends:" ;;
    *) words="Day $1. It rained, so Lily" ;;
    esac
    printf '{"prompt":"%s","max_tokens":%d,"ignore_eos":true,"seed":%d,"temperature":%s}' "$words" "$tokens" "$1" \
        "$([ $(($1 % 2)) = 0 ] && echo 0 || echo 0.9)"
}

# texts BACKEND: writes text and tokens of every prompt, a line each, in the order of the prompts.
texts() {
    serve "$1"
    seq "$prompts" | xargs -P "$at_once" -I {} curl -s --unix-socket "$dir/socket" -d "@$dir/{}.body" -o "$dir/{}.reply" \
        http://localhost/generate || fail "a request to backend $1 got no answer"
    curl -s --unix-socket "$dir/socket" http://localhost/stats >"$dir/stats" || fail "backend $1 does not answer"
    { kill $daemon && wait $daemon; } || fail "backend $1 does not exit cleanly"
    daemon=""
    for n in $(seq "$prompts"); do
        cat "$dir/$n.reply" >>"$dir/$1.log"
        grep -q "\"completion_tokens\":$tokens}" "$dir/$n.reply" || fail "backend $1, prompt $n: not $tokens tokens"
        sed 's/.*"text":\(".*\),"finish_reason".*/\1/' "$dir/$n.reply"
    done >"$dir/$1.texts"
    launches=$(figure '"launches":')
    echo "$1: $(figure '"backend":"[a-z]*","name":"'), $(figure '"generated":') tokens in $(figure '"parks":[0-9]*,"steps":') steps, launches $launches"
}

for n in $(seq "$prompts"); do
    body "$n" >"$dir/$n.body"
done
echo "$(basename "$model"), $prompts prompts of $tokens tokens, $at_once at a time, greedy and sampled"
texts cpu
texts cuda
[ "$launches" = 1 ] || fail "cuda needed $launches launches, expected 1"
[ "$(sort -u "$dir/cpu.texts" | wc -l)" = "$prompts" ] || fail "texts of different prompts are alike"
cmp "$dir/cpu.texts" "$dir/cuda.texts" || fail "the texts differ"
echo "equal: $prompts of $prompts texts, in every token"
