/* Lark's grammars: texts that are in their languages and texts that are not, and what is refused. */
#include "support/grammar_text.h"

#include <errno.h>

/* The shape of an editor's patches, as a custom tool sends it. */
#define PATCH                                                                                                \
    "start: begin hunk+ end\nbegin: \"*** Begin Patch\" LF\nend: \"*** End Patch\" LF?\n"                    \
    "hunk: add | delete | update\nadd: \"*** Add File: \" filename LF add_line+\n"                           \
    "delete: \"*** Delete File: \" filename LF\n"                                                            \
    "update: \"*** Update File: \" filename LF move? change?\nfilename: /(.+)/\n"                            \
    "add_line: \"+\" /(.*)/ LF -> line\nmove: \"*** Move to: \" filename LF\n"                               \
    "change: (context | change_line)+ eof?\ncontext: (\"@@\" | \"@@ \" /(.+)/) LF\n"                         \
    "change_line: (\"+\" | \"-\" | \" \") /(.*)/ LF\neof: \"*** End of File\" LF\n%import common.LF\n"

static const struct grammar_case cases[] = {
    {PATCH,
     {"*** Begin Patch\n*** Add File: a.c\n+int x;\n+\n*** End Patch",
      "*** Begin Patch\n*** Update File: a\n*** Move to: b\n@@ f()\n-a\n+b\n c\n*** End of File\n*** End "
      "Patch\n",
      "*** Begin Patch\n*** Delete File: x y\n*** Delete File: z\n*** End Patch"},
     {"*** Begin Patch\n*** End Patch", "*** Begin Patch\n*** Add File: a\n*** End Patch",
      "*** Begin Patch\n*** Delete File: \n*** End Patch", "*** Add File: a\n+x\n"}},
    {"?start: sum // a comment\nsum: product ((\"+\" | \"-\") product)*\n"
     "product: atom (\"*\" atom)*\n?atom: NUMBER -> number\n     | \"-\" atom\n     | \"(\" sum \")\"\n"
     "%import common.NUMBER\n%import common.WS_INLINE\n%ignore WS_INLINE\n",
     {"1", "  1 + 2*3", "-(1.5e3 - .5) *2 ", "( 1 )"},
     {"", "1 +", "1 2", "(1", "1\n"}},
    {"start: \"select\"i NAME [\"where\"i NAME] \";\"\nNAME: /[a-z]+/\n%ignore \" \"\n",
     {"select a;", "SELECT a where b ;", "Select  abc;", " selectx;"},
     {"select;", "select a where;", "select a\n;"}},
    {"start: A ~ 2..3 B~2 \"c\"..\"e\"?\nA: \"x\"\nB.2: \"\\\"\" | \"\\n\" | \"é\"\n",
     {"xx\"\n", "xxx\xc3\xa9\"d"},
     {"x\"\"", "xxxx\"\"", "xx\"\"f"}},
    {"start: /a.c/ \"-\" /a.c/s \"-\" /[^]a]+/ \"/\" /x\\/y/\n",
     {"abc-a\nc-b./x/y", "a\rc-a\xe6\x97\xa5"
                         "c-./x/y"},
     {"a\nc-abc-b/x/y", "abc-abc-]/x/y"}},
    {"start: (ESCAPED_STRING | SIGNED_INT | CNAME | C_COMMENT)+\n%import common (ESCAPED_STRING, "
     "SIGNED_INT)\n"
     "%import common (\n  CNAME, C_COMMENT)\n",
     {"\"a\\\"b\"-12x_1/* * **/"},
     {"\"a", "/* ", "-"}},
    {"// not a ::= b\nstart: \"::=\" a\na: \"x\"\n", {"::=x"}, {"x", "::="}},
    {"# GBNF: its first name has ::= behind it\nroot ::= \"start: \" [a-z]", {"start: a"}, {"start:"}},
    {"start: \"(\" start? \")\" | _x\n_x: \"x\"\n", {"((x))", "()", "x"}, {"(", "(x", "xx"}},
};

Test(lark, texts_are_those_of_the_rules)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_texts(&cases[i]);
}

Test(lark, what_is_not_held_is_named_with_its_place)
{
    expect_refused("a: \"x\"\n", -EINVAL, "there is no rule start");
    expect_refused("a: \"x\"\n%ignore \" \"\n", -EINVAL, "there is no rule start");
    expect_refused("start: b\n", -EINVAL, "line 1, column 9: there is no rule b");
    expect_refused("start: \"x\"\n%ignore WS\n", -EINVAL, "there is no rule WS");
    expect_refused("start: \"x\"\nstart: \"y\"\n", -EINVAL,
                   "line 2, column 1: a second definition of rule start");
    expect_refused("start: \"x\n", -EINVAL, "line 1, column 10: a string without its closing quote");
    expect_refused("start: (\"x\"\n", -EINVAL, "a group without its end");
    expect_refused("start: /a\n", -EINVAL, "a regular expression without its closing /");
    expect_refused("start: /a(?<=b)/\n", -ENOTSUP, "in this regular expression: a lookbehind");
    expect_refused("start: /a/i\n", -ENOTSUP, "a flag of a regular expression other than s and u");
    expect_refused("start: \"é\"i\n", -ENOTSUP, "the flag i with characters beyond ASCII");
    expect_refused("start: \"z\"..\"a\"\n", -EINVAL, "a range must lead from one character to a later one");
    expect_refused("start: \"x\"~3..2\n", -EINVAL, "a repetition whose end is before its beginning");
    expect_refused("start: sep{\"x\"}\nsep{x}: x\n", -ENOTSUP, "a template is not supported");
    expect_refused("%declare A\nstart: A\n", -ENOTSUP, "a directive other than %import and %ignore");
    expect_refused("%import python.NAME\nstart: NAME\n", -ENOTSUP, "an import from elsewhere than common");
    expect_refused("%import common.NOPE\nstart: NOPE\n", -ENOTSUP, "known as NOPE");
    expect_refused("start: start \"x\" | \"y\"\n", -ENOTSUP, "left recursion: rule start");
    expect_refused("start \"x\"\n", -EINVAL, "line 1, column 7: : is expected after a rule's name");
    expect_refused("start: \"a\" }\n", -EINVAL, "a name is expected");
}
