#!/bin/sh
# trace.sh - what lib/README.md says of the code is true: in "A token's way" each function stands in the file that the list gives it, and
# the figures below are those of the list; in "How to add" each word of the code in backquotes exists, and stands in the file that is
# said to have it ("`ops[]` in `graph.c`", "`ops[]` of `graph.c`", "`struct config` (`config.h`)").
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

# "How to add": one word of the code a line, and the file that it is said to stand in, if any. (links.sh looks for the files.)
words=$(sed -n '/^## How to add/,/^## Errors/p' lib/README.md | tr '\n' ' ' | tr -s ' ' |
    grep -oE '`[^`./ -]+( [a-z_]+)?`((,? (in|of)|) \(?`[a-z_]+\.[ch]`)?' | sed -E 's/`,? (in|of)/ /; s/[]`(),[]/ /g; s/^ *(struct|enum) //')
while read -r word file; do
    where=${file:+$(git ls-files "$file" "**/$file")}
    # shellcheck disable=SC2086 # several files
    git grep -qwF -- "$word" ${where:-lib daemon kernels} ":!*.md" || { echo "there is no $word${file:+ in $file}, which \"How to add\" names"; status=1; }
done <<END
$words
END
exit $status
