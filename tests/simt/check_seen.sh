#!/bin/sh
# check_seen.sh FILE.ll - fails when a kernel has an access that the compiler's callbacks pass over: a block copy or
# fill of memory that is not the thread's own, or an access of a size other than 1, 2, 4, 8 and 16 bytes.
exec awk '
# Values that point into a local variable: an alloca, and what is derived from one; and the launch arguments, which
# SIMT_KERNEL()s own <kernel>_run() copies from its parameter %0.
/^define/ { delete mine; if ($0 ~ /@[A-Za-z0-9_]+_run\(/) mine["%0"] = 1 }
/= alloca / { mine[$1] = 1 }
/= (bitcast|getelementptr)/ {
    for (i = 3; i <= NF; i++) { name = $i; gsub(/[,)]/, "", name); if (name ~ /^%[0-9A-Za-z._]+$/) { if (name in mine) mine[$1] = 1; break } }
}
/call .*@(llvm\.)?mem(cpy|move|set)/ {
    n = /set/ ? 1 : 2; foreign = 0
    line = $0; sub(/.*@(llvm\.)?mem[^(]*\(/, "", line)
    while (n-- > 0) { if (!match(line, /%[0-9A-Za-z._]+[,)]/)) break; name = substr(line, RSTART, RLENGTH - 1); line = substr(line, RSTART + RLENGTH); if (!(name in mine)) foreign = 1 }
    if (foreign) { print FILENAME ": a block copy or fill goes unseen: " $0; bad = 1 }
}
/^ *(%[^ ]+ = load|store) (volatile )?(\[|\{|i24|i40|i48|i56|i256|<8 x i32>|<4 x i64>|<8 x float>|<4 x double>)/ {
    print FILENAME ": an access of an unusual size goes unseen: " $0; bad = 1
}
END { exit bad }' "$1"
