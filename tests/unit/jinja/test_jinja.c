/* Chat templates as a language: every construct by itself, what is refused, and what is bounded.
 *
 * Some 50,000 random expressions and templates were compared, outside of the repository, with Jinja 3.1.6 set
 * up as transformers does it: both give the same bytes or both refuse, but for these. Letters beyond ASCII
 * keep their case; a range is printed as a list; else of a loop is written when no turn began (Jinja: when
 * none came to its end); "x is none if y" is a condition. Refused here: int with a base, sort by several
 * attributes, count() and index() of lists, items of what is no dict before they are wanted. Taken here:
 * several tests in a row, unique of dicts, parts of what filters generate. */
#include "support/jinja_render.h"

#include "support/failing_alloc.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define NOTHING "{}"
#define SOME                                                                                                 \
    "{\"a\":1,\"b\":2.5,\"s\":\" Hello World \",\"l\":[3,1,2],\"d\":{\"x\":1,\"y\":{\"z\":[1,2]}},"          \
    "\"n\":null,\"t\":true,\"f\":false,\"e\":\"\",\"u\":\"h\\u00e9 \\u20ac\","                               \
    "\"ms\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"hi\"}]}"

/* --- white space --- */

Test(jinja, a_tag_takes_the_spaces_before_it_and_the_line_end_behind_it)
{
    expect_text("a\n  {% if t %}\n  b\n  {% endif %}\nc", SOME, "a\n  b\nc");
    expect_text("a {% if t %}\nb {% endif %}\n", SOME, "a b ");
}

Test(jinja, a_minus_takes_all_white_space_and_a_plus_none)
{
    expect_text("a\n  {%- if t -%}\n  b\n  {%- endif %}\nc", SOME, "abc");
    expect_text("a\n  {%+ if t +%}\n  b\n  {%+ endif +%}\nc", SOME, "a\n  \n  b\n  \nc");
    expect_text("a \n {{- a -}} \n b", SOME, "a1b");
    expect_text(" {{ a }} \n{{ a }}", SOME, " 1 \n1");
}

Test(jinja, a_comment_is_nothing_and_trims_like_a_tag)
{
    expect_text("a{# {{ x }} {% y #}b", NOTHING, "ab");
    expect_text("a\n  {# c\nd #}\nb", NOTHING, "a\nb");
    expect_text("a\n  {#- c -#}\n  b", NOTHING, "ab");
}

Test(jinja, raw_text_is_not_looked_into)
{
    expect_text("x{% raw %}{{ a }}{% if %}{# #}{% endraw %}y", NOTHING, "x{{ a }}{% if %}{# #}y");
    expect_text("x\n {%- raw -%} {{ a }} {%- endraw -%} \ny", NOTHING, "x{{ a }}y");
}

Test(jinja, one_line_end_at_the_end_of_the_file_is_not_its_text)
{
    expect_text("a\n", NOTHING, "a");
    expect_text("a\n\n", NOTHING, "a\n");
    expect_text("a\r\nb\rc\r\n", NOTHING, "a\nb\nc");
    expect_text("", NOTHING, "");
}

Test(jinja, a_list_is_not_changed_and_that_fails_only_when_it_is_tried)
{
    expect_text("{% if f %}{{ l.pop(0) }}{% endif %}{{ l }}", SOME, "[3, 1, 2]");
    expect_fails("{{ l.pop() }}", SOME, -EBADMSG, "line 1");
    expect_text("{% if f %}{% set _ = l.append(4) %}{% endif %}{{ l }}", SOME, "[3, 1, 2]");
    expect_fails("{% set _ = l.append(4) %}{{ l }}", SOME, -EBADMSG, "line 1");
}

/* --- literals and operators --- */

Test(jinja, literals)
{
    EXPECT_ALL(NOTHING, {"1", "1"}, {"1_000", "1000"}, {"0x1f", "31"}, {"0b101", "5"}, {"0o17", "15"},
               {"1.5", "1.5"}, {"1e3", "1000.0"}, {"true ~ True ~ false", "TrueTrueFalse"},
               {"none ~ None", "NoneNone"}, {"'a' \"b\" 'c'", "abc"},
               {"[1, 'a', none, [true],]", "[1, 'a', None, [True]]"}, {"(1,)", "(1,)"}, {"(1)", "1"},
               {"()", "()"}, {"{'a': 1, 'b': [2],}", "{'a': 1, 'b': [2]}"}, {"{'a': 1, 'a': 2}", "{'a': 2}"},
               {"{'a': {'b': 1}}", "{'a': {'b': 1}}"});
}

Test(jinja, escapes_in_strings)
{
    EXPECT_ALL(NOTHING, {"'a\\n\\t\\r\\\\\\'\\\"b'", "a\n\t\r\\'\"b"},
               {"'\\x41\\u00e9\\U0001F600\\101'", "A\xc3\xa9\xf0\x9f\x98\x80"
                                                  "A"},
               {"'\\d\\.'", "\\d\\."}, {"'%}' ~ \"}}\"", "%}}}"});
    expect_refused("{{ '\\N{DIGIT ONE}' }}", -ENOTSUP, "escape \\N");
}

Test(jinja, comparisons)
{
    EXPECT_ALL(SOME, {"1 < 2 < 3", "True"}, {"1 < 3 < 2", "False"}, {"3 >= 3 > 2", "True"},
               {"1 == 1.0 == true", "True"}, {"'a' != 'b'", "True"}, {"'a' < 'b'", "True"},
               {"[1, 2] == [1, 2]", "True"}, {"[1] == (1,)", "False"},
               {"{'a': 1, 'b': 2} == {'b': 2, 'a': 1}", "True"}, {"(1, 2) < (1, 3)", "True"},
               {"1 in l", "True"}, {"4 not in l", "True"}, {"'ell' in s", "True"}, {"'x' in d", "True"},
               {"'x' in nope", "False"}, {"not 1 in l", "False"});
    expect_fails("{{ 'a' < 1 }}", NOTHING, -EBADMSG, "no order");
    expect_fails("{{ 1 in 'a' }}", NOTHING, -EBADMSG, "needs a string");
}

