/* report.c - the text of a report, and the numbers of the mutations. */
#include "machine.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern const struct simt_site __start_simt_sites[], __stop_simt_sites[];
extern const struct simt_kernel __start_simt_kernels[], __stop_simt_kernels[];

static void fill(struct simt_machine *m, const char *kind, const char *fmt, va_list ap)
{
    if (m->reported)
        return;
    m->reported = true;
    snprintf(m->report->kind, sizeof m->report->kind, "%s", kind);
    vsnprintf(m->report->text, sizeof m->report->text, fmt, ap);
}

void report_note(struct simt_machine *m, const char *kind, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fill(m, kind, fmt, ap);
    va_end(ap);
}

void report_fault(struct simt_machine *m, const char *kind, const void *pc0, const void *pc1, const char *fmt,
                  ...)
{
    va_list ap;
    va_start(ap, fmt);
    fill(m, kind, fmt, ap);
    va_end(ap);
    m->report->pc[0] = pc0;
    m->report->pc[1] = pc1;
    for (;;) /* the scheduler does not come back to a run that has a report */
        fiber_switch(&m->running->fiber, &m->host);
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

const char *report_where(const struct simt_site *at, char *out, size_t size)
{
    if (!at)
        snprintf(out, size, "none yet");
    else
        snprintf(out, size, "%s:%u %s", base_name(at->file), at->line, at->word);
    return out;
}

/* addr2line's answer for an address in this program, if it has one. */
static void print_line(const char *what, const void *pc, FILE *to)
{
    Dl_info info;
    if (!pc || !dladdr(pc, &info) || !info.dli_fname)
        return;
    char command[600], line[400], program[40];
    snprintf(program, sizeof program, "/proc/%d/exe", getpid()); /* a program may have any name for itself */
    snprintf(command, sizeof command, "addr2line -i -e '%s' %#lx 2>/dev/null",
             strchr(info.dli_fname, '/') ? info.dli_fname : program,
             (unsigned long)((uintptr_t)pc - 1 - (uintptr_t)info.dli_fbase));
    FILE *f = popen(command, "r");
    while (f && fgets(line, sizeof line, f))
        fprintf(to, "    %s at %s", what, line);
    if (f)
        pclose(f);
}

void simt_report_print(const struct simt_report *report, FILE *to)
{
    fprintf(to, "%s: %s\n", report->kind, report->text);
    print_line("this access", report->pc[0], to);
    print_line("the other", report->pc[1], to);
}

const struct simt_kernel *simt_find_kernel(const char *name, uint32_t sm)
{
    for (const struct simt_kernel *k = __start_simt_kernels; k < __stop_simt_kernels; k++)
        if (k->sm == sm && strcmp(k->name, name) == 0)
            return k;
    return NULL;
}

int simt_n_mutations(void)
{
    int n = 0;
    for (const struct simt_site *s = __start_simt_sites; s < __stop_simt_sites; s++)
        n += __builtin_popcount(s->aspects);
    return n;
}

const struct simt_site *simt_mutation(int n, enum simt_aspect *aspect)
{
    for (const struct simt_site *s = __start_simt_sites; s < __stop_simt_sites; s++)
        for (uint32_t bit = SIMT_WHOLE; bit <= SIMT_SCOPE; bit *= 2)
            if ((s->aspects & bit) && n-- == 0) {
                *aspect = (enum simt_aspect)bit;
                return s;
            }
    return NULL;
}

void simt_mutation_text(int n, char *out, size_t size)
{
    enum simt_aspect aspect = SIMT_WHOLE;
    const struct simt_site *s = simt_mutation(n, &aspect);
    if (!s) {
        snprintf(out, size, "none");
        return;
    }
    snprintf(out, size, "%s sm_%u %s:%u %s %s", base_name(s->kernel_file), s->sm, base_name(s->file), s->line,
             s->word,
             aspect == SIMT_WHOLE     ? "dropped"
             : aspect == SIMT_ACQUIRE ? "without acquire"
             : aspect == SIMT_RELEASE ? "without release"
                                      : "at cta scope");
}
