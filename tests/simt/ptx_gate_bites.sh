#!/bin/sh
# ptx_gate_bites.sh GATE EXPECTED CLANG_MAJOR PTX - the gate refuses what it is there to refuse: one PTX file that passes
# is spoilt in one way at a time.
set -u
gate=$1
expected=$2
clang=$3
ptx=$4
[ -e "$ptx" ] || {
    echo "SKIP ptx_gate clang: no clang >= 18 with the NVPTX target is installed"
    exit 0
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export XDG_CACHE_HOME="$work/cache" # no stamp of another run
status=0

# spoil WORDS SED: the gate must say WORDS of what SED makes of the file.
spoil() {
    sed -E "$2" "$ptx" >"$work/$(basename "$ptx")"
    if cmp -s "$ptx" "$work/$(basename "$ptx")"; then
        echo "FAILED  nothing to spoil for: $1"
        status=1
    elif "$gate" "$expected" "$clang" "$work" >"$work/log" 2>&1; then
        echo "FAILED  passed, though: $1"
        status=1
    elif grep -q "FAILED.*$1" "$work/log"; then
        echo "ok      $1"
    else
        echo "FAILED  refused, but not for: $1"
        cat "$work/log"
        status=1
    fi
}

cp "$ptx" "$work/"
"$gate" "$expected" "$clang" "$work" >"$work/log" 2>&1 || {
    cat "$work/log"
    exit 1
}
spoil '\.version is not' 's/^\.version .*/.version 8.5/'
spoil '\.target is not' 's/^\.target .*/&a/'
spoil 'without \.minnctapersm' '/^\.minnctapersm/d'
spoil 'non-coherent' 's/ld\.global\.u32/ld.global.nc.u32/'
spoil 'without order' 's/red\.release\.gpu/red/'
spoil 'volatile' 's/ld\.global\.u32/ld.volatile.global.u32/'
spoil 'address space' 's/ld\.global\.u32/ld.u32/'
spoil 'may fuse it' 's/^\.visible \.entry/add.f32 %f1, %f2, %f3;\n&/'
spoil 'local memory' 's/^\.visible \.entry/.local .b8 x[8];\n&/'
[ "$clang" != 19 ] || spoil 'words in it changed' 's/^([[:space:]]*)bar\.sync 1, (%r[0-9]+);/&\n\1bar.sync 1, \2;/'

# meddle WORDS SED: the same of a ptxas that makes something else of the file: it assembles what SED leaves.
real=$(command -v ptxas || ls /usr/local/cuda/bin/ptxas /opt/cuda/bin/ptxas 2>/dev/null | head -n 1)
meddle() {
    rm -rf "$XDG_CACHE_HOME"
    cat >"$work/bin/ptxas" <<END
#!/bin/sh
for last; do :; done
case "\$1" in -v) sed -E '$2' "\$3" >"$work/other" && [ "\$(cat "\$3" | cksum)" != "\$(cksum <"$work/other")" ] && exec "$real" "\$1" "\$2" "$work/other" -o "\$last" ;; esac
exec "$real" "\$@"
END
    chmod +x "$work/bin/ptxas"
    if PATH=$work/bin:$PATH "$gate" "$expected" "$clang" "$work" >"$work/log" 2>&1 || ! grep -q "FAILED.*$1" "$work/log"; then
        echo "FAILED  not refused: $1: $(cat "$work/log")"
        status=1
    else
        echo "ok      $1"
    fi
}
if [ -n "$real" ]; then
    mkdir "$work/bin" "$work/tree"
    cp "$ptx" "$work/tree/"
    if "$gate" "$expected" "$clang" "$work/tree" | grep -q 'as before'; then
        echo "ok      what passed in one tree is not assembled in another"
    else
        echo "FAILED  assembled again in another tree"
        status=1
    fi
    cp "$ptx" "$work/"
    meddle 'ptxas made [0-9]* barriers' 's/^([[:space:]]*)bar\.sync 1, (%r[0-9]+);/&\n\1bar.sync 1, \2;/'
    meddle 'ptxas made [0-9]* MEMBAR' 's/red\.release\.gpu/red.relaxed.gpu/'
    meddle 'ptxas made [0-9]* CCTL' 's/ld\.acquire\.gpu/ld.relaxed.gpu/'
    meddle 'ptxas put [0-9]* plain loads' 's/ld\.acquire\.gpu(\.global\.u32[^%]*)(%r[0-9]+), \[(%rd[0-9]+)\];/{ .reg .u32 t; ld.relaxed.gpu\1\2, [\3]; ld.global.u32 t, [\3+64]; add.u32 \2, \2, t; fence.acq_rel.gpu; }/'
    # Figures that are kept: with those of another program the gate must say what changed; a loop may grow a little.
    mkdir "$work/kept"
    cp "$gate" "$(dirname "$gate")/sass_figures.sh" "$expected" "$work/kept/"
    registers=$("$real" -v -arch=sm_80 "$ptx" -o "$work/cubin" 2>&1 | sed -nE 's/.*Used ([0-9]+) registers.*/\1/p')
    name=$(basename "$ptx" .ptx)
    figures="$("$work/kept/sass_figures.sh" "$work/cubin" 80) registers=$registers"
    keep() {
        echo "$name sm_80 $(echo "$figures" | sed -E "$2")" >"$work/kept/sass_expected.txt"
        "$work/kept/$(basename "$gate")" "$work/kept/$(basename "$expected")" "$clang" "$work" >"$work/log" 2>&1
        rc=$?
        if { [ -z "$1" ] && [ $rc = 0 ]; } || { [ -n "$1" ] && [ $rc != 0 ] && grep -qE "$1" "$work/log"; }; then
            echo "ok      kept figures: ${1:-as they are}"
        else
            echo "FAILED  kept figures: ${1:-as they are}: $(cat "$work/log")"
            status=1
        fi
    }
    if [ "$clang" = 19 ] && "$real" --version | grep -q 'release 13\.0,'; then
        keep '' 's/x/x/'
        keep 'changed: membar' 's/membar=[0-9]*/membar=99/'
        keep 'changed: registers' 's/registers=[0-9]*/registers=1/'
        keep 'changed: number-of-loops' 's/loops=[^ ]*/loops=10\/2,20\/4/'
    fi
fi
exit $status
