#!/bin/sh
# constrain.sh HEARTHD LANGUAGE_DIR [flags of constrain.py] - runs constrain.py where Python and the schemas are there.
set -eu
skip() {
    echo "SKIP constrain_schemas $1: $2"
    exit 0
}
command -v python3 >/dev/null || skip python3 "python3 is not installed"
[ -d "$2/schemas" ] || skip shared-language "$2 is not there"
exec python3 "$(dirname "$0")/constrain.py" "$@"
