#include "mutation_suite.h"
#include "device/simt.h"

#include <stdlib.h>
#include <string.h>

#define GENERATIONS 2
static const uint32_t generations[GENERATIONS] = {80, 90};

static int run_clean(const struct mutation_suite *suite, uint32_t n_seeds)
{
    int failures = 0;
    for (uint32_t i = 0; i < suite->n_subjects * GENERATIONS; i++) {
        const struct mutation_subject *subject = &suite->subjects[i / GENERATIONS];
        struct simt_report report;
        uint32_t sm = generations[i % GENERATIONS];
        uint64_t seed = 0;
        void *context = suite->open(subject);
        while (seed < n_seeds && suite->run(context, sm, seed, -1, &report) == 0)
            seed++;
        printf("%-14s sm_%u  %s on %llu seeds\n", subject->source, sm, seed == n_seeds ? "clean" : "FAILED",
               (unsigned long long)seed);
        if (seed < n_seeds) {
            simt_report_print(&report, stdout);
            failures++;
        }
        suite->close(context);
    }
    return failures;
}

static const struct mutation_subject *subject_of(const struct mutation_suite *suite, int mutation)
{
    enum simt_aspect aspect = SIMT_WHOLE;
    const char *file = simt_mutation(mutation, &aspect)->kernel_file;
    const char *slash = strrchr(file, '/'), *name = slash ? slash + 1 : file;
    for (uint32_t i = 0; i < suite->n_subjects; i++) {
        size_t n = strlen(suite->subjects[i].source);
        if (strncmp(name, suite->subjects[i].source, n) == 0 && strcmp(name + n, ".c") == 0)
            return &suite->subjects[i];
    }
    return NULL;
}

/* The number of the first seed that fails, or n_seeds. */
static uint32_t first_failure(const struct mutation_suite *suite, int mutation, uint32_t n_seeds,
                              struct simt_report *report)
{
    enum simt_aspect aspect = SIMT_WHOLE;
    const struct simt_site *site = simt_mutation(mutation, &aspect);
    void *context = suite->open(subject_of(suite, mutation));
    uint32_t seed = 0;
    while (seed < n_seeds && suite->run(context, site->sm, seed, mutation, report) == 0)
        seed++;
    suite->close(context);
    return seed;
}

/* True if the list has a line with this key and a reason. */
static bool has_line(const char *key)
{
    char line[512];
    FILE *f = fopen(SIMT_UNSEEN, "r");
    bool found = false;
    size_t n = strlen(key);
    while (f && !found && fgets(line, sizeof line, f))
        found = strncmp(line, key, n) == 0 && strlen(line) > n + 1;
    if (f)
        fclose(f);
    return found;
}

/* The number, from 1, of a mutation among the function's uses of a word. */
static unsigned place_of(int mutation)
{
    enum simt_aspect aspect = SIMT_WHOLE, its = SIMT_WHOLE;
    const struct simt_site *site = simt_mutation(mutation, &aspect);
    unsigned place = 1;
    for (int i = 0; i < simt_n_mutations(); i++) {
        const struct simt_site *s = simt_mutation(i, &its);
        place += its == aspect && s->sm == site->sm && s->line < site->line &&
                 strcmp(s->kernel_file, site->kernel_file) == 0 && strcmp(s->file, site->file) == 0 &&
                 strcmp(s->function, site->function) == 0 && strcmp(s->word, site->word) == 0;
    }
    return place;
}

/* Lines of the list are "<source> sm_NN <file> <word> <aspect>: <reason>", or have the function's name behind
 * the file's, in brackets, and where it uses the word more than once perhaps which; line numbers are left
 * out. */
static bool is_listed(int mutation, const char *text)
{
    char key[256];
    enum simt_aspect aspect = SIMT_WHOLE;
    const struct simt_site *site = simt_mutation(mutation, &aspect);
    const char *colon = strchr(text, ':'), *space = colon ? strchr(colon, ' ') : NULL;
    if (!space)
        return false;
    snprintf(key, sizeof key, "%.*s%s: ", (int)(colon - text), text, space);
    if (has_line(key))
        return true;
    snprintf(key, sizeof key, "%.*s (%s)%s: ", (int)(colon - text), text, site->function, space);
    if (has_line(key))
        return true;
    snprintf(key, sizeof key, "%.*s (%s, %u)%s: ", (int)(colon - text), text, site->function,
             place_of(mutation), space);
    return has_line(key);
}