Test(jinja, logic_gives_the_value_that_decided)
{
    EXPECT_ALL(SOME, {"t and 'x'", "x"}, {"f or 'y'", "y"}, {"n or e or 'z'", "z"}, {"not t", "False"},
               {"not f and t", "True"}, {"f and nope.x", "False"}, {"1 if t else 2", "1"},
               {"1 if f else 2", "2"}, {"1 if f", ""}, {"1 if f else 2 if f else 3", "3"});
}

Test(jinja, parts_of_values)
{
    EXPECT_ALL(SOME, {"d.x", "1"}, {"d['x']", "1"}, {"d.y.z[1]", "2"}, {"l[-1]", "2"}, {"l[9]", ""},
               {"l.0", "3"}, {"d.nope", ""}, {"ms[0].role", "system"}, {"ms[-1]['content']", "hi"},
               {"u[1]", "\xc3\xa9"}, {"u[-1]", "\xe2\x82\xac"}, {"'abc'[5]", ""});
    expect_fails("{{ nope.x }}", NOTHING, -EBADMSG, "\"nope\" is undefined");
    expect_fails("{{ d.nope.x }}", SOME, -EBADMSG, "\"nope\" is undefined");
}

Test(jinja, slices)
{
    EXPECT_ALL(SOME, {"l[1:]", "[1, 2]"}, {"l[:-1]", "[3, 1]"}, {"l[::-1]", "[2, 1, 3]"},
               {"l[::2]", "[3, 2]"}, {"l[-2:]", "[1, 2]"}, {"l[2:0:-1]", "[2, 1]"}, {"l[9:]", "[]"},
               {"l[-9:9]", "[3, 1, 2]"}, {"s[1:6]", "Hello"}, {"u[1:]", "\xc3\xa9 \xe2\x82\xac"},
               {"u[::-1]", "\xe2\x82\xac \xc3\xa9h"}, {"s[:none]|trim", "Hello World"},
               {"ms[1:]|length", "1"});
    expect_fails("{{ l[::0] }}", SOME, -EBADMSG, "step 0");
    expect_fails("{{ l['a':] }}", SOME, -EBADMSG, "needs integers");
    expect_fails("{{ n[1:] }}", SOME, -EBADMSG, "none cannot be sliced");
    expect_fails("{{ d[1:] }}", SOME, -EBADMSG, "a dict cannot be sliced");
    expect_fails("{{ nope[1:] }}", SOME, -EBADMSG, "\"nope\" is undefined");
}

Test(jinja, values_look_as_in_python)
{
    EXPECT_ALL(SOME, {"[n, t, 1.5, 'a']", "[None, True, 1.5, 'a']"}, {"[\"it's\"]", "[\"it's\"]"},
               {"['a\\n\\\\']", "['a\\n\\\\']"}, {"[u]", "['h\xc3\xa9 \xe2\x82\xac']"},
               {"d", "{'x': 1, 'y': {'z': [1, 2]}}"}, {"(1, 'a')", "(1, 'a')"}, {"[nope]", "[Undefined]"},
               {"['\\x01']", "['\\x01']"});
}

/* --- statements --- */

Test(jinja, if_takes_the_first_branch_that_holds)
{
    const char *t = "{% if x == 1 %}a{% elif x == 2 %}b{% elif x == 3 %}c{% else %}d{% endif %}";
    expect_text(t, "{\"x\":1}", "a");
    expect_text(t, "{\"x\":3}", "c");
    expect_text(t, "{\"x\":9}", "d");
    expect_text("{% if nope %}a{% endif %}", NOTHING, "");
}

Test(jinja, loops_know_where_they_are)
{
    expect_text("{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}"
                "{{ loop.first }}{{ loop.last }}{{ loop.length }}|{% endfor %}",
                SOME, "1032TrueFalse3|2121FalseFalse3|3210FalseTrue3|");
    expect_text("{% for x in l %}({{ loop.previtem }},{{ loop.nextitem }}){% endfor %}", SOME,
                "(,1)(3,2)(1,)");
    expect_text("{% for x in l %}{{ loop.cycle('a', 'b') }}{% endfor %}", SOME, "aba");
    expect_text("{% for x in l %}{% for y in 'ab' %}{{ loop.index }}{{ loop.depth }}{% endfor %}{{ "
                "loop.index }};{% endfor %}",
                SOME, "12221;12222;12223;");
}

Test(jinja, loops_go_through_lists_texts_dicts_and_pairs)
{
    expect_text("{% for c in u %}<{{ c }}>{% endfor %}", SOME, "<h><\xc3\xa9>< ><\xe2\x82\xac>");
    expect_text("{% for k in d %}{{ k }}{% endfor %}", SOME, "xy");
    expect_text("{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", SOME, "x=1;y={'z': [1, 2]};");
    expect_text("{% for (a, b), c in [[[1, 2], 3]] %}{{ a }}{{ b }}{{ c }}{% endfor %}", NOTHING, "123");
    expect_text("{% for x in nope %}a{% else %}none{% endfor %}", NOTHING, "none");
    expect_text("{% for x in l if x > 1 %}{{ x }}{{ loop.length }}{% else %}none{% endfor %}", SOME, "3222");
    expect_text("{% for x in l if x > 9 %}{{ x }}{% else %}none{% endfor %}", SOME, "none");
    expect_fails("{% for x in 5 %}{% endfor %}", NOTHING, -EBADMSG, "is not iterable");
    expect_fails("{% for a, b in [[1]] %}{% endfor %}", NOTHING, -EBADMSG, "another number of names");
}

Test(jinja, break_and_continue)
{
    expect_text("{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}", SOME, "32");
    expect_text("{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}", SOME, "3");
    expect_refused("{% break %}", -EBADMSG, "outside of a loop");
    expect_refused("{% for x in l %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}", -EBADMSG,
                   "outside");
}

Test(jinja, what_a_loop_sets_is_gone_after_each_turn)
{
    expect_text("{% set x = 1 %}{% for i in l %}{{ x }}{% set x = 5 %}{{ x }}{% endfor %}{{ x }}", SOME,
                "1515151");
    expect_text("{% if t %}{% set x = 1 %}{% endif %}{{ x }}", SOME, "1");
}

Test(jinja, a_namespace_keeps_what_a_loop_sets)
{
    expect_text("{% set ns = namespace(n=0, s='a') %}{% for i in l %}{% set ns.n = ns.n + i %}{% endfor %}{{ "
                "ns.n }}{{ ns.s }}{{ ns.q }}",
                SOME, "6a");
    expect_fails("{% set d.x = 2 %}", SOME, -EBADMSG, "only a namespace can be changed");
}

