#!/bin/sh
# cubins_of_an_install.sh SOURCE TREE PTXAS - configures TREE as one configures a build to install, and counts the rules for machine
# code: each kernel has one for each of the six compute capabilities that PTXAS knows, and none with an empty HEARTH_CUBINS.
# Nothing is built.
set -eu
source=$1 tree=$2 ptxas=$3
rm -rf "$tree"
# rules FLAGS...: the rules of the tree so configured.
rules() {
    cmake -S "$source" -B "$tree" -G Ninja -DCMAKE_BUILD_TYPE=Release -DHEARTH_TESTS=OFF "$@" >"$tree.log" 2>&1 || {
        cat "$tree.log"
        exit 1
    }
    grep -cE '^build [^:]*cubin/[a-z0-9_]*_sm(80|86|89|90|100|120)\.cubin' "$tree/build.ninja" || true
}
known=$("$ptxas" --help | grep -oE 'sm_(80|86|89|90|100|120)\>' | sort -u | wc -l)
kernels=$(find "$source/kernels" -name '*.c' | wc -l)
n=$(rules)
[ "$n" = $((known * kernels)) ] || { echo "FAILED  $n rules for machine code of $kernels kernels, $known capabilities"; exit 1; }
n=$(rules -DHEARTH_CUBINS=)
[ "$n" = 0 ] || { echo "FAILED  $n rules for machine code that nobody wants"; exit 1; }
rm -rf "$tree"
