#!/bin/sh
# ptx_gate.sh [--all] EXPECTED CLANG_MAJOR DIRECTORY... - what must hold of the kernels' PTX, checked without a GPU.
#
# Each *_smNN.ptx: .version and .target as the oldest driver wants them, launch bounds written, memory named by its
# space, ordered accesses with order and scope, no non-coherent load, no call, no local memory; the counts of
# barriers, ordered accesses, copies and mma as EXPECTED has them (a barrier that the compiler duplicated shows
# there), no float operation that ptxas may fuse with its neighbour. ptxas then assembles it for the oldest and the newest
# generation that will run it, with --all also for those between: no warning, no spill, no stack, registers within what
# the block size leaves, in the machine code as many barriers and mma as in the PTX, a MEMBAR for each release and a CCTL for each
# acquire. What has passed is not assembled again, in any tree: a stamp in the user's cache (XDG_CACHE_HOME/hearth/ptxas) has the hash of
# file, generation, this script and ptxas as its name.
#
# EXPECTED has a line per file: name, then word=count. `ptx_gate.sh --print EXPECTED CLANG_MAJOR DIRECTORY...` writes
# such lines. They hold for clang 19; with another the counts are not compared.
set -u
print=""
all=""
[ "$1" = --print ] && { print=1; shift; }
[ "$1" = --all ] && { all=1; shift; }
expected=$1
clang=$2
shift 2
status=0
n_files=0
self=$0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "FAILED  $1"
    status=1
}

# The words of simt.h as they stand in the PTX, counted.
counts() {
    grep -oE '^[[:space:]]*(\{ *)?(\.reg[^;]*; *)*(setp[^;]*; *)*(bar\.(sync|red\.or|warp\.sync)|mma\.sync|shfl\.sync|vote\.sync|ld\.(relaxed|acquire)\.(gpu|sys)|st\.(relaxed|release)\.(gpu|sys)|(red|atom)\.(relaxed|release|acq_rel)\.(cta|gpu|sys)|fence\.[a-z_.]+|mbarrier\.[a-z_]+(\.expect_tx)?|cp\.async\.(bulk|cg|commit_group|wait_group|mbarrier))' "$1" |
        sed -E 's/.*[;{[:space:]]//; s/^(mbarrier\.)(try|test)_wait/\1wait/; s/\.$//' | LC_ALL=C sort | uniq -c | awk '{ printf " %s=%s", $2, $1 }'
}

check_text() {
    name=$1 ptx=$2 sm=$3
    case $sm in 80) version=7.8 ;; *) version=8.0 ;; esac
    grep -qxF ".version $version" "$ptx" || fail "$name: .version is not $version: $(grep '^\.version' "$ptx")"
    grep -qxF ".target sm_$sm" "$ptx" || fail "$name: .target is not sm_$sm: $(grep '^\.target' "$ptx")"
    for word in entry maxntid minnctapersm; do
        [ "$(grep -cE "^(\.visible )?\.$word" "$ptx")" = "$(grep -cE '^\.visible \.entry' "$ptx")" ] || fail "$name: an entry without .$word"
    done
    grep -nE 'ld\.global\.nc|ld\.[a-z.]*\.nc|ldu\.' "$ptx" && fail "$name: a non-coherent load, of memory that may be written meanwhile"
    grep -nE '\.local|__local_depot' "$ptx" && fail "$name: local memory"
    grep -nE '(ld|st)\.volatile' "$ptx" && fail "$name: a volatile access orders nothing: simt.h has what does"
    grep -nE '(ld|st)\.(v[24]\.)?[usbf](8|16|32|64)' "$ptx" && fail "$name: an access whose address space clang does not know"
    grep -nE '(^|[[:space:]])(red|atom)\.' "$ptx" | grep -vE '(red|atom)\.(relaxed|release|acq_rel)\.(gpu|sys)\.|atom\.relaxed\.cta\.shared\.' && fail "$name: an atomic without order and scope"
    grep -nE '^[[:space:]]*(@!?%p[0-9]+[[:space:]]+)?(add|sub|mul|div|sqrt|fma)\.(ftz\.|approx\.|full\.)*f32' "$ptx" &&
        fail "$name: a float operation without a rounding mode: ptxas may fuse it"
    grep -nE '^[[:space:]]*(\(.*\), *)?call' "$ptx" && fail "$name: a call"
    true
}

check_counts() {
    name=$1 ptx=$2
    have="$name$(counts "$ptx")"
    want=$(grep -E "^$name( |\$)" "$expected")
    [ "$have" = "$want" ] || fail "$name: the words in it changed
    have: $have
    want: ${want:-no line in $expected}"
}

# Registers that a thread may have: each of an SM's four parts has 16,384, dealt in eights to the warps that come to lie
# there. 17 to 20 warps are five in one part: 96 each, and not the 112 that 65,536 would leave for 18.
budget() {
    awk '/^\.maxntid/ { gsub(",", ""); warps = int(($2 + 31) / 32) } /^\.minnctapersm/ { n = int(16384 / (int((warps * $2 + 3) / 4) * 32) / 8) * 8; if (n > 255) n = 255; if (!least || n < least) least = n } END { print least }' "$1"
}

