/* The order that the host's words have (cuda_word(), cuda_word_set()), taken from one word at a time: the
 * emulator must report what the host then reads or writes without order, or the list of what cannot be seen
 * has the word with its reason. The real lib/cuda runs, compiled to report its accesses
 * (tests/simt/host_watch.h). */
#include "abi/device_abi.h"
#include "cuda/cuda_decoder.h"
#include "support/decoder_run.h"

#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

#define MODEL   HEARTH_TEST_DATA "/tiny-llama3-s15-q4_k_m.gguf"
#define N_STEPS 6

/* Gives up, as a host may: the kernel ends, and writes the record of a failure. */
static void abort_decoder(const struct executor *x)
{
    const struct cuda_decoder *d =
        (const struct cuda_decoder *)executor_backend((struct executor *)(uintptr_t)x);
    cuda_word_set(&cuda_control(d)->stop, DECODER_ABORT);
}

/* Six steps, two in flight, with what a step does to memory that the device shares: results, exported logits,
 * a mask, a page to the host and back; a park between two. `aborts`: the decoder is aborted in the last. */
static void run(bool aborts, struct error *err)
{
    struct decoder_run r;
    struct decoder_run_config c = {
        .path = MODEL, .kind = EXECUTOR_PERSISTENT, .ops = &cuda_backend, .libcuda = LIBCUDA};
    uint64_t done = 0;
    int rc = 0;
    decoder_run_open(&r, &c);
    uint32_t n_words = (r.n_vocab + 31) / 32, *mask = malloc(n_words * sizeof *mask);
    cr_assert_not_null(mask);
    memset(mask, 0x55, n_words * sizeof *mask);
    cr_assert(executor_masks(r.x, mask, 1, n_words));
    for (uint32_t i = 0; rc >= 0 && i < N_STEPS; i++) {
        decoder_run_row(&r, 0, i, 5, true);
        r.step->id = i + 1;
        r.step->logits[0].mask = 1;
        if (i == 2) {
            r.step->page_ops[r.step->n_page_ops++] = (struct step_page_op){STEP_PAGE_EXPORT, 0, 0, 0};
            r.step->page_ops[r.step->n_page_ops++] = (struct step_page_op){STEP_PAGE_IMPORT, 0, 0, 0};
        }
        rc = executor_submit(r.x, r.step, err);
        if (aborts && i + 1 == N_STEPS)
            abort_decoder(r.x);
        while (rc >= 0 && i % 2 && done < i + 1) /* every other step joins one in flight */
            rc = executor_advance(r.x, r.results, 1, &done, err);
        memset(r.step, 0, offsetof(struct step, rows));
        if (i == 3 && rc >= 0)
            executor_park(r.x);
    }
    free(mask);
    decoder_run_close(&r);
}

/* Returns what the emulator writes to stderr meanwhile; to free. */
static char *reported(bool aborts, struct error *err)
{
    char *text = calloc(1, 1 << 16);
    int log = memfd_create("log", MFD_CLOEXEC), was = dup(STDERR_FILENO);
    cr_assert(text && log >= 0 && was >= 0 && dup2(log, STDERR_FILENO) >= 0);
    run(aborts, err);
    dup2(was, STDERR_FILENO);
    cr_assert_geq(pread(log, text, (1 << 16) - 1, 0), 0);
    close(log);
    close(was);
    return text;
}

static void reports_nothing(bool aborts)
{
    struct error err = {0};
    char *text = reported(aborts, &err);
    cr_assert_null(strstr(text, "SIMT emulator"), "%s", text);
    cr_assert(aborts ? strstr(err.text, "was aborted") != NULL : err.code == 0, "\"%s\"", err.text);
    free(text);
}

Test(host_mutations, orders_as_they_are_give_nothing_to_report)
{
    reports_nothing(false);
}

Test(host_mutations, nor_do_they_when_the_decoder_fails)
{
    reports_nothing(true);
}

/* True if the list of what cannot be seen has the word. */
static bool is_listed(const char *word)
{
    char line[512], key[64];
    bool found = false;
    FILE *f = fopen(SIMT_UNSEEN, "r");
    cr_assert_not_null(f);
    (void)snprintf(key, sizeof key, "lib/cuda %s without order: ", word);
    while (!found && fgets(line, sizeof line, f))
        found = strncmp(line, key, strlen(key)) == 0 && strlen(line) > strlen(key) + 1;
    fclose(f);
    return found;
}

static void weaken(const char *word, size_t offset, bool aborts)
{
    struct error err = {0};
    char at[32];
    (void)snprintf(at, sizeof at, "%zu", offset);
    setenv("SIMT_HOST_MUTE", at, 1);
    char *text = reported(aborts, &err);
    bool seen = strstr(text, ": race: ") && strstr(text, "the host");
    cr_assert_eq(seen, !is_listed(word), "%s without order is %s: %s\n%s", word,
                 seen ? "seen, though listed as unseen" : "not seen", err.text, text);
    cr_log_info("%s", text);
    free(text);
}

#define WEAKEN(word, aborts)                                                                                 \
    Test(host_mutations, word##_without_order)                                                               \
    {                                                                                                        \
        weaken(#word, offsetof(struct decoder_control, word), aborts);                                       \
    }
WEAKEN(submitted, false)
WEAKEN(completed, false)
WEAKEN(failed, true)
WEAKEN(stop, false)
WEAKEN(left, false)
WEAKEN(heartbeat, false)