Test(jinja, set_has_blocks_and_several_names)
{
    expect_text("{% set x %}a{{ a }}{% endset %}[{{ x }}]", SOME, "[a1]");
    expect_text("{% set x | upper | trim %} a{{ a }} {% endset %}[{{ x }}]", SOME, "[A1]");
    expect_text("{% set x, y = 1, 2 %}{{ x }}{{ y }}", SOME, "12");
    expect_text("{% set x = 1, 2 %}{{ x }}", SOME, "(1, 2)");
    expect_text("{% set (x, y) = l[:2] %}{{ x }}{{ y }}", SOME, "31");
}

Test(jinja, macros_have_defaults_and_names_for_their_arguments)
{
    expect_text("{% macro m(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}|{{ m(1, 3) }}|{{ "
                "m(1, c=9) }}|{{ m(b=5, a=4) }}|{{ m() }}",
                NOTHING, "121|131|129|454|2");
    expect_text("{% macro m(n) %}{{ n }}{% if n %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(3) }}", NOTHING,
                "3210");
    expect_text("{% set v = 1 %}{% macro m() %}{{ v }}{{ w }}{% endmacro %}{% set v = 2 %}{% for w in [7] "
                "%}{{ m() }}{% endfor %}",
                NOTHING, "2");
    expect_text("{% macro m() %}<{{ caller(5) }}>{% endmacro %}{% call(z) m() %}x{{ z }}{% endcall %}",
                NOTHING, "<x5>");
    expect_text("{% macro m(x) %} {{ x }} {% endmacro %}[{{ m('a') | trim | upper }}]", NOTHING, "[A]");
    expect_fails("{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", NOTHING, -EBADMSG, "macro m");
    expect_fails("{% macro m(a) %}{% endmacro %}{{ m(z=2) }}", NOTHING, -EBADMSG, "macro m");
    expect_fails("{% macro m(a) %}{% endmacro %}{{ m(2, a=2) }}", NOTHING, -EBADMSG, "given twice");
}

Test(jinja, filter_and_with_and_generation_blocks)
{
    expect_text("{% filter replace('a', 'b') | upper %}a{{ a }}{% endfilter %}", SOME, "B1");
    expect_text("{% with x = 5, y = 6 %}{{ x }}{{ y }}{% endwith %}{{ x }}", NOTHING, "56");
    expect_text("{% generation %}a{{ a }}{% endgeneration %}\nb", SOME, "a1b");
}

/* --- filters, tests, methods --- */

Test(jinja, filters_of_texts)
{
    EXPECT_ALL(SOME, {"s | trim", "Hello World"}, {"'xxaxx' | trim('x')", "a"}, {"'aB' | upper", "AB"},
               {"'aB' | lower", "ab"}, {"'hELLO wORLD' | capitalize", "Hello world"},
               {"\"they're-bill's (x)\" | title", "They're-Bill's (X)"}, {"'aaa' | replace('a', 'b')", "bbb"},
               {"'aaa' | replace('a', 'b', 2)", "bba"}, {"'<&>' | e", "&lt;&amp;&gt;"},
               {"1 | string + 'x'", "1x"}, {"'x' | safe", "x"}, {"'a\\n\\nb' | indent", "a\n\n    b"},
               {"'a\\n\\nb' | indent(2, true, true)", "  a\n  \n  b"}, {"'a\\nb' | indent('> ')", "a\n> b"},
               {"'a\\r\\nb\\n' | indent", "a\n    b\n"}, {"'' | indent(2, true)", "  "},
               {"'a\\rb\\r' | indent(1)", "a\n b"},
               {"'a\\u2028\\rb\\n' | indent(2, blank=true)", "a\n  \n  b\n  "},
               {"'a\\fb\\x1cc\\u2029\\x85d\\v'.splitlines()", "['a', 'b', 'c', '', 'd']"},
               {"'%s-%d' | format('a', 3)", "a-3"},
               {"'%05.1f|%-3s|%3s|%r|%%' % (1.25, 'a', 'b', 'c')", "001.2|a  |  b|'c'|%"},
               {"'%(k)s' % {'k': 1}", "1"});
}

Test(jinja, filters_that_choose)
{
    EXPECT_ALL(SOME, {"nope | default('x')", "x"}, {"nope | d('x')", "x"}, {"e | default('x')", ""},
               {"e | default('x', true)", "x"}, {"n | default('x')", "None"},
               {"n | default('x', boolean=true)", "x"}, {"l | first", "3"}, {"l | last", "2"},
               {"'abc' | first", "a"}, {"[] | first", ""}, {"l | min", "1"}, {"l | max", "3"},
               {"['b', 'A'] | min", "A"}, {"l | length", "3"}, {"u | length", "4"}, {"nope | length", "0"},
               {"l | count", "3"}, {"l | sum", "6"});
}

Test(jinja, filters_of_lists)
{
    EXPECT_ALL(SOME, {"l | join(', ')", "3, 1, 2"}, {"l | join", "312"},
               {"ms | join('|', attribute='role')", "system|user"}, {"l | sort", "[1, 2, 3]"},
               {"l | sort(reverse=true)", "[3, 2, 1]"}, {"['b', 'A', 'c'] | sort", "['A', 'b', 'c']"},
               {"ms | sort(attribute='content') | map(attribute='role') | list", "['user', 'system']"},
               {"l | reverse | list", "[2, 1, 3]"}, {"'abc' | reverse", "cba"},
               {"[1, 1, 'a', 'A'] | unique | list", "[1, 'a']"}, {"'ab' | list", "['a', 'b']"},
               {"d | items | list", "[('x', 1), ('y', {'z': [1, 2]})]"},
               {"{'b': 1, 'A': 2} | dictsort", "[('A', 2), ('b', 1)]"},
               {"{'b': 1, 'A': 2} | dictsort(by='value')", "[('b', 1), ('A', 2)]"});
}

