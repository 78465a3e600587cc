#!/bin/sh
# clients.sh HEARTHD MODEL REQUESTS - runs clients from npm, unmodified, against the real daemon: openai with the model's own template,
# then all with one that has tools; then the requests of programs that are no libraries, as they were
# captured in the folder REQUESTS; last ajv looks at texts of the schemas in the folder beside it, and of random ones.
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
serve own
(cd "$work" && node openai.mjs "$url")
kill $daemon
wait $daemon || true
serve tools --chat-template "$work/tools.jinja"
for client in openai_tools anthropic ollama ai langchain langchain_ollama huggingface; do
    echo "# $client"
    (cd "$work" && node $client.mjs "$url") || { tail -n 20 "$log"; exit 1; }
done
if [ ! -d "$requests" ]; then
    echo "SKIP it_clients shared-language: no $requests"
    exit 0
fi
for held in "replay.mjs $url $requests" "schemas.mjs $url $requests/../schemas" "random_schemas.mjs $url 250"; do
    # shellcheck disable=SC2086 # words
    (cd "$work" && node $held) || { tail -n 20 "$log"; exit 1; }
done
