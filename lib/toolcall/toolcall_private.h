/* toolcall_private.h - the scanner's state. A state is a function that takes bytes from the front of
 * `pending`: it returns false when it needs more of them, or `ended`. Thread: one at a time. */
#pragma once
#include "bytes.h"
#include "json_repair.h"
#include "toolcall.h"

#include <string.h>

#define TOOLCALL_MAX_NAME   256 /* bytes of a name; what is longer is none */
#define TOOLCALL_MAX_BLANKS 64  /* in a row that are waited through, however the text was cut */

enum mark_action {
    MARK_END, /* of the list */
    MARK_DROP,
    MARK_THINK,
    MARK_THINK_END,
    MARK_CALL_END, /* says nothing more than the call does */
    MARK_SECTION,  /* calls follow, each with a mark of its own */
    MARK_CALL,     /* JSON, or tags, follow */
    MARK_FUNCTION, /* a tagged function's name follows */
    MARK_MISTRAL,  /* a JSON list, or name[CALL_ID]id[ARGS]{ */
    MARK_DEEPSEEK, /* name<sep>{, or function<sep>name and a fenced block */
    MARK_GEMMA,    /* call:name{ */
    MARK_LLAMA,    /* name>{ */
    MARK_PYTHON,   /* a bare JSON object, or name.call(k="v") */
    MARK_KIMI,     /* functions.name:0<|tool_call_argument_begin|>{ */
    MARK_LIST,     /* [name(k="v"), ...] */
    MARK_HARMONY_HEADER,
    MARK_HARMONY_END,
};

struct mark {
    const char *s;
    enum mark_action action;
    bool in_reasoning; /* it ends the reasoning */
};

/* The syntax of a call in tags: open NAME open_end (param KEY key_end ... value VALUE value_end)* close. */
struct tags {
    const char *open, *open_end, *close;
    const char *param, *key_end, *value, *value_end;
    const char *section_end; /* may come in place of `close` */
    bool strips_newline;     /* one at each end of a value */
};

struct toolcall_format {
    const char *name;
    const char *think;       /* the mark that begins its reasoning; NULL: its models do not reason */
    const struct tags *tags; /* NULL: calls are JSON */
    bool bare;               /* a call may stand without a mark where the text begins */
    bool harmony;
    struct mark marks[16];
    const char *template_marks[3]; /* all are in the templates that write it; else NULL: never chosen */
    const char *inner[3];          /* marks inside of calls */
};

/* A JSON object that names a function and its arguments (toolcall_json.c). */
struct envelope {
    unsigned char state, quote;
    bool in_list, bare, begun, escaped;
    unsigned n_hex, code, high;
    char key[32];
    unsigned n_key;
    unsigned char target;
    bool has_name, has_args, text_arguments;
    struct bytes args; /* arguments that came before the name */
};

/* A call in tags (toolcall_tagged.c). */
struct tagged {
    bool is_text, began_value;
    bool follows, is_whole; /* the value is JSON so far: `repair` reads it; it is complete */
    bool doubts;            /* a closing tag stands in one of its strings: */
    size_t doubt, n_doubt;  /* the pending byte where it begins, its length */
    size_t seen;            /* pending bytes in which the value's end was looked for */
    unsigned n_params;
};

struct toolcall_scanner {
    const struct toolcall_format *format;
    const struct toolcall_tools *tools;
    void (*emit)(void *user, const struct toolcall_event *event);
    void *user;

    bool (*state)(struct toolcall_scanner *s);
    struct bytes input;
    struct {
        const char *p;
        size_t n;
    } pending; /* bytes of `input` that no state has taken */
    bool ended, cut, no_calls, verbatim;
    bool first[256]; /* bytes that marks begin with */

    struct bytes out; /* to be emitted: of one kind, whole characters */
    enum toolcall_kind out_kind;
    char last; /* byte of text */
    bool skip_blanks, skip_fence, bare_ok;
    bool joins;        /* a channel begins: its text stands apart from what came before */
    bool any[2];       /* text, reasoning was emitted */
    bool in_reasoning; /* the mark that was followed last stood there */
    bool reason_start; /* nothing of this reasoning was taken yet */
    bool doubted;      /* a closing tag in a string of JSON was one after all: from then on each is */
    unsigned n_calls;

    struct bytes held; /* the call's text while it may still be none */
    struct bytes name, id, value, unread;
    struct json_repair repair;
    struct envelope envelope;
    struct tagged tagged;
    unsigned char named_kind, named_part;
};

/* --- toolcall.c --- */

/* Each adds to what is emitted. */
void toolcall_put(struct toolcall_scanner *s, enum toolcall_kind kind, const char *p, size_t n);
void toolcall_begin_call(struct toolcall_scanner *s);         /* named s->name; drops s->held */
void toolcall_put_id(struct toolcall_scanner *s);             /* s->id, unless it is empty */
struct bytes *toolcall_arguments(struct toolcall_scanner *s); /* the place to write them */
void toolcall_end_call(struct toolcall_scanner *s);
void toolcall_take(struct toolcall_scanner *s, size_t n); /* n pending bytes are done */
void toolcall_hold(struct toolcall_scanner *s, size_t n); /* moves n pending bytes to `held` */
/* It was no call: what is held is text (or, cut, nothing). Always true. */
bool toolcall_give_up(struct toolcall_scanner *s);
/* Back to text, behind a call or a reasoning. Always true. */
bool toolcall_to_text(struct toolcall_scanner *s);
const struct toolcall_tool *toolcall_find_tool(const struct toolcall_scanner *s, const char *name, size_t n);

bool toolcall_text(struct toolcall_scanner *s);
bool toolcall_reasoning(struct toolcall_scanner *s);

/* 1: `mark` stands at byte i of what is pending; 0: it may, when more comes; -1: it does not. */
static inline int toolcall_match(const struct toolcall_scanner *s, size_t i, const char *mark)
{
    size_t n = strlen(mark), left = s->pending.n - i;
    if (left && memcmp(s->pending.p + i, mark, left < n ? left : n))
        return -1;
    return left >= n ? 1 : s->ended ? -1 : 0;
}

static inline bool toolcall_is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* The first pending byte from i on that is no blank. */
static inline size_t toolcall_blanks(const struct toolcall_scanner *s, size_t i)
{
    while (i < s->pending.n && toolcall_is_blank(s->pending.p[i]))
        i++;
    return i;
}

/* --- the others --- */

bool toolcall_open_json(struct toolcall_scanner *s, bool bare); /* a [ or { is next */
bool toolcall_call(struct toolcall_scanner *s);                 /* behind MARK_CALL */
bool toolcall_function(struct toolcall_scanner *s);             /* a tagged function's name is next */
bool toolcall_open_named(struct toolcall_scanner *s, enum mark_action action);
bool toolcall_open_value(struct toolcall_scanner *s, enum json_repair_form form); /* arguments are next */
bool toolcall_harmony_header(struct toolcall_scanner *s);
bool toolcall_harmony_between(struct toolcall_scanner *s);
