/* ptx_to_c.c - translates Hearth's PTX to C, so that the artifact itself runs on the emulator of tests/simt.
 *   ptx_to_c IN.ptx OUT.c [MUTATIONS]
 * One C function per entry, one statement per instruction, registers as locals. An instruction OPCODE with
 * its dots as underscores becomes a call of ptx_OPCODE, which ptx_machine.h defines with its section of the
 * PTX ISA: one that is not there does not compile. This program knows only which operands an instruction
 * writes, reads and addresses.
 * MUTATIONS (mutations.txt says its form) names instructions that are to be done wrongly, one at a time: each
 * is translated both ways, and `int ptx_mutation`, the number of a row, chooses.
 * `#line` names the PTX, so that reports of the emulator do. Section numbers are those of PTX ISA 8.0. */
#include "ptx_text.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_OPERANDS 8
#define MAX_PIECES   4 /* elements of a vector operand {a, b, c, d} */
#define MAX_CLASSES  64
#define MAX_TEXT     4096
#define MAX_MUTATED  64

/* A declared register, or a range of them: %r<12> declares %r0 to %r11. */
struct register_class {
    char name[32];
    const char *type; /* "pred", "b16", "b32", "b64", "f32" */
    bool range;
};

struct operand {
    char *pieces[MAX_PIECES];
    int n_pieces; /* more than 1: a vector */
    bool address; /* [base+offset] */
};

struct instruction {
    char *opcode;      /* with dots */
    char mangled[128]; /* with underscores */
    const char *type;  /* the last part of the opcode */
    char *guard;       /* predicate of @p or @!p, or NULL */
    bool negated;
    struct operand operands[MAX_OPERANDS];
    int n_operands;
};

/* A row of MUTATIONS that is about this file. */
struct mutation {
    int number;       /* of the row, from 1 */
    char opcode[128]; /* of the instruction; the `nth` one with it, from 1 */
    int nth, seen;
    char action[16];   /* "drop", "opcode" or "swap" */
    char becomes[128]; /* opcode: the other one */
    int operand, a, b; /* swap: two pieces of an operand */
};

static struct translation {
    const char *path, *file; /* of the PTX; file: without the folder */
    FILE *out;
    unsigned line;
    struct register_class classes[MAX_CLASSES];
    int n_classes, n_outer; /* n_outer: classes of the entry, without those of an inner scope */
    char parameter[128];    /* the entry's one parameter */
    int depth;              /* of braces */
    struct mutation mutations[MAX_MUTATED];
    int n_mutations;
} t;

static _Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void put(const char *format, ...) __attribute__((format(printf, 1, 2)));

static _Noreturn void fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)fprintf(stderr, "%s:%u: ", t.path, t.line);
    (void)vfprintf(stderr, format, args);
    (void)fputc('\n', stderr);
    va_end(args);
    exit(1);
}

static void put(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)vfprintf(t.out, format, args);
    va_end(args);
}

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

static char *trim(char *text)
{
    while (isspace((unsigned char)*text))
        text++;
    char *end = text + strlen(text);
    while (end > text && isspace((unsigned char)end[-1]))
        *--end = '\0';
    return text;
}

/* ---- registers and operands ---- */

static const char *c_type(const char *type)
{
    static const char *const types[][2] = {
        {"pred", "bool"}, {"b16", "uint16_t"}, {"b32", "uint32_t"}, {"b64", "uint64_t"}, {"f32", "float"}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(type, types[i][0]) == 0)
            return types[i][1];
    fail("registers of type %s", type);
}

static const struct register_class *class_of(const char *name)
{
    size_t stem = strlen(name);
    while (stem && isdigit((unsigned char)name[stem - 1]))
        stem--;
    for (int i = t.n_classes - 1; i >= 0; i--) {
        const struct register_class *c = &t.classes[i];
        if (c->range ? strlen(c->name) == stem && strncmp(c->name, name, stem) == 0
                     : strcmp(c->name, name) == 0)
            return c;
    }
    return NULL;
}