Test(jinja, map_and_select_take_filters_tests_and_attributes_by_name)
{
    EXPECT_ALL(SOME, {"ms | map(attribute='role') | list", "['system', 'user']"},
               {"ms | map(attribute='q', default='D') | list", "['D', 'D']"},
               {"[{'a': {'b': 1}}] | map(attribute='a.b') | list", "[1]"},
               {"[{'a': [[7, 8]]}] | map(attribute='a.0.' ~ 1) | list", "[8]"},
               {"[{'1234567890': 1, '1a': 2, '': 3}] | map(attribute='1234567890') | list", "[1]"},
               {"[{'1a': {'': 3}}] | map(attribute='1a.') | list", "[{'': 3}]"},
               {"['a', 'b'] | map('upper') | list", "['A', 'B']"},
               {"['a'] | map('replace', 'a', 'c') | list", "['c']"}, {"[0, 1, 2] | select | list", "[1, 2]"},
               {"[0, 1, 2] | select('odd') | list", "[1]"}, {"[0, 1, 2] | reject('odd') | list", "[0, 2]"},
               {"ms | selectattr('role', 'equalto', 'user') | map(attribute='content') | first", "hi"},
               {"ms | selectattr('role', 'in', ['user']) | list | length", "1"},
               {"ms | rejectattr('role', '==', 'user') | list | length", "1"},
               {"ms | selectattr('tool_calls') | list", "[]"});
    expect_refused("{{ l | map('nope') }}", -ENOTSUP, "filter \"nope\"");
    expect_refused("{{ l | select('nope') }}", -ENOTSUP, "test \"nope\"");
    expect_refused("{{ l | selectattr('a', 'nope') }}", -ENOTSUP, "test \"nope\"");
}

/* They are generators: templates forget "| list" and so take the first branch always. */
Test(jinja, what_filters_generate_is_true_even_when_it_is_empty)
{
    EXPECT_ALL(SOME, {"'y' if ms | selectattr('role', 'equalto', 'tool') else 'n'", "y"},
               {"'y' if ms | selectattr('role', 'equalto', 'tool') | list else 'n'", "n"},
               {"'y' if [] | map('upper') else 'n'", "y"}, {"'y' if [] | reject('none') else 'n'", "y"},
               {"'y' if [] | unique else 'n'", "y"}, {"'y' if [] | reverse else 'n'", "y"},
               {"'y' if '' | reverse else 'n'", "n"}, {"'y' if {} | items else 'n'", "y"},
               {"'y' if nope | items else 'n'", "y"}, {"'y' if {}.items() else 'n'", "n"},
               {"l | map('string') is sequence", "False"}, {"l | map('string') is iterable", "True"},
               {"l | map('string') | list is sequence", "True"});
}

Test(jinja, json_is_as_json_dumps_writes_it)
{
    EXPECT_ALL(SOME, {"d | tojson", "{\"x\": 1, \"y\": {\"z\": [1, 2]}}"},
               {"[1.0, none, true, 'a', {}, []] | tojson", "[1.0, null, true, \"a\", {}, []]"},
               {"'\"\\\\\\n\\x01' | tojson", "\"\\\"\\\\\\n\\u0001\""},
               {"u | tojson", "\"h\xc3\xa9 \xe2\x82\xac\""},
               {"'\\u00e9\\U0001F600' | tojson(ensure_ascii=true)", "\"\\u00e9\\ud83d\\ude00\""},
               {"'<a>' | tojson", "\"<a>\""},
               {"d | tojson(indent=2)",
                "{\n  \"x\": 1,\n  \"y\": {\n    \"z\": [\n      1,\n      2\n    ]\n  }\n}"},
               {"{'b': 1, 'a': []} | tojson(sort_keys=true)", "{\"a\": [], \"b\": 1}"},
               {"d | tojson(separators=(',', ':'))", "{\"x\":1,\"y\":{\"z\":[1,2]}}"},
               {"{1: 2} | tojson", "{\"1\": 2}"});
    expect_fails("{{ nope | tojson }}", NOTHING, -EBADMSG, "as JSON");
}

Test(jinja, tests)
{
    EXPECT_ALL(SOME, {"a is defined", "True"}, {"nope is not defined", "True"}, {"nope is undefined", "True"},
               {"n is none", "True"}, {"a is not none", "True"}, {"s is string", "True"},
               {"d is mapping", "True"}, {"l is iterable", "True"}, {"a is iterable", "False"},
               {"d is sequence", "True"}, {"b is number", "True"}, {"a is integer", "True"},
               {"t is integer", "False"}, {"b is float", "True"}, {"t is boolean", "True"},
               {"t is true", "True"}, {"a is true", "False"}, {"f is false", "True"}, {"a is odd", "True"},
               {"a is even", "False"}, {"4 is divisibleby 2", "True"}, {"4 is divisibleby(3)", "False"},
               {"a is eq 1", "True"}, {"a is equalto(1)", "True"}, {"a is ne 1", "False"},
               {"a is lt 2", "True"}, {"a is gt(2)", "False"}, {"a is ge 1", "True"}, {"a is le 0", "False"},
               {"a is in [1]", "True"}, {"a is sameas 1", "True"}, {"'A' is upper", "True"},
               {"a is string or a is number", "True"}, {"not a is none and t", "True"});
}

Test(jinja, methods_of_strings)
{
    EXPECT_ALL(SOME, {"s.strip()", "Hello World"}, {"s.lstrip()", "Hello World "},
               {"s.rstrip()", " Hello World"}, {"'xyaxy'.strip('xy')", "a"},
               {"'\\n\\na\\n'.strip('\\n')", "a"}, {"'a,b,,c'.split(',')", "['a', 'b', '', 'c']"},
               {"'a,b,c'.split(',', 1)", "['a', 'b,c']"}, {"'a,b,c'.rsplit(',', 1)", "['a,b', 'c']"},
               {"' a  b '.split()", "['a', 'b']"}, {"' a  b '.split(none, 1)", "['a', 'b ']"},
               {"' a  b '.rsplit(none, 1)", "[' a', 'b']"}, {"'a</think>b'.split('</think>')[-1]", "b"},
               {"'a\\nb\\r\\nc'.splitlines()", "['a', 'b', 'c']"}, {"'abc'.startswith('ab')", "True"},
               {"'abc'.startswith(('x', 'a'))", "True"}, {"'abc'.endswith('x')", "False"},
               {"'aB'.upper() ~ 'aB'.lower()", "ABab"}, {"\"they're\".title()", "They'Re"},
               {"'hELLO'.capitalize()", "Hello"}, {"'aaa'.replace('a', 'b', 1)", "baa"},
               {"'abc'.replace('', '-')", "-a-b-c-"}, {"u.find('\\u20ac')", "3"}, {"'abc'.find('z')", "-1"},
               {"'abab'.rfind('ab')", "2"}, {"'abab'.count('ab')", "2"}, {"', '.join(['a', 'b'])", "a, b"},
               {"'{} {1} {k}'.format(1, 2, k=3)", "1 2 3"}, {"'{:.1f}{{}}'.format(1.25)", "1.2{}"},
               {"'12'.isdigit()", "True"}, {"'ab'.removeprefix('a')", "b"}, {"'ab'.removesuffix('b')", "a"});
    expect_fails("{{ 'a'.split('') }}", NOTHING, -EBADMSG, "empty separator");
    expect_fails("{{ 'a'.replace('a') }}", NOTHING, -EBADMSG, "needs its argument new");
}

