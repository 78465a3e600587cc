#!/bin/sh
# prometheus.sh HEARTHD MODEL RULES DASHBOARD - a real Prometheus scrapes the daemon, loads the alert rules, fires one, and
# answers every query of the dashboard.
set -eu
hearthd=$1 model=$2 rules=$3 dashboard=$4
for tool in prometheus promtool; do
    if ! command -v "$tool" >/dev/null; then
        echo "SKIP prometheus $tool: not installed (package prometheus)"
        exit 0
    fi
done
dir=$(mktemp -d)
started=
trap 'kill $started 2>/dev/null || true; wait; rm -rf "$dir"' EXIT

fail() {
    echo "prometheus.sh: $*"
    tail -n 5 "$dir"/*.log
    exit 1
}
# Runs its arguments until they succeed, ten minutes at most.
until_true() {
    for _ in $(seq 3000); do
        "$@" && return 0
        sleep 0.2
    done
    return 1
}

promtool check rules "$rules" >"$dir/rules.log" 2>&1 || fail "the rules are broken"

cp "$rules" "$dir/rules.yml"
cp "$(dirname "$0")/prometheus/rules-test.yml" "$dir"
promtool test rules "$dir/rules-test.yml" >"$dir/rules.log" 2>&1 || {
    cat "$dir/rules.log"
    fail "the rules do not fire as they should"
}
# A rule that cannot fire is found.
sed -i 's/resets(hearth_uptime_seconds\[10m\]) > 0/resets(hearth_uptime_seconds[10m]) > 9/' "$dir/rules.yml"
promtool test rules "$dir/rules-test.yml" >/dev/null 2>&1 && fail "the test of the rules passes without HearthRestarted"

"$hearthd" --model "$model" --port 0 --slots 1 --queue-limit 1 --metrics-aliases no >"$dir/hearthd.log" 2>&1 &
started=$!
listening() { grep -q 'curl' "$dir/hearthd.log"; }
until_true listening || fail "hearthd does not start"
at=$(grep -o '127\.0\.0\.1:[0-9]*' "$dir/hearthd.log" | head -n 1)

curl -sf "http://$at/metrics" >"$dir/metrics"
promtool check metrics <"$dir/metrics" >"$dir/metrics.log" 2>&1 || fail "promtool does not like the metrics"

cat >"$dir/prometheus.yml" <<YAML
global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 500ms}
rule_files: ["$rules"]
scrape_configs: [{job_name: hearth, static_configs: [{targets: ["$at"]}]}]
YAML
port=$((20000 + $$ % 12000)) # below those that the system gives out
prometheus --config.file="$dir/prometheus.yml" --storage.tsdb.path="$dir/data" \
    --web.listen-address="127.0.0.1:$port" >"$dir/prometheus.log" 2>&1 &
started="$started $!"
scraped() { curl -sf "http://127.0.0.1:$port/api/v1/query?query=hearth_uptime_seconds" 2>/dev/null | grep -q '"value"'; }
until_true scraped || fail "Prometheus does not scrape"
curl -sf "http://127.0.0.1:$port/api/v1/alerts" | grep -q HearthQueueFull && fail "the alert fires before anything was refused"

# One slot, one place to wait: with six at a time most are refused.
refuse() {
    for _ in 1 2 3 4 5 6; do
        curl -s -o /dev/null -d '{"prompt":"Once","max_tokens":200,"ignore_eos":true}' "http://$at/generate" &
        clients="${clients:-} $!"
    done
    # shellcheck disable=SC2086
    wait $clients
    clients=
    curl -sf "http://127.0.0.1:$port/api/v1/alerts" | grep -q '"alertname":"HearthQueueFull".*"state":"firing"'
}
until_true refuse || fail "the alert does not fire"
echo "HearthQueueFull fired"

# Each of the dashboard's queries finds something by now: none asks for a name that is no figure of ours.
queries=0
while read -r query; do
    asked() { curl -sfG --data-urlencode "query=$query" "http://127.0.0.1:$port/api/v1/query" | grep -q '"value"'; }
    asked || until_true asked || fail "the dashboard asks in vain: $query"
    queries=$((queries + 1))
done <<QUERIES
$(sed -nE 's/.*"expr": "(.*[^\\])".*/\1/p' "$dashboard" | sed -e 's/\\"/"/g' -e 's/\$instance/.*/g' -e 's/\$__rate_interval/1m/g')
QUERIES
[ "$queries" -ge 20 ] || fail "the dashboard has $queries queries"
echo "$queries queries of the dashboard answered"
