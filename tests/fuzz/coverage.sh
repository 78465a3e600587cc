#!/bin/sh
# coverage.sh [CORPORA] - how much of each parser the fuzz targets reach: lines and branches per source file,
# over the seeds and, where given, what a long run has found (CORPORA/<target>/*). Builds in build-coverage.
set -eu
cd "$(dirname "$0")/../.."
corpora=${1:-}
profiles=build-coverage/profiles
# The sources that read foreign bytes: a file, a network, a command line.
SOURCES="lib/gguf/gguf.c lib/gguf/gguf_value.c lib/model/model.c lib/model/arch/arch.c lib/model/graph.c lib/model/program.c lib/tokenizer/tokenizer.c lib/tokenizer/tokenizer_load.c
    lib/tokenizer/tokenizer_merge.c lib/tokenizer/text_map.c lib/tokenizer/pretokenizer.c lib/base/utf8.c
    lib/jinja/jinja_lex.c lib/jinja/jinja_parse.c lib/jinja/jinja_parse_expr.c lib/jinja/jinja_eval.c lib/jinja/jinja_exec.c lib/jinja/jinja_run.c lib/jinja/jinja_compare.c
    lib/jinja/jinja_value.c lib/jinja/jinja_builtin.c lib/jinja/jinja_text_filters.c lib/jinja/jinja_list_filters.c lib/jinja/jinja_functions.c
    lib/jinja/jinja_methods.c lib/jinja/jinja_format.c lib/jinja/jinja_print.c lib/jinja/jinja_tests.c lib/kv/prefix_file.c
    daemon/json/json.c daemon/json/json_fields.c daemon/generation/generation.c daemon/api/api_generate.c daemon/api/api_openai.c daemon/generation/chat_messages.c
    daemon/chat/chat_template.c daemon/api/api_tokens.c daemon/http/http.c daemon/http/http_route.c daemon/http/request.c daemon/http/listener.c daemon/http/access.c
    daemon/config/config.c daemon/config/config_keys.c daemon/cli/http_get.c daemon/cli/query_print.c daemon/generation/output_text.c daemon/generation/choice.c"

rm -rf "$profiles"
mkdir -p "$profiles"
{ cmake --preset coverage -G Ninja -DHEARTH_TESTS=ON && cmake --build --preset coverage; } >"$profiles/build.log" 2>&1 || {
    tail -n 40 "$profiles/build.log" >&2
    exit 1
}
objects=""
for target in build-coverage/bin/fuzz_*; do
    name=${target#build-coverage/bin/fuzz_}
    inputs=tests/fuzz/seeds/$name
    [ -z "$corpora" ] || [ ! -d "$corpora/$name" ] || inputs="$inputs $corpora/$name"
    # shellcheck disable=SC2086 # word splitting is meant
    LLVM_PROFILE_FILE="$profiles/$name.profraw" "$target" -runs=0 $inputs >"$profiles/$name.log" 2>&1
    objects="$objects -object $target"
done
llvm-profdata-19 merge -sparse "$profiles"/*.profraw -o "$profiles/all.profdata"
# shellcheck disable=SC2086
llvm-cov-19 report -instr-profile "$profiles/all.profdata" ${objects# -object } $SOURCES >"$profiles/report.txt"
awk '/^Filename/ || /^---/ || NF < 13 { next }
    !head++ { printf "%-30s %23s %25s\n", "", "lines", "branches" }
    { printf "%-30s %6d of %6d %7s  %6d of %6d %7s\n", $1, $8 - $9, $8, $10, $11 - $12, $11, $13 }' "$profiles/report.txt"
