#!/bin/sh
# tls.sh HEARTHD MODEL - HTTPS on its own port; a certificate changed on SIGHUP; a broken one leaves the old.
set -eu
hearthd=$1 model=$2
if ! command -v certtool >/dev/null; then
    echo "SKIP tls certtool: not installed (package gnutls-bin)"
    exit 0
fi
dir=$(mktemp -d)
started=
trap 'kill $started 2>/dev/null || true; wait; rm -rf "$dir"' EXIT
fail() {
    echo "tls.sh: $*"
    cat "$dir/log"
    exit 1
}
until_true() {
    for _ in $(seq 3000); do
        "$@" && return 0
        sleep 0.1
    done
    return 1
}
# make NAME: key and self-signed certificate of that name, for localhost.
make() {
    printf 'cn = "%s"\ndns_name = "localhost"\nip_address = "127.0.0.1"\nexpiration_days = 30\nsigning_key\n' "$1" >"$dir/template"
    certtool --generate-privkey --key-type ecdsa --outfile "$dir/key.pem" 2>/dev/null
    certtool --generate-self-signed --load-privkey "$dir/key.pem" --template "$dir/template" --outfile "$dir/cert.pem" 2>/dev/null
}
make first
cp "$dir/cert.pem" "$dir/first.pem"
port=$((20000 + $$ % 12000)) # below those that the system gives out
"$hearthd" --model "$model" --port 0 --tls-port $port --tls-certificate "$dir/cert.pem" --tls-key "$dir/key.pem" >"$dir/log" 2>&1 &
started=$!
healthy() { curl -sf --cacert "$1" "https://localhost:$port/health" >/dev/null 2>&1; }
until_true healthy "$dir/first.pem" || fail "no HTTPS"
grep -q "https://127.0.0.1:$port" "$dir/log" || fail "the start line does not name the TLS port"
"$hearthd" --model "$model" --port 0 --tls-port $port --tls-certificate "$dir/cert.pem" --tls-key "$dir/key.pem" >"$dir/second" 2>&1 &&
    fail "the TLS port is taken twice"
grep -q "https://127.0.0.1:$port: Address already in use" "$dir/second" || fail "a TLS port in use: $(cat "$dir/second")"
body='{"prompt":"Once upon a time","max_tokens":8,"temperature":0,"stream":true}'
curl -sfN --cacert "$dir/first.pem" -d "$body" "https://localhost:$port/generate" | grep -q '\[DONE\]' || fail "no stream over TLS"
curl -sf "http://localhost:$port/health" >/dev/null 2>&1 && fail "plain HTTP is answered on the TLS port"
# TLS 1.2 and 1.3, nothing older; a client that could speak it (where OpenSSL has it still) is turned away.
for version in 1.2 1.3; do
    curl -sf --tlsv$version --tls-max $version --cacert "$dir/first.pem" "https://localhost:$port/health" >/dev/null || fail "no TLS $version"
done
curl -sf --tlsv1.0 --tls-max 1.1 --ciphers DEFAULT@SECLEVEL=0 --cacert "$dir/first.pem" "https://localhost:$port/health" >/dev/null 2>&1 &&
    fail "TLS 1.1 is answered"

# A running stream goes on while the certificate changes under it.
curl -sfN --cacert "$dir/first.pem" -d '{"prompt":"Once","max_tokens":900,"ignore_eos":true,"stream":true}' \
    "https://localhost:$port/generate" >"$dir/stream" &
stream=$!
streaming() { [ -s "$dir/stream" ]; }
until_true streaming || fail "the stream does not begin"
make second
kill -HUP "$started"
until_true healthy "$dir/cert.pem" || fail "the new certificate is not used"
healthy "$dir/first.pem" && fail "the old certificate is still used"
wait $stream || fail "a stream broke when the certificate changed"
grep -q '\[DONE\]' "$dir/stream" || fail "a stream ended early when the certificate changed"

echo "no certificate" >"$dir/broken"
cp "$dir/cert.pem" "$dir/second.pem"
cp "$dir/broken" "$dir/cert.pem"
kill -HUP "$started"
told() { grep -q "the current one stays in use: second" "$dir/log"; }
until_true told || fail "a broken certificate is not told"
healthy "$dir/second.pem" || fail "a broken certificate took the good one away"
kill -TERM "$started"
wait "$started" || fail "exit code $?"
started=
echo "https, changed and kept"
