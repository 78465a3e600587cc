#!/bin/sh
# trace.sh - "A token's way" in lib/README.md is true: each function stands in the file that the list gives it, and the figures below the
# list are those of the list.
set -u
cd "$(dirname "$0")/../.."
list=$(awk '/^## /{ on = 0 } /^## A token/ { on = 1 } on && /^(1\. \*\*Connect|Counted)/ { listing = /^1/ } on && listing' lib/README.md)
# One line per file of the list, in its order: the file, then its functions. Words in brackets are remarks.
stops=$(echo "$list" | tr '\n' ' ' | sed -E 's/\(([^()]|\(\))*\)//g; s/[0-9]+\. +\*\*[^*]*\*\*[^`]*/ · /g; s/:[^`·]*//g' | tr '`,·' '\n  ' |
    awk '/^[a-zA-Z_0-9\/]+\.[ch]$/ { file = $0; next } NF && file { print file, $0; file = "" }')
status=0
while read -r file names; do
    path=$(git ls-files "$file" "daemon/**/$file" "lib/**/$file")
    for name in $names; do
        grep -qE "^[a-z].*\b(NAME\()?$name\)?\(" $path || { echo "$file has no function $name"; status=1; }
    done
done <<END
$stops
END
counted=$(echo "$stops" | awk '{ n += NF - 1; n_files += !seen[$1]++; n_changes += NR > 1 && $1 != last; last = $1 }
    END { printf "Counted: %d functions in %d files, and %d changes of file.", n, n_files, n_changes }')
grep -qF "$counted" lib/README.md || { echo "lib/README.md should say: $counted"; status=1; }
exit $status
