#!/bin/sh
# kubernetes.sh HEARTHD MODEL MANIFESTS - the manifests against the schemas of Kubernetes, the Prometheus Operator, the Gateway API,
# its Inference Extension and KEDA, where a misspelt field is an error, and their configuration, probes and figures against hearthd.
set -eu
hearthd=$1 model=$2 manifests=$3
here=$(cd "$(dirname "$0")" && pwd)
if ! command -v npm >/dev/null || ! command -v node >/dev/null; then
    echo "SKIP kubernetes npm: node and npm are not installed"
    exit 0
fi
work=$(mktemp -d)
started=
trap 'kill $started 2>/dev/null || true; wait; rm -rf "$work"' EXIT
cp "$here/kubernetes/package.json" "$here/kubernetes/manifests.mjs" "$here/kubernetes/inferencepool.json" "$work"
if ! (cd "$work" && npm install --no-audit --no-fund --no-package-lock --loglevel=error); then
    [ -z "${CI:-}" ] || exit 1 # CI has a registry: there it is a failure
    echo "SKIP kubernetes registry: npm could not install the schemas"
    exit 0
fi
(cd "$work" && node manifests.mjs "$manifests" "$work")

# The same file but for the places in it.
mkdir "$work/keys"
echo a-key >"$work/keys/keys"
chmod 600 "$work/keys/keys"
sed -e "s|/models/model.gguf|$model|; s|/etc/hearth/keys|$work/keys|; s|/var/lib/hearth|$work|" \
    -e 's|^host = .*|host = 127.0.0.1|; s|^port = .*|port = any|' "$work/hearthd.conf" >"$work/here.conf"
"$hearthd" check-config --config "$work/here.conf"

# Starts a daemon and waits until it answers: $started is its process, $url where it listens.
start() {
    "$hearthd" serve --config "$work/here.conf" "$@" 2>"$work/log" >/dev/null &
    started=$!
    url=
    until [ -n "$url" ] && curl -sf "$url/health" >/dev/null; do
        kill -0 "$started" || {
            cat "$work/log"
            exit 1
        }
        sleep 0.1
        url=$(sed -nE 's/.*(http:\/\/127[0-9.:]*).*/\1/p' "$work/log" | head -n 1)
    done
}
start
# As the kubelet asks: by address, without a key.
while read -r path; do
    curl -sf -o /dev/null "$url$path" || {
        echo "kubernetes.sh: $path is not 200"
        exit 1
    }
done <"$work/paths"
# As clients in the cluster do: by the Service's name, with a key.
curl -sf -o /dev/null -H 'Host: hearth.default.svc' -H 'Authorization: Bearer a-key' "$url/metrics"
status=$(curl -s -o /dev/null -w '%{http_code}' "$url/metrics")
[ "$status" = 401 ] || {
    echo "kubernetes.sh: /metrics without a key is $status"
    exit 1
}
# As an endpoint picker and the autoscaler do, in a fleet: without a key.
kill "$started"
wait "$started" || true
start --api-keys-file ''
curl -sf "$url/metrics" >"$work/metrics"
# The Inference Extension's protocol of model servers, by vLLM's names, and what the triggers ask for.
# shellcheck disable=SC2046 # names, one a line
for pattern in '^# TYPE vllm:num_requests_waiting gauge$' '^# TYPE vllm:num_requests_running gauge$' '^# TYPE vllm:kv_cache_usage_perc gauge$' \
    '^vllm:cache_config_info{block_size="64",num_gpu_blocks="[1-9][0-9]*"} 1$' $(sed 's/^/^/' "$work/figures"); do
    grep -qE "$pattern" "$work/metrics" || {
        echo "kubernetes.sh: /metrics has no line $pattern"
        exit 1
    }
done
