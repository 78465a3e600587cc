#!/bin/sh
# killed.sh DIR - kills check.sh on the emulated driver (HEARTH_LIBCUDA) at four moments and by two signals: every part that
# had ended is in the report, a part that is stopped returns what it measured until then, and a program that survives
# SIGKILL does not hold up the parts after it. The programs are those of GPU_BIN.
set -u
here=$(cd "$(dirname "$0")" && pwd)
out=$1
export GPU_PATIENCE=10 # the machine may be busy with other tests
rm -rf "$out"
mkdir -p "$out"
fail() {
    echo "FAILED  $1"
    exit 1
}

# Parts that check.sh printed, by the log.
ended() {
    awk '$2 ~ /^(ok|failed|timeout)$/ { print $1 }' "$out/log"
}

# in_report FOLDER NAMES...: the report is whole and has the parts.
in_report() {
    folder=$1
    shift
    [ "$(tail -c 2 "$folder/report.json")" = "}" ] || fail "$folder/report.json is not whole"
    for name in "$@"; do
        grep -q "\"part\": \"$name\"" "$folder/report.json" || fail "$folder/report.json lacks $name, which had ended"
        [ -s "$folder/parts/$name.json" ] || fail "$folder/parts lacks $name.json"
    done
}

# A timeout(1) that gives each part half a second more, so that the moments fall between parts and within them.
mkdir "$out/slow"
cat >"$out/slow/timeout" <<'END'
#!/bin/sh
sleep 0.5
exec /usr/bin/timeout "$@"
END
chmod +x "$out/slow/timeout"

# The moment is a number of parts that ended, and a fraction of a second that differs from run to run.
for killed in KILL:1 TERM:2 KILL:3 TERM:4; do
    signal=${killed%:*}
    folder=$out/$killed
    : >"$out/log" # what the last check printed is not this one's
    PATH=$out/slow:$PATH setsid "$here/check.sh" "$folder" --first >"$out/log" 2>&1 &
    check=$!
    tries=0
    while [ "$(ended | wc -l)" -lt "${killed#*:}" ] && [ $tries -lt 3000 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
    sleep "0.$(date +%N | cut -c1-2)"
    if [ "$signal" = KILL ]; then
        kill -s KILL -- "-$check"
        wait "$check" 2>/dev/null
        # shellcheck disable=SC2046 # names; the last part may have ended between its line and the report
        in_report "$folder" $(ended | sed '$d')
        "$here/check.sh" "$folder" --report >/dev/null && fail "a killed check passes"
    else
        kill -TERM "$check"
        wait "$check" 2>/dev/null && fail "a stopped check passes"
    fi
    # shellcheck disable=SC2046 # names
    in_report "$folder" $(ended)
    grep -q 'NOT ENDED' "$folder/report.md" || fail "$folder/report.md does not say that the check was stopped"
done
# The last one was stopped within a part or right after it.
[ ! -e "$out/TERM:4/parts/running" ] || grep -q '"result": "interrupted"' "$out/TERM:4/report.json" || fail "the stopped part is not named"

# A part that is stopped prints the rows that it has. They come at moments that only the machine knows: each try is longer.
for program in "gpu_bench attention" "gpu_witness golden $here/../data"; do
    for tenths in 3 4 6 9 13 20 30 45 68 100 150 225 340 500 750; do
        # shellcheck disable=SC2086 # several words
        timeout -k 5 $((tenths / 10)).$((tenths % 10)) "$GPU_BIN"/$program >"$out/stopped.json" 2>"$out/log"
        rc=$?
        [ $rc = 124 ] || fail "$program is not stopped, but ends with $rc: $(tail -n 3 "$out/log")"
        [ "$(tail -c 2 "$out/stopped.json")" = "}" ] || fail "$program, stopped after $tenths tenths of a second, prints no report"
        grep -q '"error": "stopped before its end' "$out/stopped.json" || fail "$program does not say that it was stopped"
        grep -qE '"(cache|model)":' "$out/stopped.json" && break
    done
    grep -qE '"(cache|model)":' "$out/stopped.json" || fail "$program returns no row when it is stopped"
done

# A part that no signal ends, and a tool: a timeout(1) that never returns for them.
mkdir "$out/stuck" "$out/tools"
cat >"$out/tools/nvidia-smi" <<'END'
#!/bin/sh
END
chmod +x "$out/tools/nvidia-smi"
cat >"$out/stuck/timeout" <<'END'
#!/bin/sh
case "$*" in
*" echo" | *nvidia-smi*) setsid sleep 60 & wait ;;
*) exec /usr/bin/timeout "$@" ;;
esac
END
chmod +x "$out/stuck/timeout"
PATH=$out/stuck:$PATH GPU_TOOLS=$out/tools GPU_PATIENCE=1 GPU_BUDGET_S=120 "$here/check.sh" "$out/hung" --first >"$out/log" 2>&1
grep -qE '^echo +timeout' "$out/log" || fail "the part that hangs is not named: $(cat "$out/log")"
grep -qE '^stream +ok' "$out/log" || fail "a part that hangs stops the others: $(cat "$out/log")"
for moment in before after; do
    grep -q "^- $moment: nvidia-smi does not answer" "$out/hung/report.md" || fail "the tool that hangs $moment the parts is not named: $(cat "$out/hung/report.md")"
done
