#!/bin/sh
# sass_figures.sh CUBIN SM - figures of the machine code of a cubin, on one line: barriers, mma, MEMBAR, CCTL, barriers behind a
# WARPSYNC, weak loads between an acquiring load and its CCTL, and the innermost loops that have mma, as instructions/mma.
#
# An instruction has 16 bytes and its opcode in the lowest 12 bits. The opcodes, the order of a load (bits 77 to 80) and the
# distance of a branch are those of sm_80 to sm_120, found by assembling PTX with one instruction of a kind.
set -u
readelf -SW "$1" 2>/dev/null | sed -nE 's/.* \.text\.[A-Za-z0-9_]+ +PROGBITS +[0-9a-f]+ ([0-9a-f]+) ([0-9a-f]+) .*/\1 \2/p' |
    while read -r offset size; do
        od -An -v -t x4 -w16 -j $((0x$offset)) -N $((0x$size)) "$1"
        echo end
    done | awk -v sm="$2" '
function hex(text,  i, v) {
    for (i = 1; i <= length(text); i++) v = v * 16 + index("0123456789abcdef", substr(text, i, 1)) - 1
    return v
}
# Returns the length of a jump from its end, in instructions.
function distance(word, high,  v) {
    v = hex(high)
    if (v >= 2147483648) v -= 4294967296
    if (sm < 90) return v / 16
    return (int(v / 4) * 256 + (v < 0 && v % 4 ? -256 : 0) + hex(substr(word, 3, 2))) / 4
}
function end_of_text(  i, j, inner, list) {
    for (i = 1; i <= n_loops; i++) {
        inner = mma_before[last[i] + 1] > mma_before[first[i]]
        for (j = 1; j <= n_loops && inner; j++)
            if (j != i && first[j] >= first[i] && last[j] <= last[i] && last[j] - first[j] < last[i] - first[i] && mma_before[last[j] + 1] > mma_before[first[j]])
                inner = 0
        if (inner) loops = loops (loops == "" ? "" : ",") (last[i] - first[i] + 1) "/" (mma_before[last[i] + 1] - mma_before[first[i]])
    }
    n_loops = at = n_mma_here = 0
    synced = load = -1
}
BEGIN { synced = load = -1 }
$1 == "end" { end_of_text(); next }
{
    opcode = substr($1, 6)
    mma_before[at] = n_mma_here
    if (opcode == "b1d" || opcode == "91d" || opcode == "31d") { bar++; if (synced >= 0 && at - synced <= 4) warpsync++ }
    if (opcode == "948" || opcode == "348") synced = at
    if (opcode == "237") { mma++; n_mma_here++ }
    if (opcode == "992") membar++
    if (opcode == "98f") { cctl++; if (load >= 0) weak += weak_since; load = -1 }
    if (opcode == "981") {
        order = hex(substr($3, 4, 2)) # bits 76 to 83
        if (int(order / 2) % 16) { load = at; weak_since = 0 } else weak_since++
    }
    if (opcode ~ /^(947|94d|3a8|9a8|b1d)$/) load = -1 # another block of instructions, an atomic operation
    if (opcode == "947") {
        d = distance($1, $2)
        if (d < -1 && at + 1 + d >= 0) { n_loops++; first[n_loops] = at + 1 + d; last[n_loops] = at }
    }
    at++
    mma_before[at] = n_mma_here
}
END { printf "bar=%d mma=%d membar=%d cctl=%d warpsync=%d weak=%d loops=%s\n", bar, mma, membar, cctl, warpsync, weak, loops == "" ? "none" : loops }'
