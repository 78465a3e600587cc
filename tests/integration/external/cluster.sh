#!/bin/sh
# cluster.sh HEARTHD MODEL HAPROXY_CFG - three daemons in network namespaces of their own behind HAProxy with the shipped
# configuration. A beginning of a prompt stays with one daemon as long as that one is not asked too much. Under load: one killed
# with -9, one drained and started again, one stopped with SIGSTOP. No request of at most 64 KB may fail, but streams that had
# begun; a larger one on the daemon that dies is an explicit 502.
set -eu
hearthd=$1 model=$2 cfg=$3
for tool in haproxy ip curl; do
    if ! command -v "$tool" >/dev/null; then
        echo "SKIP cluster $tool: not installed (packages haproxy iproute2 curl)"
        exit 0
    fi
done
tag=hx$$
if ! ip netns add "$tag-lb" 2>/dev/null; then
    echo "SKIP cluster netns: this user may not make network namespaces"
    exit 0
fi
dir=$(mktemp -d)
pids=
# shellcheck disable=SC2329 # called by the trap
clean() {
    touch "$dir/stop"
    for p in $pids $(cat "$dir"/pid.* 2>/dev/null); do
        kill -CONT "$p" 2>/dev/null || true
        kill -9 "$p" 2>/dev/null || true
    done
    wait 2>/dev/null || true
    for n in lb 1 2 3; do ip netns del "$tag-$n" 2>/dev/null || true; done
    rm -rf "$dir"
}
trap clean EXIT
fail() {
    echo "cluster.sh: $*"
    grep -vE " 200 [0-9]+ " "$dir"/haproxy.log | tail -n 15
    exit 1
}
until_true() {
    for _ in $(seq 3000); do
        "$@" && return 0
        sleep 0.2
    done
    return 1
}
in_lb() { ip netns exec "$tag-lb" "$@"; }

in_lb ip link set lo up
in_lb ip link add br0 type bridge
in_lb ip addr add 10.77.0.1/24 dev br0
in_lb ip link set br0 up
for n in 1 2 3; do
    ip netns add "$tag-$n"
    ip link add "v$n$$" type veth peer name eth0 netns "$tag-$n"
    ip link set "v$n$$" netns "$tag-lb"
    in_lb ip link set "v$n$$" master br0 up
    ip netns exec "$tag-$n" ip addr add "10.77.0.1$n/24" dev eth0
    ip netns exec "$tag-$n" ip link set eth0 up
    ip netns exec "$tag-$n" ip link set lo up
done
start() {
    ip netns exec "$tag-$1" "$hearthd" --model "$model" --host "10.77.0.1$1" --port 8080 --threads 1 --log-level warn \
        --drain-timeout-ms 300000 --drain-min-ms 4000 >>"$dir/hearthd$1.log" 2>&1 &
    echo $! >"$dir/pid.$1"
}
pid_of() { cat "$dir/pid.$1"; }
for n in 1 2 3; do start $n; done

# `fall 4`: where tests run, a daemon in order may get no processor for the two seconds of `fall 2`, and would be cut from its
# clients, streams included: what is shown is the same, two seconds later.
sed -e "s| fall 2 | fall 4 |" -e "s|server one .*|server one 10.77.0.11:8080|" -e "s|server two .*|server two 10.77.0.12:8080|" \
    -e "s|server three .*|server three 10.77.0.13:8080|" -e "s|/run/haproxy/admin.sock|$dir/admin.sock|" "$cfg" >"$dir/haproxy.cfg"
printf '\nfrontend figures\n    bind 127.0.0.1:8404\n    stats enable\n    stats uri /\n' >>"$dir/haproxy.cfg"
# Not by in_lb: $! would be a shell, which would not take HAProxy with it.
ip netns exec "$tag-lb" haproxy -f "$dir/haproxy.cfg" >"$dir/haproxy.log" 2>&1 &
pids="$pids $!"
front=http://10.77.0.1:8000
ask() { in_lb curl -s -o "$1" -w '%{http_code}\n' --max-time 600 -d "@$2" "$front/generate"; }
ready() { in_lb curl -sf "http://10.77.0.1$1:8080/health" >/dev/null 2>&1; }
for n in 1 2 3; do until_true ready $n || fail "daemon $n does not start"; done
echo '{"prompt":"Once","max_tokens":2}' >"$dir/small"
served() { [ "$(ask /dev/null "$dir/small")" = 200 ]; }
until_true served || fail "the proxy does not serve"

