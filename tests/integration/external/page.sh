#!/bin/sh
# page.sh HEARTHD MODEL [SHOTS] - the page at / in a real browser; with SHOTS screenshots are left there.
set -eu
hearthd=$1 model=$2 shots=${3:-}
here=$(cd "$(dirname "$0")" && pwd)
if ! command -v npm >/dev/null || ! command -v node >/dev/null; then
    echo "SKIP page npm: node and npm are not installed"
    exit 0
fi
if ! command -v chromium >/dev/null; then
    echo "SKIP page chromium: not installed (package chromium)"
    exit 0
fi
work=$(mktemp -d)
started=
trap 'kill $started 2>/dev/null || true; wait; rm -rf "$work"' EXIT
cp "$here/page/package.json" "$here/page/page.mjs" "$work"
if ! (cd "$work" && npm install --no-audit --no-fund --no-package-lock --loglevel=error); then
    [ -z "${CI:-}" ] || exit 1 # CI has a registry: there it is a failure
    echo "SKIP page registry: npm could not install playwright-core"
    exit 0
fi
# serve LOG FLAGS...: starts a daemon and prints where it listens.
serve() {
    log=$1
    shift
    "$hearthd" serve --model "$model" --port 0 "$@" 2>"$log" >/dev/null &
    started="$started $!"
    url=
    for _ in $(seq 3000); do
        url=$(sed -nE 's/.*listening on (http:[^ ]*).*/\1/p' "$log" | head -n 1)
        [ -z "$url" ] || return 0
        sleep 0.1
    done
    cat "$log"
    exit 1
}
serve "$work/open.log"
open=$url
"${hearthd%/*}/mkmodel" --shape qwen2.5-0.5b --quant q4_0 --n-ctx 2048 --out "$work/slow.gguf"
serve "$work/slow.log" --model "$work/slow.gguf" --speculation off
slow=$url
echo page-key >"$work/keys"
chmod 600 "$work/keys"
serve "$work/keyed.log" --api-keys-file "$work/keys" --cors-origins "$open"
(cd "$work" && timeout 1200 node page.mjs "$open" "$url" "$slow" ${shots:+"$shots"})