Test(jinja, methods_of_dicts)
{
    EXPECT_ALL(SOME, {"d.keys() | list", "['x', 'y']"}, {"d.values() | list", "[1, {'z': [1, 2]}]"},
               {"d.get('x')", "1"}, {"d.get('q')", "None"}, {"d.get('q', 5)", "5"},
               {"d.items() | list | length", "2"}, {"{'items': 1}['items']", "1"});
}

Test(jinja, functions)
{
    EXPECT_ALL(NOTHING, {"range(3) | list", "[0, 1, 2]"}, {"range(1, 7, 2) | list", "[1, 3, 5]"},
               {"range(3, 0, -1) | list", "[3, 2, 1]"}, {"dict(a=1)", "{'a': 1}"},
               {"namespace({'a': 1}, b=2).b", "2"}, {"strftime_now('%d %b %Y')", "26 Jul 2024"},
               {"strftime_now is defined", "True"});
    expect_fails("{{ raise_exception('only ' ~ 2) }}", NOTHING, -EINVAL, "only 2");
}

Test(jinja, a_template_tells_which_variables_it_reads)
{
    struct jinja *t = NULL;
    const char *source = "{% for m in messages %}{{ m.tools }}{% endfor %}{% set x = y %}";
    cr_assert_eq(jinja_open(&t, source, strlen(source), NULL), 0);
    cr_assert(jinja_reads(t, "messages") && jinja_reads(t, "y"));
    cr_assert_not(jinja_reads(t, "tools") || jinja_reads(t, "x") || jinja_reads(t, "nope"));
    jinja_close(t);
}

/* --- who wrote what --- */

/* The rendered text with every byte of a user's in capitals' place: "." for the template's, "p" for plain. */
static void expect_marks(const char *template, const char *json, const char *text, const char *marks)
{
    expect_text(template, json, text);
    for (size_t i = 0; i < rendered.text.len; i++) {
        const unsigned char *plain = rendered.text.plain;
        bool is = plain && (plain == jinja_all_plain || plain[i]);
        cr_assert_eq(is, marks[i] == 'p', "%s: byte %zu of %s", template, i, text);
    }
}

#define USER "{\"c\":\" ab \",\"l\":[\"x\",\"y\"],\"d\":{\"k\":\"v\\n\"}}"

Test(jinja, what_a_user_wrote_stays_marked_whatever_becomes_of_it)
{
    expect_marks("<{{ c }}>", USER, "< ab >", ".pppp.");
    expect_marks("{{ c | trim + '<>' }}", USER, "ab<>", "pp..");
    expect_marks("{{ '[' ~ c.strip().upper() ~ ']' }}", USER, "[AB]", ".pp.");
    expect_marks("{{ ('<' + c + '>')[1:4] }}", USER, " ab", "ppp");
    expect_marks("{{ ('<' + c + '>')[::-1] }}", USER, "> ba <", ".pppp.");
    expect_marks("{{ '<a>'.replace('a', c) }}", USER, "< ab >", ".pppp.");
    expect_marks("{{ c.replace(' ', '<>') }}", USER, "<>ab<>", "..pp..");
    expect_marks("{{ l | join('<>') }}", USER, "x<>y", "p..p");
    expect_marks("{{ '<%s>' % c }}", USER, "< ab >", ".pppp.");
    expect_marks("{{ '<{}>'.format(c) }}", USER, "< ab >", ".pppp.");
    expect_marks("{{ d | tojson }}", USER, "{\"k\": \"v\\n\"}", ".......ppp..");
    expect_marks("{{ l }}", USER, "['x', 'y']", "..p....p..");
    expect_marks("{% set x %}<{{ c }}>{% endset %}{{ x | trim }}", USER, "< ab >", ".pppp.");
    expect_marks("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(c) | upper }}", USER, "< AB >", ".pppp.");
    expect_marks("{% for w in c %}{{ w }}-{% endfor %}", USER, " -a-b- -", "p.p.p.p.");
    expect_marks("{{ ('<' ~ c ~ '>').split(' ')[1] }}", USER, "ab", "pp");
    expect_marks("{{ ('<' ~ c ~ '\\n|') | indent(2) }}", USER, "< ab \n  |", ".pppp....");
}

/* --- what is refused --- */

Test(jinja, unsupported_constructs_are_named_with_their_line)
{
    expect_refused("a\n{% include 'x' %}", -ENOTSUP, "line 2: statement \"include\"");
    expect_refused("{% extends 'x' %}", -ENOTSUP, "statement \"extends\"");
    expect_refused("{% import 'x' as y %}", -ENOTSUP, "statement \"import\"");
    expect_refused("{% block x %}{% endblock %}", -ENOTSUP, "statement \"block\"");
    expect_refused("{% do x %}", -ENOTSUP, "statement \"do\"");
    expect_refused("{% for x in l recursive %}{% endfor %}", -ENOTSUP, "loop \"recursive\"");
    expect_refused("\n\n{{ a | groupby('x') }}", -ENOTSUP, "line 3: filter \"groupby\"");
    expect_refused("{{ a is nope }}", -ENOTSUP, "test \"nope\"");
    expect_refused("{{ nope() }}", -ENOTSUP, "function \"nope\"");
    expect_refused("{{ l.insert(0, 1) }}", -ENOTSUP, "method \"insert\"");
    expect_refused("{{ f(*l) }}", -ENOTSUP, "unpacking");
    expect_refused("{{ a | tojson(nope=1) }}", -ENOTSUP, "argument nope");
    expect_refused("{{ a | length(1) }}", -ENOTSUP, "too many");
}

