/* tuning_file.c - choices of the cpu's products in a file of text:
 *
 *   hearth cpu tuning 1
 *   cpu AMD EPYC, family 25 model 17 stepping 1
 *   isa avx512vnni
 *   threads 2
 *   kernels 1 avx512vnni 1.000            least number of columns, table, gain
 *   Q4_K 1 built t1 8704 1.120 31.5       type, least number of columns, shape, hint, distance, gain, GB/s
 */
#include "base/cpu_name.h"
#include "gguf/quant.h"
#include "cpu/matmul/matmul_pack.h"
#include "tuning.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#define HEADING   "hearth cpu tuning 1"
#define MAX_AHEAD (1u << 20)

/* Family, model, stepping and name of this CPU, without spaces at the ends. */
static void tuning_cpu(char *text, size_t size)
{
    char name[64];
    cpu_name(name, sizeof name);
    snprintf(text, size, "%s", name);
#if defined(__x86_64__)
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d))
        return;
    unsigned family = a >> 8 & 15, model = a >> 4 & 15;
    if (family == 6 || family == 15)
        model |= a >> 12 & 0xf0;
    if (family == 15)
        family += a >> 20 & 0xff;
    snprintf(text, size, "%s, family %u model %u stepping %u", name, family, model, a & 15);
#endif
}

struct reader {
    struct tuning *t;
    const char *path;
    uint32_t line;
    struct error *err;
};

static int broken(const struct reader *r, const char *why)
{
    return error_set(r->err, -EINVAL, "cpu_tuning: %s:%u: %s; remove the file to measure again", r->path,
                     r->line, why);
}

/* A directory, or a file that this user may not read: the configuration is wrong, not the model or the
 * device. */
static int unreadable(const char *path, int code, struct error *err)
{
    return error_set(err, code == EIO ? -EIO : -EINVAL, "cpu_tuning: %s: %s", path, strerror(code));
}

static int find(const char *word, const char *(*name)(uint32_t), uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!strcmp(word, name(i)))
            return (int)i;
    return -1;
}

static int find_kind(const char *word)
{
    for (uint32_t i = 0; i < MATMUL_N_KINDS; i++)
        if (!strcmp(word, quant_name(matmul_traits[i].type)))
            return (int)i;
    return -1;
}

static int find_class(uint32_t first)
{
    uint32_t class = first ? tuning_class(first) : 0;
    return tuning_class_first(class) == first ? (int)class : -1;
}

static int read_kernels(const struct reader *r, const char *line)
{
    unsigned first;
    char name[16];
    float gain;
    int end = 0;
    if (sscanf(line, "kernels %u %15s %f%n", &first, name, &gain, &end) != 3 || line[end])
        return broken(r, "not \"kernels COLUMNS NAME GAIN\"");
    int class = find_class(first);
    const struct matmul_kernels *kernels = matmul_find(name);
    if (class < 0)
        return broken(r, "columns begin at 1, 2, 5, 9 or 33");
    if (!kernels)
        return broken(r, "this CPU has no such kernels");
    if (!(gain > 0 && gain < 1000))
        return broken(r, "a gain is above 0 and below 1000");
    r->t->kernels[class] = kernels;
    r->t->kernels_gain[class] = gain;
    r->t->kept[class] = true;
    return 0;
}

static int read_choice(const struct reader *r, const char *line)
{
    char type[16], shape[16], hint[16];
    unsigned first, ahead;
    float gain, gbps;
    int end = 0;
    if (sscanf(line, "%15s %u %15s %15s %u %f %f%n", type, &first, shape, hint, &ahead, &gain, &gbps, &end) !=
            7 ||
        line[end])
        return broken(r, "not \"TYPE COLUMNS SHAPE HINT DISTANCE GAIN GBPS\"");
    int kind = find_kind(type), class = find_class(first);
    int s = find(shape, tuning_shape_name, MATMUL_N_SHAPES), h = find(hint, tuning_hint_name, MATMUL_N_HINTS);
    if (kind < 0)
        return broken(r, "unknown weight type");
    if (class < 0)
        return broken(r, "columns begin at 1, 2, 5, 9 or 33");
    if (s < 0)
        return broken(r, "a shape is built, direct, panel or spread");
    if (h < 0)
        return broken(r, "a hint is built, none, t0, t1, t2 or nta");
    if (ahead > MAX_AHEAD)
        return broken(r, "a distance is at most 1048576 bytes");
    if (!(gain > 0 && gain < 1000 && gbps >= 0 && gbps < 1e6f))
        return broken(r, "gain or GB/s out of range");
    r->t->choice[kind][class] =
        (struct tuning_choice){.variant = {.shape = (uint8_t)s, .hint = (uint8_t)h, .ahead = ahead},
                               .state = TUNING_KEPT,
                               .gain = gain,
                               .gbps = gbps};
    return 0;
}

