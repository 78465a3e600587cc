# check_tools.sh - the vendor's tools on the small model, where they are installed; sourced by check.sh. Each part is
# bounded like any other. A finding fails the part, and the tool's own report stays in DIR.

# tool NAME: prints its path. GPU_TOOLS, a folder, goes first; beside another driver (the emulated one) it is the only place.
tool() {
    for place in "${GPU_TOOLS:-}/$1" ${HEARTH_LIBCUDA:+/} "$(command -v "$1" || true)" "/usr/local/cuda/bin/$1" "/usr/local/nvidia/bin/$1" \
        /opt/nvidia/nsight-compute/*/"$1"; do
        [ "$place" != / ] || break
        [ ! -x "$place" ] || { echo "$place"; return; }
    done
}

# health MOMENT: keeps `nvidia-smi -q` as DIR/smi-MOMENT.txt, and notes for the report each active throttle reason, each
# ECC count above 0, and the Xid lines of the kernel's log that came since the last moment.
health() {
    smi_query=$(tool nvidia-smi)
    if [ -n "$smi_query" ] && [ -z "$smi_hangs" ]; then
        bounded 10 "$smi_query" -q >"$out/smi-$1.txt" 2>&1
        case $rc in
        0) ask_smi "$1" ;;
        124 | 137) smi_hangs=1 ;;
        *) echo "$1: nvidia-smi -q failed: $(tail -n 1 "$out/smi-$1.txt")" >>"$work/health" ;;
        esac
    fi
    [ -z "$smi_hangs" ] || echo "$1: nvidia-smi does not answer" >>"$work/health"
    ask_log "$1"
}

# The states in DIR/smi-MOMENT.txt.
ask_smi() {
    awk -F ' *: ' -v moment="$1" '
        !/:/ { section = $0; gsub(/^ +| +$/, "", section); if (/ECC/) ecc = 1; else if (/^    [^ ]/) ecc = 0 }
        { name = $1; gsub(/^ +| +$/, "", name) }
        section ~ /(Throttle|Event) Reasons/ && $2 == "Active" && name != "Idle" { print moment ": throttled: " name; n++ }
        ecc && $2 ~ /^[1-9][0-9]*$/ { print moment ": ECC " section ": " name ": " $2; n++ }
        END { if (!n) print moment ": not throttled, no ECC errors" }' "$out/smi-$1.txt" >>"$work/health"
}

# The Xid lines of the kernel's log.
ask_log() {
    dmesg_tool=$(tool dmesg)
    [ -n "$dmesg_tool" ] || return 0
    bounded 10 "$dmesg_tool" >"$work/dmesg" 2>/dev/null || return 0
    xids=$(grep 'NVRM: Xid' "$work/dmesg") || true
    n_xids=$(printf '%s' "$xids" | grep -c .)
    [ -z "${xids_before:-}" ] || printf '%s\n' "$xids" | tail -n "+$((xids_before + 1))" | sed -n "s/^..*/$1: &/p" >>"$work/health"
    xids_before=$n_xids
}

# missing PART TOOL: notes a part that has no tool.
missing() {
    echo "$2 is not installed" >"$work/$1.err"
    note "$1" figure left-out 0
}

# with_tool NAME LOG COMMAND...: a part whose report is LOG in DIR, and its end on stderr if the command fails.
with_tool() {
    name=$1 log=$out/$2
    shift 2
    # shellcheck disable=SC2016 # for the inner shell
    part "$name" figure 8 sh -c 'log=$1; shift; "$@" || { rc=$?; tail -n 8 "$log" >&2; exit $rc; }' sh "$log" "$@"
}

check_tools() {
    model=$data/tiny-qwen3-s11-q4_k_m.gguf
    sanitizer=plan profiler=plan # a plan has room for both
    [ -n "$plan" ] || sanitizer=$(tool compute-sanitizer)
    for check in memcheck racecheck synccheck; do
        [ -n "$sanitizer" ] || { missing "sanitizer-$check" compute-sanitizer; continue; }
        with_tool "sanitizer-$check" "sanitizer-$check.txt" "$sanitizer" --tool "$check" --error-exitcode 9 --print-limit 20 \
            --log-file "$out/sanitizer-$check.txt" "$bin/gpu_witness" tokens "$model" 1 2 1
    done
    # ncu runs a kernel several times: the resident one, which talks with the host, cannot be; its nodes can. The device's
    # clocks are left alone: it may be lent.
    [ -n "$plan" ] || profiler=$(tool ncu)
    [ -n "$profiler" ] || { missing ncu ncu; return; }
    with_tool ncu ncu.txt "$profiler" --clock-control none --launch-skip 20 --launch-count 20 --log-file "$out/ncu.txt" \
        "$bin/hearthd" bench --config /dev/null --json --model "$model" --backend cuda --executor eager --n-ctx 128 -p 6 -n 2 -b 1 -r 1
}