Test(jinja, a_function_that_is_asked_for_first_may_be_missing)
{
    expect_text("{% if nope is defined %}{{ nope() }}{% else %}no{% endif %}", NOTHING, "no");
}

Test(jinja, what_is_no_template_is_told_with_its_line)
{
    const char *const broken[] = {"{% if %}{% endif %}",
                                  "{% if a %}",
                                  "{% endif %}",
                                  "{% else %}",
                                  "{% for x in l %}",
                                  "{% for in l %}{% endfor %}",
                                  "{{ a",
                                  "{{ a b }}",
                                  "{{ (a }}",
                                  "{{ a) }}",
                                  "{{ }}",
                                  "{# x",
                                  "{% raw %}x",
                                  "{% set %}",
                                  "{% set x = %}",
                                  "{% set 1 = 2 %}",
                                  "{{ 'abc }}",
                                  "{{ a $ b }}",
                                  "{{ a. }}",
                                  "{{ a[] }}",
                                  "{{ [1, }}",
                                  "{{ {'a' 1} }}",
                                  "{{ a | }}",
                                  "{{ a is }}",
                                  "{{ not }}",
                                  "{{ 1 + }}",
                                  "{% macro %}{% endmacro %}",
                                  "{% macro m(a %}{% endmacro %}",
                                  "{{ m(a=1, 2) }}",
                                  "{% call x %}{% endcall %}",
                                  "{% %}",
                                  "{{ 99999999999999999999 }}",
                                  "{{ 1e }}x",
                                  "{% if a %}{% endfor %}",
                                  "{{ a not b }}",
                                  "{% set x | %}{% endset %}",
                                  "{% set a, = %}"};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++)
        expect_refused(broken[i], -EBADMSG, "line 1: ");
}

Test(jinja, what_values_do_not_allow_is_told_with_its_line)
{
    expect_fails("\n{{ nope + 'x' }}", NOTHING, -EBADMSG, "line 2: \"nope\" is undefined");
    expect_fails("{% set a = 1 %}{{ a() }}", NOTHING, -EBADMSG, "an integer cannot be called");
}

/* --- what is bounded --- */

/* A million letters. */
#define LONG_TEXT "{% set s = ('a' * 1000) * 1000 %}"

/* A million blanks. */
#define LONG_BLANK "{% set b = (' ' * 1000) * 1000 %}"

static void expect_walks(const char *expression, int times)
{
    char source[240];
    snprintf(source, sizeof source, "%s{%% for i in range(%d) %%}{%% set x = %s %%}{%% endfor %%}",
             LONG_TEXT LONG_BLANK, times, expression);
    expect_fails(source, NOTHING, -ELOOP, "100000 operations");
}

Test(jinja, bytes_that_are_walked_are_operations_too)
{
    static const char *const walks[] = {"s.startswith(s)", "s.endswith(s)", "s.removesuffix(s)", "s[-1]",
                                        "s[5:]"};
    static const char *const by_character[] = {"s|length",  "b|trim",     "b.isspace()",
                                               "b.split()", "b.rsplit()", "s.count('')"};
    for (size_t i = 0; i < sizeof walks / sizeof *walks; i++)
        expect_walks(walks[i], 900);
    static const char *const searches[] = {"'abc' in s", "s.find('b')", "s.count('ab')", "s.split('b')"};
    static const char *const walked[] = {"s|length",     "s.isalpha()",  "s is upper",
                                         "b.strip(' ')", "s.rfind('b')", "s.rsplit('b')",
                                         "s|int",        "b|float",      "'%.3s' % s"};
    for (size_t i = 0; i < sizeof by_character / sizeof *by_character; i++)
        expect_walks(by_character[i], 60);
    for (size_t i = 0; i < sizeof searches / sizeof *searches; i++)
        expect_walks(searches[i], 60);
    for (size_t i = 0; i < sizeof walked / sizeof *walked; i++)
        expect_walks(walked[i], 15);
    /* From behind each place may be compared in full length. */
    expect_fails(LONG_TEXT "{{ s.rfind(s[900000:] + 'b') }}", NOTHING, -ELOOP, "100000 operations");
    expect_fails(LONG_TEXT "{{ s.rsplit(s[900000:] + 'b') }}", NOTHING, -ELOOP, "100000 operations");
    expect_text(
        "{{ 'abcabc'.rfind('bc') }} {{ 'abc'.rfind('') }} {{ 'abc'.rfind('cd') }} {{ 'a, b, c'.rsplit(', "
        "', 1) }}",
        NOTHING, "4 3 -1 ['a, b', 'c']");
}

/* Four thousand names, and many uses of one that stands behind them all. */
Test(jinja, names_that_are_passed_by_are_operations_too)
{
    static char source[1 << 17];
    size_t n = (size_t)snprintf(source, sizeof source, "{%% set u = 1 %%}");
    for (int i = 0; i < 4000; i++)
        n += (size_t)snprintf(source + n, sizeof source - n, "{%% set a%d = 1 %%}", i);
    n += (size_t)snprintf(source + n, sizeof source - n, "{%% for i in range(300) %%}{%% if u");
    for (int i = 0; i < 60; i++)
        n += (size_t)snprintf(source + n, sizeof source - n, " and u");
    snprintf(source + n, sizeof source - n, " %%}{%% endif %%}{%% endfor %%}");
    expect_fails(source, NOTHING, -ELOOP, "100000 operations");
}

/* Memory bounds the text written; operations bound its cost. */
Test(jinja, what_is_written_character_by_character_counts_as_such)
{
    static const char *const writes[] = {"s.upper()", "s|title", "s|tojson", "[s]|string", "s|escape"};
    for (size_t i = 0; i < sizeof writes / sizeof *writes; i++)
        expect_walks(writes[i], 14);
    expect_fails("{% set s = '\n' * 5000 %}{% for i in range(99) %}{% set x = s|tojson %}{% endfor %}",
                 NOTHING, -ELOOP, "100000 operations");
    expect_fails("{% for i in range(16000) %}{% set x = [1]|tojson(indent=100) %}{% endfor %}", NOTHING,
                 -ELOOP, "100000 operations");
}

