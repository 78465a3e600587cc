#!/bin/sh
# checklist.sh - the tests that CHECKLIST.md and OPERATIONS.md name exist, and git keeps every script with its execute bit.
set -u
cd "$(dirname "$0")/.."
status=0
# The last column alone: the others' words in backquotes are no tests.
for name in $(sed -nE 's/^\| P[0-9] .*\| ([^|]*) \|$/\1/p' checks/CHECKLIST.md | tr ',' '\n' | tr -d '` ') \
    $(grep -oE '`(it|test)_[a-z_]+/[a-z0-9_]+`' ../config/OPERATIONS.md | tr -d '`'); do
    file=$(git ls-files -- "*/${name%%/*}.c" "*/${name%%/*}.sh")
    case $name in
    */*) [ -n "$file" ] && grep -qE "\(.*\b${name#*/}\b" $file && continue ;;
    *) [ -n "$file" ] && continue ;;
    esac
    echo "there is no test $name"
    status=1
done
cd ..
for file in $(git ls-files -s | awk '$1 == "100644" { print $4 }'); do
    [ "$(head -c 2 "$file" | tr -d '\0')" = '#!' ] || continue
    echo "$file is not executable in git: git update-index --chmod=+x $file"
    status=1
done
exit $status
