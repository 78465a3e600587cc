#!/bin/sh
# readme.sh [--write] [HEARTHD] - README.md's list of models is what `hearthd inspect --supported` prints, as sentences; --write puts it there.
# It stands between the comment that names this script and the line that begins with "Tokenizers:".
set -eu
cd "$(dirname "$0")/../.."
write=
[ "${1:-}" != --write ] || { write=1 && shift; }
hearthd=${1:-build/bin/hearthd}
made=$(mktemp)
trap 'rm -f "$made"' EXIT
"$hearthd" inspect --supported | awk '
    /^architectures/ { part = "archs" }
    /^weight types/ { part = "types" }
    /^  / && part == "archs" {
        name = "`" $1 "`"
        sub(/^ *[^ ]* */, "")
        archs[++n] = name ($0 == "" ? "" : " (" $0 ")")
    }
    /^  / && part == "types" { sub(/^ */, ""); types = $0 }
    END {
        if (!n || types == "") exit 1
        for (i = 1; i <= n; i++) list = list (i == 1 ? "" : i < n ? ", " : " and ") archs[i]
        print "Architectures: " list ". Cpu and GPU run all of them. Weights, on either: " types "."
    }' | fold -s -w 136 | sed 's/ *$//' >"$made"
grep -q '^Architectures: .' "$made" # a program that failed makes no list
now=$(mktemp)
trap 'rm -f "$made" "$now"' EXIT
awk -v made="$made" '
    /^Tokenizers:/ && inside { while ((getline line <made) > 0) print line; inside = 0 }
    !inside { print }
    /^<!-- tests\/checks\/readme.sh / { inside = 1 }
    END { exit inside }' README.md >"$now" || { echo "readme.sh: README.md has no list of models that ends before \"Tokenizers:\"" && exit 1; }
grep -q '^<!-- tests/checks/readme.sh ' README.md || { echo "readme.sh: README.md has no place for the list of models" && exit 1; }
[ -z "$write" ] || cat "$now" >README.md
diff -u README.md "$now" || { echo "README.md's list of models is old: tests/checks/readme.sh --write" && exit 1; }
