#!/bin/sh
# openai_client.sh HEARTHD MODEL - runs the official openai npm client, unmodified, against the real daemon.
set -eu
hearthd=$1
model=$2
here=$(cd "$(dirname "$0")" && pwd)
if ! command -v npm >/dev/null || ! command -v node >/dev/null; then
    echo "SKIP it_openai_client npm: node and npm are not installed"
    exit 0
fi
work=$(mktemp -d)
daemon=""
trap '[ -z "$daemon" ] || kill "$daemon" || true; wait || true; rm -rf "$work"' EXIT
cp "$here/openai/package.json" "$here/openai/client.mjs" "$work"
if ! (cd "$work" && npm install --no-audit --no-fund --no-package-lock --loglevel=error); then
    [ -z "${CI:-}" ] || exit 1 # CI has a registry: there it is a failure
    echo "SKIP it_openai_client registry: npm could not install the client"
    exit 0
fi
"$hearthd" serve --model "$model" --port 0 2>"$work/log" &
daemon=$!
url=""
for _ in $(seq 300); do
    url=$(sed -nE 's/.*listening on (http:[^ ]*).*/\1/p' "$work/log" | head -n 1)
    [ -z "$url" ] || break
    kill -0 $daemon || break
    sleep 0.1
done
[ -n "$url" ] || { cat "$work/log"; exit 1; }
(cd "$work" && node client.mjs "$url")