/* The three lines that say what the choices were made on. Returns 1 if that is this machine, 0 if not. */
static int read_machine(const struct reader *r, const char *line, const char *isa)
{
    char own[160], cpu[128];
    tuning_cpu(cpu, sizeof cpu);
    const char *key = r->line == 2 ? "cpu" : r->line == 3 ? "isa" : "threads";
    if (r->line == 4)
        snprintf(own, sizeof own, "threads %u", r->t->n_threads);
    else
        snprintf(own, sizeof own, "%s %s", key, r->line == 2 ? cpu : isa);
    size_t len = strlen(key);
    if (strncmp(line, key, len) || line[len] != ' ')
        return broken(r, r->line == 2   ? "not \"cpu NAME\""
                         : r->line == 3 ? "not \"isa NAME\""
                                        : "not \"threads N\"");
    if (!strcmp(line, own))
        return 1;
    snprintf(r->t->note, sizeof r->t->note, "%.80s is of another machine (%.80s)", r->path, line);
    return 0;
}

static int read_line(const struct reader *r, const char *line, const char *isa)
{
    if (r->line == 1)
        return strcmp(line, HEADING) ? broken(r, "not \"" HEADING "\"") : 1;
    if (r->line <= 4)
        return read_machine(r, line, isa);
    int rc = strncmp(line, "kernels ", 8) ? read_choice(r, line) : read_kernels(r, line);
    return rc < 0 ? rc : 1;
}

static int read_lines(struct reader *r, FILE *f)
{
    char line[256];
    const char *isa = r->t->isa;
    int rc = 1;
    while (rc > 0 && fgets(line, sizeof line, f)) {
        size_t len = strlen(line);
        r->line++;
        if (!len || line[len - 1] != '\n')
            return broken(r, "the line is too long or has no end");
        line[len - 1] = 0;
        rc = read_line(r, line, isa);
    }
    if (rc > 0 && ferror(f))
        return unreadable(r->path, errno, r->err);
    if (!r->line)
        return error_set(r->err, -EINVAL, "cpu_tuning: %s is empty; remove the file to measure again",
                         r->path);
    return rc > 0 && r->line < 4 ? broken(r, "the file ends too early") : rc;
}

int tuning_read(struct tuning *t, const char *path, struct error *err)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return errno == ENOENT ? 0 : unreadable(path, errno, err);
    struct tuning read = *t;
    struct reader r = {.t = &read, .path = path, .err = err};
    int rc = read_lines(&r, f);
    fclose(f);
    if (rc > 0)
        *t = read;
    else
        memcpy(t->note, read.note, sizeof t->note);
    return rc;
}

/* False while any choice of the class is to be measured again: its table may change too. */
static bool class_settled(const struct tuning *t, uint32_t class)
{
    for (uint32_t kind = 0; kind < MATMUL_N_KINDS; kind++)
        if (t->choice[kind][class].unsettled)
            return false;
    return true;
}

static void write_choices(const struct tuning *t, FILE *f)
{
    char cpu[128];
    tuning_cpu(cpu, sizeof cpu);
    fprintf(f, HEADING "\ncpu %s\nisa %s\nthreads %u\n", cpu, t->isa, t->n_threads);
    for (uint32_t c = 0; c < TUNING_CLASSES; c++)
        if (class_settled(t, c))
            fprintf(f, "kernels %u %s %.3f\n", tuning_class_first(c), t->kernels[c]->name,
                    (double)t->kernels_gain[c]);
    for (uint32_t kind = 0; kind < MATMUL_N_KINDS; kind++)
        for (uint32_t c = 0; c < TUNING_CLASSES; c++) {
            const struct tuning_choice *choice = &t->choice[kind][c];
            bool has_table = class_settled(t, c) || t->kernels[c] == t->own; /* it was made with */
            if (choice->state != TUNING_BUILT && !choice->unsettled && has_table)
                fprintf(f, "%s %u %s %s %u %.3f %.2f\n", quant_name(matmul_traits[kind].type),
                        tuning_class_first(c), tuning_shape_name(choice->variant.shape),
                        tuning_hint_name(choice->variant.hint), choice->variant.ahead, (double)choice->gain,
                        (double)choice->gbps);
        }
}

int tuning_write(const struct tuning *t, const char *path, struct error *err)
{
    char part[4096];
    if ((size_t)snprintf(part, sizeof part, "%s.part", path) >= sizeof part)
        return error_set(err, -ENAMETOOLONG, "the name of the file is too long");
    FILE *f = fopen(part, "we");
    if (!f) {
        int rc = -errno;
        return error_set(err, rc, "%s cannot be written: %s", part, strerror(-rc));
    }
    write_choices(t, f);
    bool failed = ferror(f);
    failed = fclose(f) || failed;
    if (failed || rename(part, path)) {
        int rc = errno ? -errno : -EIO;
        remove(part);
        return error_set(err, rc, "%s cannot be written: %s", path, strerror(-rc));
    }
    return 0;
}