static const char *skip_percent(const char *name)
{
    return *name == '%' ? name + 1 : name;
}

/* Special registers, section 10. */
static const char *special(const char *name)
{
    static const char *const registers[][2] = {{"%tid.x", "simt_thread()"},
                                               {"%ntid.x", "simt_n_threads()"},
                                               {"%ctaid.x", "simt_block()"},
                                               {"%nctaid.x", "simt_n_blocks()"},
                                               {"%globaltimer", "simt_globaltimer()"},
                                               {"%clock64", "simt_clock()"}};
    for (size_t i = 0; i < sizeof registers / sizeof *registers; i++)
        if (strcmp(name, registers[i][0]) == 0)
            return registers[i][1];
    return NULL;
}

/* Writes an immediate, section 4.5: 0fXXXXXXXX is a float's bits. */
static void put_immediate(const char *text, bool as_float)
{
    if (begins(text, "0f") || begins(text, "0F"))
        put(as_float ? "ptx_float(0x%su)" : "0x%su", text + 2);
    else
        put(strlen(text) > 18 ? "%sull" : "%s", text);
}

/* Writes an operand as a value of a type. Bits of a float register that an instruction reads as b32 stay
 * bits. */
static void put_value(const char *text, const char *type)
{
    bool as_float = strcmp(type, "f32") == 0;
    const struct register_class *c = class_of(text);
    if (c && strcmp(c->type, "f32") == 0 && !as_float)
        put("ptx_bits(%s)", skip_percent(text));
    else if (c && strcmp(c->type, "f32") != 0 && as_float)
        put("ptx_float(%s)", skip_percent(text));
    else if (c)
        put("%s", skip_percent(text));
    else if (special(text))
        put("%s", special(text));
    else if (strcmp(text, t.parameter) == 0)
        put("(uint64_t)(uintptr_t)parameter");
    else if (strcmp(text, "simt_arena") == 0)
        put("PTX_ARENA");
    else if (isdigit((unsigned char)*text) || *text == '-')
        put_immediate(text, as_float);
    else
        fail("an operand %s", text);
}

/* Writes `register = `, with what turns a value of the type into the register's bits; the caller closes the
 * parenthesis. */
static void put_target(const char *text, const char *type)
{
    const struct register_class *c = class_of(text);
    if (!c)
        fail("a result in %s, which is not declared", text);
    bool is_float = strcmp(c->type, "f32") == 0, as_float = strcmp(type, "f32") == 0;
    put("%s = %s(", skip_percent(text), is_float == as_float ? "" : is_float ? "ptx_float" : "ptx_bits");
}

/* Writes the host's address of [base+offset] in a state space. */
static void put_address(const struct operand *o, const char *space)
{
    char base[128], *text = o->pieces[0];
    if (!o->address)
        fail("%s is no address", text);
    size_t n = strcspn(text, "+");
    (void)snprintf(base, sizeof base, "%.*s", (int)n, text);
    put(strcmp(space, "shared") == 0 ? "PTX_SHARED(" : "PTX_GLOBAL(");
    put_value(trim(base), "u64");
    put(" + (uint64_t)(%s))", text[n] ? text + n + 1 : "0");
}

/* ---- instructions ---- */

static bool has_part(const char *opcode, const char *part)
{
    size_t n = strlen(part);
    for (const char *at = strchr(opcode, '.'); at; at = strchr(at, '.')) {
        at++;
        if (strncmp(at, part, n) == 0 && (at[n] == '.' || at[n] == '\0'))
            return true;
    }
    return false;
}

static const char *space_of(const char *opcode)
{
    static const char *const spaces[] = {"shared", "global", "param"};
    for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++)
        if (has_part(opcode, spaces[i]))
            return spaces[i];
    fail("%s names no state space", opcode);
}