static bool is_elsewhere(const struct mutation_suite *suite, int mutation)
{
    enum simt_aspect aspect = SIMT_WHOLE;
    const char *file = simt_mutation(mutation, &aspect)->file, *slash = strrchr(file, '/');
    const char *name = slash ? slash + 1 : file;
    for (const char *const *e = suite->elsewhere; e && *e; e++)
        if (strncmp(name, *e, strlen(*e)) == 0)
            return true;
    return false;
}

static bool is_short(void)
{
    const char *wanted = getenv("SIMT_GENERATIONS");
    return wanted && strcmp(wanted, "one") == 0;
}

/* True if SIMT_GENERATIONS=one leaves it to the other generation, which has the same use of the word. Odd and
 * even lines take turns. */
static bool is_left_to_twin(int mutation)
{
    enum simt_aspect aspect = SIMT_WHOLE, its = SIMT_WHOLE;
    const struct simt_site *site = simt_mutation(mutation, &aspect);
    if (!is_short() || site->sm == generations[site->line % GENERATIONS])
        return false;
    for (int i = 0; i < simt_n_mutations(); i++) {
        const struct simt_site *s = simt_mutation(i, &its);
        if (its == aspect && s->sm != site->sm && s->line == site->line &&
            strcmp(s->kernel_file, site->kernel_file) == 0 && strcmp(s->file, site->file) == 0 &&
            strcmp(s->function, site->function) == 0 && strcmp(s->word, site->word) == 0)
            return true;
    }
    return false;
}

static int run_mutations(const struct mutation_suite *suite, uint32_t n_seeds)
{
    int failures = 0, seen = 0, unseen = 0;
    for (int i = 0; i < simt_n_mutations(); i++) {
        char text[256];
        struct simt_report report;
        simt_mutation_text(i, text, sizeof text);
        if (!subject_of(suite, i)) {
            printf("FAILED  %3d %s: nothing runs it\n", i, text);
            failures++;
            continue;
        }
        if (is_elsewhere(suite, i) || is_left_to_twin(i))
            continue;
        bool listed = is_listed(i, text);
        uint32_t n = listed && suite->listed_seeds ? suite->listed_seeds : n_seeds;
        uint32_t at = first_failure(suite, i, n, &report);
        bool ok = (at < n) != listed;
        printf("%s %3d %-72s ", ok ? "ok     " : "FAILED ", i, text);
        if (at < n)
            printf("%s, seed %u%s\n", report.kind, at, listed ? ", though listed as unseen" : "");
        else
            printf("not seen%s\n", listed ? ", as listed" : "");
        seen += at < n;
        unseen += at == n;
        failures += !ok;
    }
    printf("%d mutations seen, %d not seen, %d failures\n", seen, unseen, failures);
    return failures;
}

static int run_one(const struct mutation_suite *suite, const char *which, uint32_t n_seeds)
{
    char text[256];
    struct simt_report report;
    if (strcmp(which, "list") == 0) {
        for (int i = 0; i < simt_n_mutations(); i++) {
            simt_mutation_text(i, text, sizeof text);
            printf("%3d %s\n", i, text);
        }
        return 0;
    }
    int mutation = atoi(which);
    if (mutation < 0 || mutation >= simt_n_mutations() || !subject_of(suite, mutation)) {
        fprintf(stderr, "SIMT_MUTE=%s: there are mutations 0 to %d\n", which, simt_n_mutations() - 1);
        return 2;
    }
    simt_mutation_text(mutation, text, sizeof text);
    printf("%s\n", text);
    uint32_t at = first_failure(suite, mutation, n_seeds, &report);
    if (at == n_seeds) {
        printf("not seen on %u seeds\n", n_seeds);
        return 1;
    }
    printf("seed %u: ", at);
    simt_report_print(&report, stdout);
    return 0;
}

int mutation_suite_main(const struct mutation_suite *suite, int argc, char **argv)
{
    uint32_t clean = argc > 1 ? (uint32_t)atoi(argv[1]) : suite->clean_seeds;
    uint32_t per_mutation = argc > 2 ? (uint32_t)atoi(argv[2]) : suite->mutation_seeds;
    const char *mute = getenv("SIMT_MUTE");
    if (mute)
        return run_one(suite, mute, per_mutation);
    /* The seeds of each phase (seeds/), and the checked cases, run clean too: here it is shown of the runs
     * that must fail. */
    if (argc <= 1 && is_short())
        clean = clean / 4 > 4 ? clean / 4 : 4;
    int failures = run_clean(suite, clean);
    failures += run_mutations(suite, per_mutation);
    return failures ? 1 : 0;
}
