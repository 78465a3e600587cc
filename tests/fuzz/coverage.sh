#!/bin/sh
# coverage.sh [CORPORA] - how much of each parser the fuzz targets reach: lines and branches per source file,
# over the seeds and, where given, what a long run has found (CORPORA/<target>/*). Builds in build-coverage.
set -eu
cd "$(dirname "$0")/../.."
corpora=${1:-}
profiles=build-coverage/profiles
# What reads bytes of others: a file, a network, a command line.
SOURCES="lib/gguf.c lib/gguf_value.c lib/model.c lib/arch.c lib/graph.c lib/program.c lib/tokenizer.c lib/tokenizer_load.c
    lib/tokenizer_merge.c lib/tokenizer_text.c lib/tokenizer_specials.c lib/tokenizer_decode.c lib/pretokenizer.c lib/utf8.c
    lib/jinja_lex.c lib/jinja_parse.c lib/jinja_parse_expr.c lib/jinja_eval.c lib/jinja_exec.c lib/jinja_run.c lib/jinja_compare.c
    lib/jinja_value.c lib/jinja_builtin.c lib/jinja_text_filters.c lib/jinja_list_filters.c lib/jinja_functions.c
    lib/jinja_methods.c lib/jinja_format.c lib/jinja_print.c lib/jinja_tests.c lib/prefix_file.c
    daemon/json.c daemon/fields.c daemon/generate.c daemon/api_generate.c daemon/api_openai.c daemon/chat_messages.c
    daemon/chat_template.c daemon/api_tokens.c daemon/http.c daemon/route.c daemon/request.c daemon/loop.c daemon/access.c
    daemon/config.c daemon/config_keys.c daemon/http_get.c daemon/ask_print.c daemon/text.c daemon/choice.c"

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