static void need(const struct instruction *in, int n)
{
    if (in->n_operands != n)
        fail("%s with %d operands", in->opcode, in->n_operands);
}

/* ld, section 9.7.8.8: one register or a vector of them. */
static void put_load(const struct instruction *in)
{
    const struct operand *d = &in->operands[0];
    need(in, 2);
    if (d->n_pieces == 1) {
        put_target(d->pieces[0], in->type);
        put("ptx_%s(", in->mangled);
        put_address(&in->operands[1], space_of(in->opcode));
        put("));\n");
        return;
    }
    put("{ __auto_type v_ = ptx_%s(", in->mangled);
    put_address(&in->operands[1], space_of(in->opcode));
    put("); ");
    for (int i = 0; i < d->n_pieces; i++) {
        put_target(d->pieces[i], in->type);
        put("v_[%d]); ", i);
    }
    put("}\n");
}

/* st, section 9.7.8.11. */
static void put_store(const struct instruction *in)
{
    need(in, 2);
    put("ptx_%s(", in->mangled);
    put_address(&in->operands[0], space_of(in->opcode));
    for (int i = 0; i < in->operands[1].n_pieces; i++) {
        put(", ");
        put_value(in->operands[1].pieces[i], in->type);
    }
    put(");\n");
}

/* Instructions with an address first or second, and values: atom, red, mbarrier, cp.async, prefetch. The
 * first `n_results` operands are registers. */
static void put_memory(const struct instruction *in, int n_results, const char *result_type)
{
    static const char *const spaces[] = {"shared", "global", "shared"};
    bool copy = begins(in->opcode, "cp.async"); /* from global to shared, with an mbarrier in shared */
    int n_addresses = 0;
    if (n_results)
        put_target(in->operands[0].pieces[0], result_type);
    put("ptx_%s(", in->mangled);
    for (int i = n_results; i < in->n_operands; i++) {
        put(i > n_results ? ", " : "");
        if (in->operands[i].address)
            put_address(&in->operands[i], copy ? spaces[n_addresses++] : space_of(in->opcode));
        else
            put_value(in->operands[i].pieces[0], in->type);
    }
    put(n_results ? "));\n" : ");\n");
}

/* mov with a vector, section 9.7.8.5: packs or unpacks, the first element in the low bits. */
static void put_pack(const struct instruction *in)
{
    const struct operand *d = &in->operands[0], *a = &in->operands[1];
    const char *half = strcmp(in->type, "b64") == 0 ? "b32" : "b16";
    need(in, 2);
    if (d->n_pieces == 2) {
        put("{ uint64_t v_ = ");
        put_value(a->pieces[0], in->type);
        put("; ");
        for (int i = 0; i < 2; i++) {
            put_target(d->pieces[i], half);
            put("ptx_piece_%s(v_, %d)); ", half, i);
        }
        put("}\n");
    } else if (d->n_pieces == 1 && a->n_pieces == 2) {
        put_target(d->pieces[0], in->type);
        put("ptx_pack_%s(", half);
        put_value(a->pieces[0], half);
        put(", ");
        put_value(a->pieces[1], half);
        put("));\n");
    } else
        fail("%s of this many pieces", in->opcode);
}

/* mma, section 9.7.13.4: fragments as arrays. The registers of c are read before those of d are written. */
static void put_mma(const struct instruction *in)
{
    static const char *const names[] = {"d_", "a_", "b_", "c_"};
    need(in, 4);
    put("{ ");
    for (int o = 1; o < 4; o++) {
        put("uint32_t %s[] = {", names[o]);
        for (int i = 0; i < in->operands[o].n_pieces; i++) {
            put(i ? ", " : "");
            put_value(in->operands[o].pieces[i], "b32");
        }
        put("}; ");
    }
    put("ptx_%s(c_, a_, b_); ", in->mangled);
    for (int i = 0; i < in->operands[0].n_pieces; i++) {
        put_target(in->operands[0].pieces[i], "b32");
        put("c_[%d]); ", i);
    }
    put("}\n");
}

