/* The check of a step: pages where layers with windows have pages of their own, and masks. */
#include "backend/step_check.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define N_PAGES   10
#define N_WINDOWS 4
#define PAGE      4096
#define WINDOW    1024 /* bytes of a window page, the last ones of a page */

/* Checks a step with one edit and one page op; expects words with `says`, or none. */
static void expect(struct step_table_edit edit, struct step_page_op op, uint32_t n_windows, const char *says)
{
    struct step_limits limits = {.n_slots = 2,
                                 .n_ctx = 256,
                                 .n_vocab = 100,
                                 .n_pages = N_PAGES,
                                 .n_windows = n_windows,
                                 .max_rows = STEP_MAX_ROWS,
                                 .transfer_bytes = 2 * PAGE,
                                 .page_bytes = PAGE,
                                 .window_bytes = n_windows ? WINDOW : 0};
    struct step_checker *c = NULL;
    struct error err = {0};
    struct step *s = calloc(1, sizeof *s);
    cr_assert_not_null(s);
    cr_assert_eq(step_checker_open(&c, &limits, NULL), 0);
    s->id = 1;
    s->n_edits = 1;
    s->edits[0] = edit;
    s->n_page_ops = op.kind != 0;
    s->page_ops[0] = op;
    int rc = step_check(c, s, &err);
    cr_assert_eq(rc, says ? -EINVAL : 0, "%d: %s", rc, err.text);
    cr_assert(!says || strstr(err.text, says), "%s", err.text);
    step_checker_close(c);
    free(s);
}

static const struct step_table_edit fine = {.page = 1, .window = N_PAGES};
static const struct step_page_op none;

Test(step_check, a_window_page_is_numbered_behind_the_pages)
{
    expect(fine, none, N_WINDOWS, NULL);
    expect((struct step_table_edit){.page = 1}, none, N_WINDOWS, NULL);
    expect((struct step_table_edit){.window = N_PAGES + N_WINDOWS - 1}, none, N_WINDOWS, NULL);
    expect((struct step_table_edit){.window = N_PAGES + N_WINDOWS}, none, N_WINDOWS,
           "edits[0].window is 14, must be below 14");
    expect((struct step_table_edit){.window = 3}, none, N_WINDOWS, "edits[0].window is 3, a page");
    expect((struct step_table_edit){.page = N_PAGES}, none, N_WINDOWS, "edits[0].page is 10");
}

static struct step_page_op op(uint32_t kind, uint32_t page, uint32_t from, uint32_t offset)
{
    return (struct step_page_op){.kind = kind, .page = page, .from = from, .host_offset = offset / 64};
}

Test(step_check, copies_stay_among_pages_of_one_kind)
{
    expect(fine, op(STEP_PAGE_COPY, 2, 3, 0), N_WINDOWS, NULL);
    expect(fine, op(STEP_PAGE_COPY, N_PAGES, N_PAGES + 3, 0), N_WINDOWS, NULL);
    expect(fine, op(STEP_PAGE_COPY, 2, N_PAGES, 0), N_WINDOWS, "page_ops[0].from is 10, must be below 10");
    expect(fine, op(STEP_PAGE_COPY, N_PAGES, 2, 0), N_WINDOWS, "copies page 2 into window page 10");
    expect(fine, op(STEP_PAGE_COPY, N_PAGES, N_PAGES + 4, 0), N_WINDOWS, "page_ops[0].from is 14");
    expect(fine, op(STEP_PAGE_ZERO, N_PAGES + 4, 0, 0), N_WINDOWS, "page_ops[0].page is 14");
    expect(fine, op(STEP_PAGE_ZERO, N_PAGES, 0, 0), 0, "page_ops[0].page is 10, must be below 10");
}

Test(step_check, a_transfer_ends_within_the_buffer)
{
    expect(fine, op(STEP_PAGE_EXPORT, 2, 0, 2 * PAGE - (PAGE - WINDOW)), N_WINDOWS, NULL);
    expect(fine, op(STEP_PAGE_EXPORT, 2, 0, 2 * PAGE - (PAGE - WINDOW) + 64), N_WINDOWS, "ends beyond");
    expect(fine, op(STEP_PAGE_IMPORT, N_PAGES, 0, 2 * PAGE - WINDOW), N_WINDOWS, NULL);
    expect(fine, op(STEP_PAGE_IMPORT, N_PAGES, 0, 2 * PAGE - WINDOW + 64), N_WINDOWS, "ends beyond");
    expect((struct step_table_edit){.page = 1}, op(STEP_PAGE_IMPORT, 2, 0, PAGE + 64), 0, "ends beyond");
}

/* Checks a step with one row that is sampled, with that mask of n_masks. */
static void expect_mask(uint32_t mask, uint32_t n_masks, const char *says)
{
    struct step_limits limits = {
        .n_slots = 1, .n_ctx = 64, .n_vocab = 100, .n_pages = N_PAGES, .max_rows = STEP_MAX_ROWS};
    struct step_checker *c = NULL;
    struct error err = {0};
    struct step *s = calloc(1, sizeof *s);
    cr_assert_not_null(s);
    cr_assert_eq(step_checker_open(&c, &limits, NULL), 0);
    step_checker_masks(c, n_masks);
    s->id = s->n_edits = s->n_rows = s->n_logits = 1;
    s->logits[0] = (struct step_logit){.target = -1, .mask = mask};
    int rc = step_check(c, s, &err);
    cr_assert_eq(rc, says ? -EINVAL : 0, "%d: %s", rc, err.text);
    cr_assert(!says || strstr(err.text, says), "%s", err.text);
    step_checker_close(c);
    free(s);
}

Test(step_check, a_mask_is_one_that_the_host_has_named)
{
    expect_mask(0, 0, NULL);
    expect_mask(3, 3, NULL);
    expect_mask(1, 0, "logits[0].mask is 1, must be below 1");
    expect_mask(4, 3, "logits[0].mask is 4, must be below 4");
    expect_mask(UINT32_MAX, 3, "logits[0].mask is 4294967295, must be below 4");
}