# The machine code of a cubin in the words of its PTX. An instruction has 16 bytes and the opcode in the lowest 12 bits; the
# numbers are those of sm_80 to sm_120, found by assembling PTX with one instruction of a kind.
sass_counts() {
    readelf -SW "$1" 2>/dev/null | sed -nE 's/.* \.text\.[A-Za-z0-9_]+ +PROGBITS +[0-9a-f]+ ([0-9a-f]+) ([0-9a-f]+) .*/\1 \2/p' |
        while read -r offset size; do
            od -An -v -t x2 -w16 -j $((0x$offset)) -N $((0x$size)) "$1"
        done | awk 'BEGIN { split("b1d bar 91d bar 31d bar 237 mma 992 membar 98f cctl", w); for (i = 1; i in w; i += 2) word[w[i]] = w[i + 1] }
            { n[word[substr($1, 2)]]++ } END { print n["bar"] + 0, n["mma"] + 0, n["membar"] + 0, n["cctl"] + 0 }'
}

# PTX's counts of the same: barriers, mma, releases (each a MEMBAR before its store), acquires (each a CCTL.IVALL behind its
# load, which drops what L1 holds).
ptx_counts() {
    for words in 'bar\.(sync|red)' 'mma\.sync' '(st|red)\.release\.|atom\.acq_rel\.|fence\.(acq_rel|sc)\.' 'ld\.acquire\.|atom\.acq_rel\.|fence\.(acq_rel|sc)\.'; do
        grep -vE '^[[:space:]]*//' "$1" | grep -oE "(^|[^a-z.])($words)" | wc -l
    done
}

# A barrier or mma that ptxas duplicated or dropped, and an order that it dropped. It may duplicate an ordered load.
check_sass() {
    name=$1 generation=$2
    # shellcheck disable=SC2046 # eight numbers
    set -- $(ptx_counts "$3") $(sass_counts "$4")
    [ "$1 $2" = "$5 $6" ] || fail "$name: on sm_$generation ptxas made $5 barriers and $6 mma of $1 and $2"
    [ "$7" -ge "$3" ] || fail "$name: on sm_$generation ptxas made $7 MEMBAR of $3 releases"
    [ "$8" -ge "$4" ] || fail "$name: on sm_$generation ptxas made $8 CCTL of $4 acquires"
}

assemble() {
    name=$1 ptx=$2 sm=$3
    limit=$(budget "$ptx")
    case $sm in # a device takes the newest it can: the older PTX is for the older devices alone
    80) generations="80${all:+ 86} 89" ;;
    *) generations="90${all:+ 100} 120" ;;
    esac
    for generation in $generations; do
        stamp=$stamps/$({ echo "$generation" && "$ptxas" --version && cat "$ptx" "$self"; } | sha256sum | cut -d ' ' -f 1)
        if [ -e "$stamp" ]; then
            touch "$stamp"
            echo "ok      $name on sm_$generation: $(cat "$stamp"), as before"
            continue
        fi
        before=$status
        status=0
        "$ptxas" -v -arch=sm_$generation "$ptx" -o "$work/cubin" >"$work/log" 2>&1 || fail "$name: ptxas for sm_$generation: $(head -n 3 "$work/log")"
        grep -iE 'warning' "$work/log" && fail "$name: ptxas warns for sm_$generation"
        grep -E 'spill|stack' "$work/log" | grep -vE '^ *0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads' && fail "$name: stack or spills on sm_$generation"
        check_sass "$name" "$generation" "$ptx" "$work/cubin"
        used=$(sed -nE 's/.*Used ([0-9]+) registers.*/\1/p' "$work/log" | sort -n | tail -n 1)
        [ "${used:-999}" -le "${limit:-0}" ] || fail "$name: ${used:-no count of} registers on sm_$generation, of $limit"
        [ $status != 0 ] || { echo "$used of $limit registers" >"$stamp"; echo "ok      $name on sm_$generation: $used of $limit registers"; }
        status=$((before | status))
    done
}

ptxas=""
for candidate in ptxas /usr/local/cuda/bin/ptxas /opt/cuda/bin/ptxas; do
    [ -n "$ptxas" ] || ptxas=$(command -v "$candidate" || true)
done

# Stamps that no run has asked for in a month go.
stamps=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/hearth/ptxas
mkdir -p "$stamps" 2>/dev/null && [ -w "$stamps" ] || stamps=$work
[ "$stamps" = "$work" ] || find "$stamps" -type f -mtime +30 -delete

for directory in "$@"; do
    for ptx in "$directory"/*_sm*.ptx; do
        [ -e "$ptx" ] || continue
        n_files=$((n_files + 1))
        name=$(basename "$ptx" .ptx)
        sm=${name##*_sm}
        if [ -n "$print" ]; then
            echo "$name$(counts "$ptx")"
            continue
        fi
        check_text "$name" "$ptx" "$sm"
        [ "$clang" != 19 ] || check_counts "$name" "$ptx"
        [ -z "$ptxas" ] || assemble "$name" "$ptx" "$sm"
    done
done
[ -z "$print" ] || exit 0

if [ "$n_files" = 0 ]; then
    echo "SKIP ptx_gate clang: no clang >= 18 with the NVPTX target is installed"
    exit 0
fi
[ "$clang" = 19 ] || echo "SKIP ptx_gate counts: the table is of clang 19, this is clang $clang"
[ -n "$ptxas" ] || echo "SKIP ptx_gate ptxas: ptxas is not installed"
[ $status = 0 ] && echo "$n_files PTX files in order"
exit $status