/* Type of operand i: the last part of the opcode, but for the predicate of selp. */
static const char *operand_type(const struct instruction *in, int i)
{
    return begins(in->opcode, "selp.") && i == 3 ? "pred" : in->type;
}

/* Type of the result: the opcode's, but for setp and cvt.to.from. */
static const char *result_type(const struct instruction *in)
{
    static char type[16];
    if (begins(in->opcode, "setp.") || begins(in->opcode, "bar.red."))
        return "pred";
    if (!begins(in->opcode, "cvt."))
        return in->type;
    const char *end = in->type - 1, *start = end;
    while (start[-1] != '.')
        start--;
    (void)snprintf(type, sizeof type, "%.*s", (int)(end - start), start);
    return type;
}

/* An instruction of registers and values: the first operand is the result. */
static void put_plain(const struct instruction *in)
{
    if (in->n_operands < 2 || in->operands[0].n_pieces != 1)
        fail("%s with these operands", in->opcode);
    put_target(in->operands[0].pieces[0], result_type(in));
    put("ptx_%s(", in->mangled);
    for (int i = 1; i < in->n_operands; i++) {
        put(i > 1 ? ", " : "");
        put_value(in->operands[i].pieces[0], operand_type(in, i));
    }
    put("));\n");
}

/* An instruction without a result: bar, fence, nanosleep, cp.async.commit_group. */
static void put_statement(const struct instruction *in)
{
    put("ptx_%s(", in->mangled);
    for (int i = 0; i < in->n_operands; i++) {
        put(i ? ", " : "");
        put_value(in->operands[i].pieces[0], "u32");
    }
    put(");\n");
}

/* bra, section 9.7.12.4. */
static void put_branch(const struct instruction *in)
{
    need(in, 1);
    put("goto %s;\n", skip_percent(in->operands[0].pieces[0]) + (in->operands[0].pieces[0][0] == '$'));
}

static void put_instruction(const struct instruction *in)
{
    const char *op = in->opcode;
    put("#line %u \"%s\"\n", t.line, t.file);
    if (in->guard)
        put("if (%s%s) ", in->negated ? "!" : "", skip_percent(in->guard));
    if (strcmp(op, "ret") == 0)
        put("return;\n");
    else if (strcmp(op, "bra") == 0 || strcmp(op, "bra.uni") == 0)
        put_branch(in);
    else if (begins(op, "ld."))
        put_load(in);
    else if (begins(op, "st."))
        put_store(in);
    else if (begins(op, "atom."))
        put_memory(in, 1, in->type);
    else if (begins(op, "mbarrier.try_wait.") || begins(op, "mbarrier.test_wait."))
        put_memory(in, 1, "pred");
    else if (begins(op, "mbarrier.arrive."))
        put_memory(in, 1, "b64");
    else if (begins(op, "red.") || begins(op, "mbarrier.") || begins(op, "prefetch.") ||
             (begins(op, "cp.async.") && in->n_operands && in->operands[0].address))
        put_memory(in, 0, NULL);
    else if (begins(op, "mma."))
        put_mma(in);
    else if (begins(op, "mov.") && (in->operands[0].n_pieces > 1 || in->operands[1].n_pieces > 1))
        put_pack(in);
    else if ((begins(op, "bar.") && !begins(op, "bar.red.")) || begins(op, "fence.") ||
             begins(op, "nanosleep.") || begins(op, "cp.async."))
        put_statement(in);
    else
        put_plain(in);
}

/* ---- mutations ---- */