# The same beginning goes to the same daemon: a long prompt is found in the cache the second time.
printf '{"prompt":"' >"$dir/long"
for _ in $(seq 60); do printf 'Tom and Lily went to the park with the dog. '; done >>"$dir/long"
printf '","max_tokens":1,"temperature":0}' >>"$dir/long"
for _ in 1 2 3 4; do ask "$dir/reply" "$dir/long" >/dev/null; done
grep -q '"cached_tokens":[1-9]' "$dir/reply" || fail "the same prompt does not meet its cache: $(cat "$dir/reply")"

# Prints the number of answers of each of the three, as "a b c".
answered() {
    for n in 1 2 3; do
        in_lb curl -s "http://10.77.0.1$n:8080/metrics" | sed -n 's/^hearth_requests_total{outcome="completed"} //p'
    done | tr '\n' ' '
}
# $who becomes the daemons that have answered since $before, as "1 3 ", once they have answered $1 requests together.
answered_by() {
    all() {
        who=$(echo "$before $(answered)" | awk -v all="$1" '{
            for (i = 1; i <= 3; i++) if ($(i + 3) > $i) { n += $(i + 3) - $i; who = who i " " }
            if (n == all) print who }')
        [ -n "$who" ]
    }
    until_true all "$1" || fail "it was not $1 requests that were answered: $before, $(answered)"
}
# Six requests of one beginning, all answered by one daemon. It is asked again below: on a busy machine one may be taken for dead
# meanwhile. Requests that are spread are spread each time.
together() {
    before=$(answered)
    for i in 1 2 3 4 5 6; do
        echo "{\"prompt\":\"Beginning number $1 of a story that is longer than what the proxy looks at: $i\",\"max_tokens\":1}" >"$dir/one"
        [ "$(ask /dev/null "$dir/one")" = 200 ] || fail "a short request was refused"
    done
    answered_by 6
    [ ${#who} = 2 ]
}
homes=
for prefix in 1 2 3 4 5 6 7 8; do
    together $prefix || together $prefix || together $prefix || fail "beginning $prefix was answered by the daemons $who"
    homes="$homes$who"
done
[ "$(echo "$homes" | tr ' ' '\n' | sort -u | grep -c .)" -ge 2 ] || fail "all beginnings are with one daemon: $homes"

# Asked by many at once, a beginning goes to others too (hash-balance-factor), and all are answered.
crowd() {
    before=$(answered)
    crowded=
    for i in $(seq 20); do
        ask /dev/null "$dir/crowd" >"$dir/crowd.$i" &
        crowded="$crowded $!"
    done
    # shellcheck disable=SC2086
    wait $crowded
    [ "$(cat "$dir"/crowd.* | grep -cx 200)" = 20 ] || fail "of twenty at once some were refused: $(cat "$dir"/crowd.*)"
    answered_by 20
    [ ${#who} -gt 2 ]
}
echo '{"prompt":"Once upon a time","max_tokens":100,"ignore_eos":true}' >"$dir/crowd"
crowd || crowd || crowd || crowd || crowd || fail "twenty at once were all answered by daemon $who"

# Workers ask until told to stop, every third time with a body of 64 KB and every third for a stream; what is not a whole 200 is
# written down. A stream that had begun may be cut short, and is counted.
worker() {
    i=0
    while [ ! -e "$dir/stop" ]; do
        i=$((i + 1))
        more='' size=0
        [ $((i % 3)) != 1 ] || size=65536
        [ $((i % 3)) != 2 ] || more=',"stream":true'
        printf '%-*s' "$size" "$(printf '{"prompt":"Child %s of %s said","max_tokens":%s,"ignore_eos":true%s}' \
            "$i" "$1" $((20 + i % 60)) "$more")" >"$dir/ask.$1"
        status=$(ask "$dir/got.$1" "$dir/ask.$1") || true
        if [ "$status" = 200 ] && grep -q '"finish_reason":"length"' "$dir/got.$1"; then
            echo ok >>"$dir/done.$1"
        elif [ -n "$more" ] && [ "${status%%[!0-9]*}" = 200 ] && grep -q '^data: ' "$dir/got.$1"; then
            echo cut >>"$dir/cut.$1"
        else
            echo "worker $1 request $i: status $status $(head -c 300 "$dir/got.$1")" >>"$dir/bad"
        fi
    done
}
workers=
for w in 1 2 3 4 5 6; do
    worker $w &
    workers="$workers $!"
done
count() { cat "$dir"/done.* 2>/dev/null | wc -l; }
# Waits until so many more requests have been answered.
more() {
    target=$(($(count) + $1))
    reached() { [ "$(count)" -ge "$target" ]; }
    until_true reached || fail "only $(count) of $target requests were answered"
}
# Sessions of server $1 at the proxy, and workers that ask for a stream now. A server that is stopped has no less, nor other ones,
# in a moment: with more sessions than there are streams, one is a request of which nothing has been answered.
not_a_stream_on() {
    sessions=$(in_lb curl -s 'http://127.0.0.1:8404/;csv' | awk -F, -v name="$1" '$2 == name { print $5 }')
    [ "${sessions:-0}" -gt "$(grep -l '"stream":true' "$dir"/ask.? | wc -l)" ]
}
# Stops daemon $1, called $2, with a request under way there that is no stream: without one the test would show nothing. What the
# proxy has not read yet it has at the second look.
stop_under_way() {
    for _ in $(seq 500); do
        kill -STOP "$(pid_of "$1")"
        not_a_stream_on "$2" && not_a_stream_on "$2" && return 0
        kill -CONT "$(pid_of "$1")"
        until_true ready "$1" || fail "daemon $1 does not go on"
    done
    fail "daemon $1 never had a request under way that was no stream"
}
more 30
stop_under_way 1 one
kill -9 "$(pid_of 1)"
more 60
start 1
until_true ready 1 || fail "daemon 1 does not start again"

kill -TERM "$(pid_of 2)" # drains: what runs there ends, new work goes elsewhere
more 60
gone() { ! kill -0 "$(pid_of 2)" 2>/dev/null; }
until_true gone || fail "the drained daemon does not end"
start 2
until_true ready 2 || fail "daemon 2 does not start again"
more 30

stop_under_way 3 three # answers nothing any more, its connections stay open
more 60
kill -CONT "$(pid_of 3)"
more 30
touch "$dir/stop"
# shellcheck disable=SC2086
wait $workers
if [ -e "$dir/bad" ]; then
    cat "$dir/bad"
    fail "requests failed"
fi
total=$(count)

# Bodies above 64 KB are not kept: on the daemon that dies they are a 502, elsewhere they are answered.
rm "$dir/stop"
large() {
    { printf '{"prompt":"Story %s of the","max_tokens":700,"ignore_eos":true' "$1"; head -c 150000 /dev/zero | tr '\0' ' '; printf '}'; } >"$dir/large.$1"
    ask /dev/null "$dir/large.$1" >"$dir/status.$1" || true
}
# Starts sixteen, and kills daemon 1 when it has one; on a busy machine that may be over before it is seen, or killed.
large_ones() {
    larges=
    for i in $(seq 16); do
        large "$i" &
        larges="$larges $!"
    done
    asked=0
    until in_lb curl -s http://10.77.0.11:8080/stats | grep -q '"running":[1-9]'; do
        asked=$((asked + 1))
        [ $asked -lt 200 ] || break
    done
    kill -9 "$(pid_of 1)"
    # shellcheck disable=SC2086
    wait $larges
    answers=$(cat "$dir"/status.* | sort | uniq -c | tr -s ' \n' ' ')
    cat "$dir"/status.* | grep -qvE '^(200|502)$' && fail "a large request got neither an answer nor a 502: $answers"
    grep -q 502 "$dir"/status.*
}
for try in 1 2 3 4 5 last; do
    if large_ones; then break; fi
    [ $try != last ] || fail "no large request saw the daemon die: $answers"
    start 1
    until_true ready 1 || fail "daemon 1 does not start again"
done
cut=$(cat "$dir"/cut.* 2>/dev/null | wc -l)
echo "$total requests, none failed; $cut streams were cut after they had begun; large ones:$answers"
