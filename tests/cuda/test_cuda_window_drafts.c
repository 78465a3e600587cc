/* Drafts on the cuda decoder where layers with windows keep what these cover alone: they change no bit. The
 * reference is the cpu without drafts. */
#define IDENTITY_PROMPT 150
#define IDENTITY_TOKENS 16
#define IDENTITY_CTX    1024 /* more than a window and the rows of the steps in flight cover */
#include "support/draft_identity.h"
#include "support/models/made_model.h"

Test(cuda_window_drafts, change_no_bit, .timeout = 1200)
{
    static const enum executor_kind kinds[] = {EXECUTOR_PERSISTENT, EXECUTOR_GRAPH};
    uint64_t drafted = 0, accepted = 0;
    char path[64];
    made_model("tiny-gpt-oss --n-ctx 1024", "mxfp4", path);
    for (uint32_t i = 0; i < 2; i++) {
        struct circumstances c = {.kind = kinds[i],
                                  .isa = "auto",
                                  .ops = &cuda_backend,
                                  .libcuda = LIBCUDA,
                                  .steps_in_flight = 2 - i};
        struct engine_stats s = check_drafts(path, c, 2 + i, i == 0);
        cr_assert_gt(s.windows_total, 0);
        drafted += s.drafted;
        accepted += s.accepted;
    }
    cr_assert(accepted > 5 && drafted > accepted + 5, "%lu drafted, %lu accepted", (unsigned long)drafted,
              (unsigned long)accepted);
    (void)unlink(path);
}
