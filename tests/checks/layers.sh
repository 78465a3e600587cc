#!/bin/sh
# layers.sh - includes point down only: daemon -> lib -> kernels.
set -u
cd "$(dirname "$0")/.."
status=0
names() { git ls-files "$@" | xargs -n1 basename; }
for header in $(names 'daemon/*.h'); do
    git grep -nE "#include \"([a-z_/]*/)?$header\"" -- lib kernels && status=1
done
for header in $(names 'lib/*.h' 'lib/cpu/*.h' 'lib/cuda/*.h'); do
    [ -e "kernels/$header" ] && continue # found beside the file that includes it
    git grep -nE "#include \"([a-z_/]*/)?$header\"" -- kernels && status=1
done
git grep -nE '#include <(microhttpd|jansson|uv|ini)\.h>' -- lib kernels && status=1
[ $status = 0 ] || echo "the includes above point up"
exit $status