/* Five keys of 300,000 letters that differ in the last few. */
Test(jinja, keys_that_are_compared_are_operations_too)
{
    static const char *const looks[] = {"k in d", "d|attr(k)", "d[k]", "d.get(k)",
                                        "d|tojson(sort_keys=true)"};
    char source[400];
    for (size_t i = 0; i < sizeof looks / sizeof *looks; i++) {
        snprintf(source, sizeof source,
                 "{%% set s = 'a' * 300000 ~ 'bcdefgh' %%}{%% set k = s[1:300001] %%}"
                 "{%% set d = {s[2:300002]: 1, s[3:300003]: 2, s[4:300004]: 3, s[5:300005]: 4} %%}"
                 "{%% for i in range(%d) %%}{%% set x = %s %%}{%% endfor %%}",
                 i < 4 ? 700 : 15, looks[i]);
        expect_fails(source, NOTHING, -ELOOP, "100000 operations");
    }
}

Test(jinja, digits_are_operations_too)
{
    expect_fails("{% set x = ([2.2250738585072011e-308] * 72000)|string|length %}", NOTHING, -ELOOP,
                 "100000 operations");
    expect_fails("{% set f = '%.0e' * 5000 %}{% set a = (5e-324,) * 5000 %}{% for i in range(40) %}"
                 "{% set x = f % a %}{% endfor %}",
                 NOTHING, -ELOOP, "100000 operations");
    expect_fails("{% for i in range(4000) %}{% set x = '%.999f' % 1e308 %}{% endfor %}", NOTHING, -ELOOP,
                 "100000 operations");
    expect_fails("{% for i in range(20000) %}{% set x = 1e308|round(15) %}{% endfor %}", NOTHING, -ELOOP,
                 "100000 operations");
    expect_fails("{% for i in range(28000) %}{% set x = 1e300 % 1e-300 %}{% endfor %}", NOTHING, -ELOOP,
                 "100000 operations");
    expect_fails("{% for i in range(9000) %}{% set x = '%999d' % 1 %}{% endfor %}", NOTHING, -ELOOP,
                 "100000 operations");
}

/* Digits of a number as it is printed, without the zeros before and behind them. */
static size_t count_digits(const char *s, size_t n)
{
    size_t digits = 0, to_last = 0;
    for (size_t i = 0; i < n && s[i] != 'e'; i++) {
        digits += isdigit((unsigned char)s[i]) && (digits || s[i] != '0');
        if (s[i] >= '1' && s[i] <= '9')
            to_last = digits;
    }
    return to_last;
}

static void expect_fewest_digits(double f)
{
    char json[64], least[32], text[64];
    snprintf(json, sizeof json, "{\"f\": %.17e}", f);
    for (int digits = 0; digits < 17; digits++) {
        snprintf(least, sizeof least, "%.*e", digits, f);
        if (strtod(least, NULL) == f)
            break;
    }
    cr_assert_eq(render_bytes("{{ f }}", 7, json), 0, "%s", rendered.err.text);
    cr_assert_lt(rendered.text.len, sizeof text);
    snprintf(text, sizeof text, "%.*s", (int)rendered.text.len, rendered.text.s);
    cr_assert(strtod(text, NULL) == f, "%s is printed as %s", least, text);
    cr_assert_eq(count_digits(text, strlen(text)), count_digits(least, strlen(least)), "%s is printed as %s",
                 least, text);
}

/* Numbers of any bits; of few digits; subnormal. */
Test(jinja, a_float_is_printed_with_the_fewest_digits)
{
    uint64_t bits = 88172645463325252u;
    for (int i = 0; i < 6000; i++) {
        double f;
        bits ^= bits << 13;
        bits ^= bits >> 7;
        bits ^= bits << 17;
        uint64_t pattern = i % 3 ? bits >> (12 + i % 40) : bits >> 1;
        memcpy(&f, &pattern, sizeof f);
        if (i % 3 == 1)
            f = (double)(bits % 100000) / (i % 7 ? 1000 : 1e200);
        if (isfinite(f) && f != 0)
            expect_fewest_digits(f);
    }
}

Test(jinja, floats_that_are_printed_are_operations_each)
{
    expect_fails(
        "{% set l = [0.1, 0.2, 0.3, 0.4] * 1000 %}{% for i in range(30) %}{% set x = l|tojson %}{% endfor %}",
        NOTHING, -ELOOP, "100000 operations");
}

Test(jinja, operations_are_bounded)
{
    expect_fails("{% for a in range(1000) %}{% for b in range(1000) %}{% endfor %}{% endfor %}", NOTHING,
                 -ELOOP, "100000 operations");
    expect_fails("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", NOTHING, -ELOOP, "nested");
    expect_fails("{{ range(99999999999) }}", NOTHING, -ELOOP, "operations");
    expect_fails("{{ 'a' * 99999999999 }}", NOTHING, -ELOOP, "operations");
    rendered.limits.operations = 12;
    expect_text("{% for a in range(3) %}{{ a }}{% endfor %}", NOTHING, "012");
    expect_fails("{% for a in range(9) %}{{ a }}{% endfor %}", NOTHING, -ELOOP, "12 operations");
    rendered.limits.operations = 0;
}

Test(jinja, output_and_memory_are_bounded)
{
    rendered.limits.output = 5;
    expect_text("12345", NOTHING, "12345");
    expect_fails("123456", NOTHING, -E2BIG, "5 bytes");
    expect_fails("{{ 'abc' }}{{ 'def' }}", NOTHING, -E2BIG, "5 bytes");
    rendered.limits.output = 0;
    rendered.limits.memory = 100000;
    expect_fails("{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(40) %}{% set ns.s = ns.s + ns.s "
                 "%}{% endfor %}",
                 NOTHING, -ENOSPC, "100000 bytes of memory");
    rendered.limits.memory = 0;
}

Test(jinja, a_text_that_doubles_ends_soon)
{
    expect_fails("{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s "
                 "%}{% endfor %}",
                 NOTHING, -ENOSPC, "memory");
}

/* n times `open`, then `middle`, then n times `close`. */
static char *nest(const char *open, const char *middle, const char *close, size_t n)
{
    char *s = malloc(n * (strlen(open) + strlen(close)) + strlen(middle) + 1), *end = s;
    for (size_t i = 0; i < n; i++)
        end = stpcpy(end, open);
    end = stpcpy(end, middle);
    for (size_t i = 0; i < n; i++)
        end = stpcpy(end, close);
    return s;
}