static void set_opcode(struct instruction *in, char *opcode)
{
    in->opcode = opcode;
    if (strlen(opcode) >= sizeof in->mangled)
        fail("an opcode of %zu bytes", strlen(opcode));
    for (size_t i = 0, k = 0; i <= strlen(opcode); i++)
        if (opcode[i] != ':')
            in->mangled[k++] = opcode[i] == '.' ? '_' : opcode[i];
    in->type = strrchr(opcode, '.') ? strrchr(opcode, '.') + 1 : "";
}

static void put_mutant(const struct instruction *in, struct mutation *m)
{
    struct instruction mutant = *in;
    struct operand *o = &mutant.operands[m->operand];
    put("if (ptx_mutation == %d) {\n", m->number);
    if (strcmp(m->action, "opcode") == 0)
        set_opcode(&mutant, m->becomes);
    if (strcmp(m->action, "swap") == 0) {
        if (m->a >= o->n_pieces || m->b >= o->n_pieces)
            fail("mutation %d: the operand has %d pieces", m->number, o->n_pieces);
        o->pieces[m->a] = in->operands[m->operand].pieces[m->b];
        o->pieces[m->b] = in->operands[m->operand].pieces[m->a];
    }
    if (strcmp(m->action, "drop") != 0)
        put_instruction(&mutant);
    put("} else\n");
}

/* Writes an instruction, and before it the mutant that a row wants of it. */
static void put_both(const struct instruction *in)
{
    for (int i = 0; i < t.n_mutations; i++)
        if (strcmp(t.mutations[i].opcode, in->opcode) == 0 && ++t.mutations[i].seen == t.mutations[i].nth)
            put_mutant(in, &t.mutations[i]);
    put("{\n");
    put_instruction(in);
    put("}\n");
}

/* Reads the rows of this file from MUTATIONS. */
static void read_mutations(const char *path)
{
    char line[512], file[96];
    int number = 0;
    FILE *f = fopen(path, "r");
    if (!f) {
        perror(path);
        exit(1);
    }
    while (fgets(line, sizeof line, f)) {
        struct mutation m = {0};
        if (*line == '#' || *line == '\n')
            continue;
        m.number = ++number;
        if (sscanf(line, "%95s %127s %d %15s", file, m.opcode, &m.nth, m.action) != 4)
            fail("%s: row %d is not FILE OPCODE N ACTION", path, number);
        const char *rest = strstr(line, m.action) + strlen(m.action);
        if ((strcmp(m.action, "opcode") == 0 && sscanf(rest, "%127s", m.becomes) != 1) ||
            (strcmp(m.action, "swap") == 0 && sscanf(rest, "%d %d %d", &m.operand, &m.a, &m.b) != 3) ||
            m.operand < 0 || m.operand >= MAX_OPERANDS)
            fail("%s: row %d: %s without its values", path, number, m.action);
        if (strncmp(t.file, file, strlen(file)) != 0 || t.file[strlen(file)] != '.')
            continue;
        if (t.n_mutations == MAX_MUTATED)
            fail("more than %d mutations", MAX_MUTATED);
        t.mutations[t.n_mutations++] = m;
    }
    (void)fclose(f);
}

static void check_mutations(void)
{
    for (int i = 0; i < t.n_mutations; i++)
        if (t.mutations[i].seen < t.mutations[i].nth)
            fail("mutation %d: the file has %d of %s", t.mutations[i].number, t.mutations[i].seen,
                 t.mutations[i].opcode);
}

/* ---- reading ---- */

static int split(char *text, char *parts[], int n_max)
{
    int n = 0, depth = 0;
    char *start = text;
    if (!*trim(text))
        return 0;
    for (char *c = text;; c++) {
        depth += (*c == '{' || *c == '[') - (*c == '}' || *c == ']');
        if (*c && (*c != ',' || depth))
            continue;
        bool last = !*c;
        if (n == n_max)
            fail("more than %d operands", n_max);
        *c = '\0';
        parts[n++] = trim(start);
        start = c + 1;
        if (last)
            return n;
    }
}

