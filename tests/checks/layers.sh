#!/bin/sh
# layers.sh - who may include whom, room by room: daemon -> lib -> kernels/abi. A room is a folder; the table names the rooms that each
# may include beside its own, all of them in rows above, so that there is no circle. A header NAME_private.h is included from its own
# folder alone.
set -u
cd "$(dirname "$0")/../.."
table=$(sed '1,/^# table$/d; s/^# //' "$0")
found=$(git grep -n '#include ["<]' -- 'daemon/*.[ch]' 'lib/*.[ch]' 'kernels/*.[ch]' | awk -F: -v files="$(git ls-files daemon lib kernels)" -v table="$table" '
    function room(path, parts) { return split(path, parts, "/") > 2 ? parts[1] "/" parts[2] : parts[1] }
    function folder(path) { sub("/[^/]*$", "", path); return path }
    BEGIN {
        n = split(files, list, "\n")
        for (i = 1; i <= n; i++) exists[list[i]] = 1
        n = split(table, rows, "\n")
        for (i = 1; i <= n; i++) {
            split(rows[i], row, ": *")
            m = split(row[2], rooms, " ")
            for (k = 1; k <= m; k++) allowed[row[1], rooms[k]] = 1
            for (k = 1; k <= m; k++) if (!(rooms[k] in above) && index(table, "\n" rooms[k] ":")) print row[1] " stands above " rooms[k] " in the table, which it includes"
            above[row[1]] = 1
        }
    }
    $0 ~ /#include <(microhttpd|jansson|uv|ini|gnutls.*)\.h>/ && $1 !~ /^daemon/ { print $0 "  (a library of the daemon)" }
    {
        if (split($0, quoted, "\"") < 3) next
        name = quoted[2]
        to = ""
        n = split(folder($1) "/ lib/ kernels/ daemon/", roots, " ")
        for (i = 1; i <= n && !to; i++) if ((roots[i] name) in exists) to = roots[i] name
        if (!to) next # simt.h includes the emulator beside the tests
        from = room($1)
        if (from != room(to) && !((from, room(to)) in allowed)) print $0 "  (" from " does not include " room(to) ")"
        if (to ~ /_private\.h$/ && folder(to) != folder($1)) print $0 "  (private to " folder(to) ")"
    }')
[ -z "$found" ] && exit 0
echo "$found"
exit 1
# table
# kernels/device: kernels/abi
# kernels/matmul: kernels/abi kernels/device
# kernels/attention: kernels/abi kernels/device
# kernels/sampling: kernels/abi kernels/device
# kernels/experts: kernels/abi kernels/device kernels/matmul
# kernels/recurrent: kernels/abi kernels/device
# kernels/persistent: kernels/abi kernels/device kernels/matmul kernels/attention kernels/sampling kernels/experts kernels/recurrent
# kernels/nodes: kernels/abi kernels/device kernels/matmul kernels/attention kernels/sampling kernels/persistent kernels/experts kernels/recurrent
# lib/base:
# lib/roofline: lib/base
# lib/gguf: lib/base
# lib/jinja: lib/base
# lib/tokenizer: lib/base lib/gguf
# lib/toolcall: lib/base
# lib/model: lib/base lib/gguf kernels/abi
# lib/sampler: lib/base kernels/abi
# lib/grammar: lib/base
# lib/speculation: lib/base kernels/abi
# lib/kv: lib/base kernels/abi
# lib/backend: lib/base lib/model kernels/abi
# lib/engine: lib/base lib/grammar lib/model lib/kv lib/sampler lib/speculation lib/backend kernels/abi
# lib/cpu: lib/base lib/gguf lib/model lib/sampler lib/backend kernels/abi
# lib/cuda: lib/base lib/gguf lib/model lib/sampler lib/backend kernels/abi
# daemon/base: lib/base
# daemon/page:
# daemon/config: daemon/base lib/base lib/backend
# daemon/json: daemon/base lib/base
# daemon/http: daemon/base daemon/config lib/base
# daemon/chat: daemon/base daemon/json lib/base lib/gguf lib/jinja lib/tokenizer lib/toolcall
# daemon/schema: daemon/base daemon/json lib/base lib/grammar lib/toolcall
# daemon/generation: daemon/base daemon/chat daemon/config daemon/http daemon/json daemon/schema lib/base lib/engine lib/gguf lib/grammar lib/jinja lib/sampler lib/tokenizer lib/toolcall
# daemon/api: daemon/base daemon/chat daemon/http daemon/json daemon/generation daemon/page lib/base lib/engine lib/gguf lib/model lib/sampler lib/toolcall
# daemon/service: daemon/api daemon/base daemon/chat daemon/config daemon/http daemon/json daemon/generation lib/base lib/backend lib/engine lib/gguf lib/kv lib/model lib/tokenizer lib/toolcall kernels/abi
# daemon/cli: daemon/base daemon/chat daemon/config daemon/http daemon/json daemon/generation daemon/schema daemon/service lib/base lib/backend lib/roofline lib/engine lib/gguf lib/grammar lib/model lib/tokenizer lib/toolcall kernels/abi
# daemon: daemon/base daemon/cli daemon/config
