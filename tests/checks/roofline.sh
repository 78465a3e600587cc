#!/bin/sh
# roofline.sh OBJECT... - the int8 ceiling is what the machine code does, not what the C says: in the loop of every
# roofline_*.o nothing touches memory or is called, and with VNNI every accumulator has a register of its own. A loop that spills, or whose
# sums a compiler has found to be one, measures something else, and every fraction of it is wrong.
set -u
status=0 seen=0
for object; do
    case $object in
    *roofline_avx512.c.o) product='vpdpbusd.*%zmm' sums=16 ;;
    *roofline_avxvnni.c.o) product='vpdpbusd.*%ymm' sums=12 ;;
    *roofline_avx2.c.o) product='vpmaddubsw.*%ymm' sums= ;; # its sums are of pairs, which move from register to register
    *roofline_amx.c.o) # the shapes of six tiles, 64 bytes a row, are in memory where ldtilecfg reads them
        objdump -s "$object" | grep -q '40004000 40004000 40004000' && continue
        echo "$object: ldtilecfg reads shapes that were never stored"
        status=1
        continue
        ;;
    *) continue ;;
    esac
    seen=$((seen + 1))
    # From where a backward jump behind products goes to that jump; there is one.
    body=$(objdump -d --no-show-raw-insn "$object" | awk -v product="$product" '
        /^[0-9a-f]+ <int8>:/ { inside = 1; next }
        /^[0-9a-f]+ </ { inside = 0 }
        inside { line[++n] = $0; at = $1; sub(":", "", at); place[at] = n }
        inside && $0 ~ product { last = n }
        inside && $2 ~ /^j/ && ($3 in place) && place[$3] < last { from = place[$3]; to = n; last = 0; loops++ }
        END { if (loops == 1) for (i = from; i <= to; i++) print line[i] }')
    n=$(printf '%s\n' "$body" | grep -c "$product")
    own=$(printf '%s\n' "$body" | sed -n "s/.*$product.*,\(%[xyz]mm[0-9]*\)$/\1/p" | sort -u | wc -l)
    if [ "$n" -lt 12 ] || { [ -n "$sums" ] && { [ $((n % sums)) != 0 ] || [ "$own" != "$sums" ]; }; }; then
        echo "$object: $n $product into $own registers in the loop of int8()${sums:+, which needs $sums}"
        status=1
    fi
    if printf '%s\n' "$body" | grep -e '(%' -e 'call'; then
        echo "$object: the loop of int8() touches memory or calls"
        status=1
    fi
done
[ "$seen" -gt 0 ] || { echo "no object of roofline_*.c given"; exit 1; }
exit $status
