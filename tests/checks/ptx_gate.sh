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
# such lines. They hold for clang 19; with another the counts are not compared. sass_expected.txt beside it has figures of the
# machine code of the large kernels on sm_80 and sm_90: sass_figures.sh, and registers. `--print-sass` writes them, of the kernels' DIRECTORY;
# with another ptxas than theirs they are not compared.
set -u
print=""
all=""
print_sass=""
[ "$1" = --print ] && { print=1; shift; }
[ "$1" = --print-sass ] && { print_sass=1; shift; }
[ "$1" = --all ] && { all=1; shift; }
expected=$1
clang=$2
shift 2
status=0
n_files=0
self=$0
here=$(cd "$(dirname "$0")" && pwd)
sass=$(dirname "$expected")/sass_expected.txt # of this version of ptxas:
sass_ptxas=13.0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "FAILED  $1"
    status=1
}

# The words of simt.h as they stand in the PTX, counted.
counts() {
    grep -oE '^[[:space:]]*(\{ *)?(\.reg[^;]*; *)*(setp[^;]*; *)*(bar\.(sync|red\.or|warp\.sync)|mma\.sync|shfl\.sync|vote\.sync|redux\.sync|ld\.(relaxed|acquire)\.(gpu|sys)|st\.(relaxed|release)\.(gpu|sys)|(red|atom)\.(relaxed|release|acq_rel)\.(cta|gpu|sys)|fence\.[a-z_.]+|mbarrier\.[a-z_]+(\.expect_tx)?|cp\.async\.(bulk|cg|commit_group|wait_group|mbarrier))' "$1" |
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

# PTX's counts of the same: barriers, mma, releases (each a MEMBAR before its store), acquires (each a CCTL.IVALL behind its
# load, which drops what L1 holds).
ptx_counts() {
    for words in 'bar\.(sync|red)' 'mma\.sync' '(st|red)\.release\.|atom\.acq_rel\.|fence\.(acq_rel|sc)\.' 'ld\.acquire\.|atom\.acq_rel\.|fence\.(acq_rel|sc)\.'; do
        grep -vE '^[[:space:]]*//' "$1" | grep -oE "(^|[^a-z.])($words)" | wc -l
    done
}

# figure WORD: its number in $figures.
figure() {
    echo "$figures" | sed -E "s/.*\\b$1=([^ ]*).*/\\1/"
}

# A barrier or mma that ptxas duplicated or dropped, an order that it dropped, a plain load that it moved between an acquiring
# load and what makes that one acquire. It may duplicate an ordered load.
check_sass() {
    name=$1 generation=$2
    figures=$("$here/sass_figures.sh" "$4" "$generation")
    # shellcheck disable=SC2046 # four numbers
    set -- $(ptx_counts "$3")
    [ "$1 $2" = "$(figure bar) $(figure mma)" ] || fail "$name: on sm_$generation ptxas made $(figure bar) barriers and $(figure mma) mma of $1 and $2"
    [ "$(figure membar)" -ge "$3" ] || fail "$name: on sm_$generation ptxas made $(figure membar) MEMBAR of $3 releases"
    [ "$(figure cctl)" -ge "$4" ] || fail "$name: on sm_$generation ptxas made $(figure cctl) CCTL of $4 acquires"
    [ "$(figure weak)" = 0 ] || fail "$name: on sm_$generation ptxas put $(figure weak) plain loads between an acquiring load and its CCTL"
}

# The figures that are kept, of the kernels with main loops, for one version of ptxas. Counts must be the same; a loop may take
# up to a twentieth more instructions, and fewer.
check_kept() {
    name=$1 generation=$2 figures="$figures registers=$3"
    kept=$(grep -E "^$name sm_$generation " "$sass") || return 0
    echo "$figures" | awk -v kept="$kept" '
        function number(line, word,  n, f, i) {
            n = split(line, f, /[ =]/)
            for (i = 1; i < n; i++) if (f[i] == word) return f[i + 1]
        }
        {
            n = split("bar mma membar cctl warpsync", words, " ")
            for (i = 1; i <= n; i++) if (number($0, words[i]) != number(kept, words[i])) bad = bad " " words[i]
            if (number($0, "registers") + 0 > number(kept, "registers") + 0) bad = bad " registers"
            n = split(number($0, "loops"), have, ",")
            if (n != split(number(kept, "loops"), want, ",")) bad = bad " number-of-loops"
            else for (i = 1; i <= n; i++) {
                if (have[i] == want[i]) continue
                split(have[i], h, "/"); split(want[i], w, "/")
                if (h[2] != w[2] || h[1] > w[1] * 1.05) bad = bad " loop-" i
            }
            if (bad) { print bad; exit 1 }
        }' >"$work/changed" || fail "$name: its machine code for sm_$generation changed:$(cat "$work/changed")
    have: $figures
    want: $kept"
}

# Registers of the kernel that has most, as ptxas says.
most_registers() {
    sed -nE 's/.*Used ([0-9]+) registers.*/\1/p' "$work/log" | sort -n | tail -n 1
}

assemble() {
    name=$1 ptx=$2 sm=$3
    limit=$(budget "$ptx")
    case $sm in # a device takes the newest it can: the older PTX is for the older devices alone
    80) generations="80${all:+ 86} 89" ;;
    *) generations="90${all:+ 100} 120" ;;
    esac
    for generation in $generations; do
        stamp=$stamps/$({ echo "$generation" && "$ptxas" --version && cat "$ptx" "$self" "$here/sass_figures.sh" "$sass"; } | sha256sum | cut -d ' ' -f 1)
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
        used=$(most_registers)
        [ "${used:-999}" -le "${limit:-0}" ] || fail "$name: ${used:-no count of} registers on sm_$generation, of $limit"
        [ -n "$other_ptxas" ] || [ "$clang" != 19 ] || check_kept "$name" "$generation" "${used:-999}"
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

other_ptxas=""
[ -z "$ptxas" ] || "$ptxas" --version | grep -q "release $sass_ptxas," || other_ptxas=1

if [ -n "$print_sass" ]; then
    [ -n "$ptxas" ] || { echo "ptx_gate.sh: --print-sass needs ptxas" >&2; exit 2; }
    for name in attention mul_mat persistent_decoder; do
        for generation in 80 90; do
            "$ptxas" -v -arch=sm_$generation "$1/${name}_sm$generation.ptx" -o "$work/cubin" 2>"$work/log" || exit 1
            echo "${name}_sm$generation sm_$generation $("$here/sass_figures.sh" "$work/cubin" $generation) registers=$(most_registers)"
        done
    done
    exit 0
fi

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
[ -z "$other_ptxas" ] || echo "SKIP ptx_gate sass: sass_expected.txt is of ptxas $sass_ptxas, this is another"
[ $status = 0 ] && echo "$n_files PTX files in order"
exit $status