Test(jinja, nesting_is_bounded_when_a_template_is_opened)
{
    static const struct {
        const char *open, *middle, *close;
    } cases[] = {{"{{ ", "1", " }}"}, {"(", "1", ")"},     {"[", "1", "]"},    {"{1:", "1", "}"},
                 {"-", "1", ""},      {"not ", "1", ""},   {"a[", "1", "]"},   {"f(", "1", ")"},
                 {"1 + ", "1", ""},   {"", "a", ".b"},     {"", "a", "|trim"}, {"1 if 1 else ", "1", ""},
                 {"", "1", " if 1"},  {"", "1", " and 1"}, {"2 ** ", "1", ""}};
    for (size_t i = 1; i < sizeof cases / sizeof *cases; i++) {
        char *inner = nest(cases[i].open, cases[i].middle, cases[i].close, 10000),
             *t = nest("{{ ", inner, " }}", 1);
        expect_refused(t, -ENOTSUP, "nested");
        free(t);
        free(inner);
    }
    char *blocks = nest("{% if 1 %}", "", "{% endif %}", 10000),
         *loops = nest("{% for a in b %}", "", "{% endfor %}", 10000);
    char *targets = nest("(", "a", ")", 10000), *t = nest("{% for ", targets, " in b %}{% endfor %}", 1);
    expect_refused(blocks, -ENOTSUP, "nested");
    expect_refused(loops, -ENOTSUP, "nested");
    expect_refused(t, -ENOTSUP, "nested");
    free(t);
    free(targets);
    free(loops);
    free(blocks);
}

Test(jinja, values_in_one_another_are_bounded_too)
{
    expect_fails("{% set ns = namespace(v=1) %}{% for i in range(2000) %}{% set ns.v = [ns.v] %}{% endfor "
                 "%}{{ ns.v }}",
                 NOTHING, -ELOOP, "nested");
    expect_fails("{% set ns = namespace(v=1, w=1) %}{% for i in range(2000) %}{% set ns.v = [ns.v] %}{% set "
                 "ns.w = [ns.w] %}{% endfor %}{{ ns.v == ns.w }}",
                 NOTHING, -ELOOP, "nested");
    expect_fails("{% set ns = namespace() %}{% set ns.v = ns %}{{ ns }}", NOTHING, -ELOOP, "nested");
}

Test(jinja, many_branches_and_items_are_no_nesting)
{
    char *branches = nest("{% elif a %}x", "", "", 500),
         *t = nest("{% if a %}x", branches, "{% else %}y{% endif %}", 1);
    expect_text(t, NOTHING, "y");
    free(t);
    free(branches);
}

Test(jinja, a_template_of_more_than_a_megabyte_is_refused)
{
    char *t = nest("a", "", "", JINJA_MAX_SOURCE + 1);
    expect_refused(t, -ENOTSUP, "bytes");
    t[JINJA_MAX_SOURCE] = '\0';
    expect_text(t, NOTHING, t);
    free(t);
}

#define EVERYTHING                                                                                           \
    "{% macro m(a, b=[1]) %}{{ a ~ b }}{% endmacro %}{% set ns = namespace(x={'k': (1, 2)}) %}"              \
    "{% for m2 in ms if m2.role != 'x' %}{{ loop.index }}{{ m2.content | upper | tojson }}{% else %}-"       \
    "{% endfor %}{% set q %}{{ m(1) }}{% endset %}{{ q[::-1] }}{{ s.split() | join('-') }}"                  \
    "{{ ms | selectattr('role', 'eq', 'user') | map(attribute='content') | list | sort }}"                   \
    "{{ '%s' % a }}{{ '{}'.format(s) | indent }}{{ d.items() | list }}{{ range(3) | unique | list }}"

Test(jinja, every_allocation_may_fail)
{
    struct error err;
    struct jinja *t;
    int rc = -1;
    expect_text(EVERYTHING, SOME,
                "1\"S\"2\"HI\"]1[1Hello-World['hi']1 Hello World [('x', 1), ('y', {'z': [1, 2]})][0, 1, 2]");
    for (long n = 0; rc < 0; n++) {
        err = (struct error){0};
        fail_alloc_after(n);
        rc = jinja_open(&t, EVERYTHING, strlen(EVERYTHING), &err);
        fail_alloc_never();
        cr_assert(rc == 0 || (rc == -ENOMEM && strstr(err.text, "memory")), "%ld: %d %s", n, rc, err.text);
    }
    json_t *root = json_loads(SOME, 0, NULL);
    arena_close(&rendered.arena);
    struct jinja_input in = {.variables = value_of(root).dict, .now = &test_now};
    rc = -1;
    for (long n = 0; rc < 0; n++) {
        struct arena arena = {0};
        err = (struct error){0};
        fail_alloc_after(n);
        rc = jinja_render(t, &in, &arena, &rendered.text, &err);
        fail_alloc_never();
        arena_close(&arena);
        cr_assert(rc == 0 || rc == -ENOMEM, "%ld: %d %s", n, rc, err.text);
    }
    json_decref(root);
    jinja_close(t);
}

Test(jinja, a_nul_is_a_character_like_others)
{
    const char data[] = "a{\0b", format[] = "{{ '%5.\0f' % 1 }}", inside[] = "{{ 1 \0 }}";
    cr_assert_eq(render_bytes(data, sizeof data - 1, NOTHING), 0);
    cr_assert_eq(rendered.text.len, 4);
    cr_assert_eq(memcmp(rendered.text.s, data, 4), 0);
    cr_assert_eq(render_bytes(format, sizeof format - 1, NOTHING), -EBADMSG);
    cr_assert_eq(render_bytes(inside, sizeof inside - 1, NOTHING), -EBADMSG);
    expect_text("{{ '\\0' | length }}", NOTHING, "1");
}

/* A file is not trusted: no byte beyond a template's end is read, wherever it ends. */
Test(jinja, a_template_cut_anywhere_is_read_to_its_end_only)
{
    for (size_t n = 0; n < strlen(EVERYTHING); n++) {
        char *copy = malloc(n ? n : 1);
        memcpy(copy, EVERYTHING, n);
        render_bytes(copy, n, SOME);
        free(copy);
    }
}
