#!/bin/sh
# chaos.sh BIN MODEL [root] - all that goes wrong around a daemon, one after the other, and what came of it. BIN holds hearthd and the
# programs it_starved, it_chaos and it_smuggling. As root also: a cache on a file system that is full, and a network that loses one
# packet in ten (with `root` these alone). What this machine cannot do is said in a line that begins with "not here".
set -eu
bin=$1 model=$2 only=${3:-}
dir=$(mktemp -d)
tag=hc$$
started=
# shellcheck disable=SC2329 # called by the trap
clean() {
    [ -z "$started" ] || kill "$started" 2>/dev/null || true
    wait
    umount "$dir/disk" 2>/dev/null || true
    for n in a b; do ip netns del "$tag-$n" 2>/dev/null || true; done
    rm -rf "$dir"
}
trap clean EXIT
trap 'exit 1' INT TERM
fail() {
    echo "chaos.sh: $*"
    tail -n 5 "$dir/log"
    exit 1
}
# serve PREFIX... -- FLAGS...: starts hearthd, by the commands of PREFIX.
serve() {
    : >"$dir/log"
    prefix=
    while [ "$1" != -- ]; do
        prefix="$prefix $1"
        shift
    done
    shift
    # shellcheck disable=SC2086
    $prefix "$bin/hearthd" --config /dev/null --model "$model" "$@" 2>"$dir/log" &
    started=$!
    at= # from the line with the URL: a warning with the same words may come before it
    until [ -n "$at" ]; do
        kill -0 "$started" || fail "hearthd does not start"
        sleep 0.1
        at=$(sed -nE 's/.*listening on http:\/\/([0-9.:]*).*/\1/p' "$dir/log" | head -n 1)
    done
}
stop() {
    kill "$started"
    wait "$started" || fail "hearthd left with $?"
    started=
}

programs="it_starved it_chaos it_smuggling"
[ "$only" != root ] || programs=
for tests in $programs; do
    "$bin/$tests" --verbose >"$dir/$tests" 2>&1 || {
        cat "$dir/$tests"
        exit 1
    }
    sed -nE 's/^\[PASS\] (.*): .*/passed: \1/p; s/^(.*: passes)$/    \1/p' "$dir/$tests"
done

# Room for less than one page of the cache.
disk() {
    mkdir "$dir/disk"
    mount -t tmpfs -o size=64k tmpfs "$dir/disk" 2>/dev/null || {
        echo "not here: a full file system (this user may not mount one)"
        return
    }
    serve -- --port 0 --prefix-cache-dir "$dir/disk/cache"
    awk 'BEGIN { printf "{\"temperature\":0,\"max_tokens\":4,\"prompt\":[1"; for (i = 1; i < 700; i++) printf ",%d", 20 + i * 7 % 200; print "]}" }' >"$dir/prompt"
    for _ in 1 2 3; do curl -sf -o /dev/null -d "@$dir/prompt" "http://$at/generate" || fail "a request failed on a full disk"; done
    until curl -sf "http://$at/stats" | grep -q '"errors":[1-9]'; do sleep 0.1; done
    echo "passed: a full file system: three requests answered, $(curl -sf "http://$at/stats" | grep -o '"prefix_disk":{[^}]*}')"
    stop
}

# Every tenth packet of both directions is lost, by netem or else by nftables.
lose() {
    for n in a b; do
        if ! ip netns exec "$tag-$n" tc qdisc add dev eth0 root netem loss 10% 2>/dev/null; then
            ip netns exec "$tag-$n" nft "add table inet lossy; add chain inet lossy in { type filter hook input priority 0; };
                add rule inet lossy in numgen random mod 10 == 0 counter drop" 2>/dev/null || return 1
        fi
    done
}
loss() {
    if ! command -v ip >/dev/null || ! ip netns add "$tag-a" 2>/dev/null; then
        echo "not here: packet loss (no network namespaces)"
        return
    fi
    ip netns add "$tag-b"
    ip link add eth0 netns "$tag-a" type veth peer name eth0 netns "$tag-b"
    ip netns exec "$tag-a" ip addr add 10.78.0.1/24 dev eth0
    ip netns exec "$tag-b" ip addr add 10.78.0.2/24 dev eth0
    for n in a b; do ip netns exec "$tag-$n" ip link set eth0 up; done
    if ! lose; then
        echo "not here: packet loss (neither netem nor nftables in this kernel and its tools)"
        return
    fi
    serve ip netns exec "$tag-a" -- --host 10.78.0.1 --port 8080
    for _ in $(seq 100); do # the link takes a moment to come up
        ! ip netns exec "$tag-b" curl -sf --max-time 60 -o /dev/null "http://$at/health" || break
        sleep 0.1
    done
    began=$(date +%s)
    streams=
    for i in $(seq 20); do
        ip netns exec "$tag-b" curl -sSN --max-time 300 -o "$dir/stream$i" \
            -d "{\"prompt\":\"Child $i\",\"max_tokens\":100,\"ignore_eos\":true,\"stream\":true}" "http://$at/generate" &
        streams="$streams $!"
    done
    for i in $streams; do wait "$i" || fail "a client gave up"; done
    for i in $(seq 20); do
        [ "$(grep -c '^data: \[DONE\]' "$dir/stream$i")" = 1 ] || fail "stream $i is not whole"
        [ "$(grep -o '"tokens":\[[0-9]' "$dir/stream$i" | wc -l)" -gt 10 ] || fail "stream $i has no tokens"
    done
    sent_again=$(ip netns exec "$tag-a" nstat -asz TcpRetransSegs | awk '$1 == "TcpRetransSegs" { print $2 }')
    [ "$sent_again" -gt 0 ] || fail "no packet was lost"
    echo "passed: 10 % of all packets lost: 20 streams whole, $sent_again segments sent again, $(($(date +%s) - began)) s"
    stop
}

if [ "$(id -u)" = 0 ]; then
    disk
    loss
else
    echo "not here: a full file system and packet loss (they need root)"
fi