static struct operand read_operand(char *text)
{
    struct operand o = {0};
    size_t n = strlen(text);
    o.address = *text == '[';
    if (*text != '[' && *text != '{') {
        o.pieces[0] = text;
        o.n_pieces = 1;
        return o;
    }
    text[n - 1] = '\0';
    o.n_pieces = split(text + 1, o.pieces, MAX_PIECES);
    return o;
}

static void read_instruction(char *text)
{
    struct instruction in = {0};
    char *parts[MAX_OPERANDS];
    if (*text == '@') {
        in.negated = text[1] == '!';
        in.guard = text + 1 + in.negated;
        text = in.guard + strcspn(in.guard, " \t\n");
        *text++ = '\0';
        text = trim(text);
    }
    char *rest = text + strcspn(text, " \t\n");
    if (*rest)
        *rest++ = '\0';
    set_opcode(&in, text);
    in.n_operands = split(rest, parts, MAX_OPERANDS);
    for (int i = 0; i < in.n_operands; i++)
        in.operands[i] = read_operand(parts[i]);
    t.n_mutations ? put_both(&in) : put_instruction(&in);
}

/* .reg, section 5.1: `.reg .b32 %r<5>` or `.reg .pred p, q`. */
static void read_registers(char *text)
{
    char *names[MAX_OPERANDS], *type = text + strlen(".reg");
    type = trim(type) + 1;
    char *list = type + strcspn(type, " \t");
    *list++ = '\0';
    int n = split(list, names, MAX_OPERANDS);
    for (int i = 0; i < n; i++) {
        struct register_class *c = &t.classes[t.n_classes++];
        if (t.n_classes == MAX_CLASSES)
            fail("more than %d kinds of registers", MAX_CLASSES);
        char *count = strchr(names[i], '<');
        c->range = count != NULL;
        if (count)
            *count++ = '\0';
        (void)snprintf(c->name, sizeof c->name, "%s", names[i]);
        static char kept[MAX_CLASSES][8];
        (void)snprintf(kept[t.n_classes - 1], sizeof kept[0], "%s", type);
        c->type = kept[t.n_classes - 1];
        for (int k = 0, end = count ? atoi(count) : 1; k < end; k++) {
            put("%s %s", c_type(c->type), skip_percent(c->name));
            put(count ? "%d = PTX_POISON_%s;\n" : " = PTX_POISON_%.0d%s;\n", k, c->type);
        }
    }
}

static long number_after(const char *text, const char *word)
{
    const char *at = strstr(text, word);
    if (!at)
        fail("the entry has no %s", word);
    return strtol(at + strlen(word), NULL, 10);
}

/* `.visible .entry NAME( .param .align 8 .b8 NAME_param_0[SIZE] ) .maxntid N, 1, 1`, sections 5.4 and 11. */
static void read_entry(char *text)
{
    char name[64];
    const char *open = strchr(text, '('), *close = strchr(text, ')'), *size = strchr(text, '['),
               *comma = strchr(text, ',');
    bool one =
        open && close && size && size < close && !(comma && comma < close); /* .maxntid has commas too */
    if (!one || sscanf(text, ".visible .entry %63[^( \n]", name) != 1)
        fail("an entry that is not of one parameter");
    const char *parameter = size;
    while (!isspace((unsigned char)parameter[-1]))
        parameter--;
    (void)snprintf(t.parameter, sizeof t.parameter, "%.*s", (int)(size - parameter), parameter);
    long threads = number_after(text, ".maxntid"), bytes = strtol(size + 1, NULL, 10);
    put("PTX_ENTRY(%s, %ld, %ld)\n{\n", name, threads, bytes);
    t.n_classes = 0;
}

static void open_scope(char *text)
{
    if (begins(text, ".visible .entry"))
        read_entry(text);
    else if (*text)
        fail("a block after %s", text);
    else {
        put("{\n");
        t.n_outer = t.n_classes;
    }
    t.depth++;
}

