#!/bin/sh
# clients.sh HEARTHD MODEL REQUESTS - runs clients from npm, unmodified, against the real daemon: openai with the model's own template,
# then all with one that has tools; then ajv looks at texts of the schemas in the folder beside REQUESTS, and of random ones; last
# a model with a long context, whose prompt opens its reasoning, gets the requests of programs that are no libraries, as they
# were captured in the folder REQUESTS.
set -eu
hearthd=$1
model=$2
requests=$3
here=$(cd "$(dirname "$0")" && pwd)
if ! command -v npm >/dev/null || ! command -v node >/dev/null; then
    echo "SKIP it_clients npm: node and npm are not installed"
    exit 0
fi
work=$(mktemp -d)
daemon=""
trap '[ -z "$daemon" ] || kill "$daemon" || true; wait || true; rm -rf "$work"' EXIT
cp "$here"/clients/* "$work"
if ! (cd "$work" && npm install --no-audit --no-fund --no-package-lock --prefer-offline --loglevel=error); then
    [ -z "${CI:-}" ] || exit 1 # CI has a registry: there it is a failure
    echo "SKIP it_clients registry: npm could not install the clients"
    exit 0
fi

# serve NAME [FLAG...]: starts the daemon, and sets url
serve() {
    log=$work/$1.log
    shift
    "$hearthd" serve --model "$model" --port 0 "$@" 2>"$log" &
    daemon=$!
    url=""
    for _ in $(seq 300); do
        url=$(sed -nE 's/.*listening on (http:[^ ]*).*/\1/p' "$log" | head -n 1)
        [ -z "$url" ] || return 0
        kill -0 $daemon || break
        sleep 0.1
    done
    cat "$log"
    exit 1
}
# run SCRIPT ARGUMENT...: a client's script, and the daemon's last words where it fails
run() {
    (cd "$work" && node "$@") || { tail -n 20 "$log"; exit 1; }
}
serve own
run openai.mjs "$url"
kill $daemon
wait $daemon || true
serve tools --chat-template "$work/tools.jinja"
for client in openai_tools agents anthropic ollama ai langchain langchain_ollama huggingface; do
    echo "# $client"
    run $client.mjs "$url"
done
if [ ! -d "$requests" ]; then
    echo "SKIP it_clients shared-language: no $requests"
    exit 0
fi
run schemas.mjs "$url" "$requests/../schemas"
run random_schemas.mjs "$url" 250
kill $daemon
wait $daemon || true
# Agents send 10,000 tokens and more before the first word.
"${hearthd%/*}/mkmodel" --shape tiny-qwen3 --quant q4_k_m --tokenizer "$model" --n-ctx 65536 --out "$work/long.gguf"
model=$work/long.gguf
serve long --n-ctx 65536 --slots 4 --chat-template "$requests/../templates/Qwen-QwQ-32B.jinja"
run reasoning.mjs "$url"
run replay.mjs "$url" "$requests"