static void close_scope(void)
{
    put("}\n");
    if (--t.depth == 1)
        t.n_classes = t.n_outer;
}

static void read_statement(char *text)
{
    if (begins(text, ".reg"))
        read_registers(text);
    else if (t.depth == 0) {
        if (strcmp(text, ".extern .shared .align 128 .b8 simt_arena[]") != 0)
            fail("outside of an entry: %s", text);
    } else if (!begins(text, ".pragma") && *text)
        read_instruction(text);
}

/* Returns whether a line is a directive of the module, which has no semicolon (section 11.1). */
static bool is_module_directive(const char *text)
{
    return begins(text, ".version") || begins(text, ".target") || begins(text, ".address_size");
}

/* Reads statements that end at ';', labels at ':', blocks at braces; braces within a statement are vectors.
 */
static void read_ptx(const char *text)
{
    static char statement[MAX_TEXT];
    size_t n = 0;
    bool vector = false;
    for (const char *c = text; *c; c++) {
        if (c[0] == '/' && c[1] == '/')
            c += strcspn(c, "\n");
        char *so_far = statement;
        while (n && isspace((unsigned char)statement[0])) /* leading space would hide how it begins */
            n = 0;
        statement[n] = '\0';
        bool block = (*c == '{' || *c == '}') && !vector && (!*so_far || begins(so_far, ".visible"));
        if (*c == '\n' && is_module_directive(so_far))
            n = 0;
        else if (*c == ';') {
            read_statement(trim(so_far));
            n = 0;
        } else if (*c == ':' && c[1] != ':' && c[-1] != ':') {
            put("%s:;\n", so_far + (*so_far == '$'));
            n = 0;
        } else if (block) {
            if (*c == '{')
                open_scope(trim(so_far));
            else
                close_scope();
            n = 0;
        } else if (n + 2 < sizeof statement)
            statement[n++] = *c;
        else
            fail("a statement of more than %zu bytes", sizeof statement);
        vector = n && (vector || *c == '{') && *c != '}';
        t.line += *c == '\n';
    }
}

static char *read_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    char *text = NULL;
    long size = 0;
    if (f && fseek(f, 0, SEEK_END) == 0 && (size = ftell(f)) >= 0 && (text = calloc(1, (size_t)size + 1))) {
        rewind(f);
        if (fread(text, 1, (size_t)size, f) != (size_t)size)
            size = -1;
    }
    if (!text || size < 0) {
        perror(path);
        exit(1);
    }
    (void)fclose(f);
    return text;
}

int main(int argc, char **argv)
{
    if (argc != 3 && argc != 4) {
        (void)fprintf(stderr, "usage: ptx_to_c IN.ptx OUT.c [MUTATIONS]\n");
        return 2;
    }
    t.path = argv[1];
    t.file = strrchr(argv[1], '/') ? strrchr(argv[1], '/') + 1 : argv[1];
    t.line = 1;
    if (argc == 4)
        read_mutations(argv[3]);
    t.out = fopen(argv[2], "w");
    if (!t.out) {
        perror(argv[2]);
        return 1;
    }
    char *text = read_file(argv[1]);
    long sm = number_after(text, ".target sm_");
    put("#define SIMT_SM %ld\n#include \"ptx/ptx_machine.h\"\n", sm);
    if (argc == 4)
        put("#include \"ptx/ptx_mutants.h\"\n");
    read_ptx(text);
    check_mutations();
    struct ptx_text identity = ptx_text_of(text);
    put("PTX_TEXT(UINT64_C(%llu), UINT64_C(%llu))\n", (unsigned long long)identity.hash,
        (unsigned long long)identity.size);
    free(text);
    if (t.depth)
        fail("a block is not closed");
    if (fclose(t.out)) {
        perror(argv[2]);
        return 1;
    }
    return 0;
}
