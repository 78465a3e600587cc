/* test_cuda_cubins.c - the backend with machine code for two of its kernels, for compute capability 9.0
 * alone: what is loaded from where, and what backend_info says of it. The emulated kernels stand in for the
 * machine code. */
#include "backend/executor.h"
#include "cuda/ptx_image.h"
#include "support/decoder_run.h"

#include <criterion/criterion.h>
#include <string.h>

#define MODEL HEARTH_TEST_DATA "/tiny-qwen3-s11-q4_k_m.gguf"

/* Runs one step of a decoder with one module per source, and returns what info says. */
static struct backend_info info_of(struct decoder_run *r, const char *takes_cubins, const char *sm)
{
    struct decoder_run_config c = {
        .path = MODEL, .ops = &cuda_backend, .kind = EXECUTOR_EAGER, .libcuda = LIBCUDA};
    struct backend_info info;
    setenv("SIMT_MEMORY_MB", "64", 1);
    setenv("SIMT_CUBINS", takes_cubins, 1);
    setenv("SIMT_DEVICE_SM", sm, 1);
    decoder_run_open(r, &c);
    decoder_run_row(r, 0, 0, 5, true);
    decoder_run_step(r);
    executor_info(r->x, &info);
    cr_assert(info.n_modules > 5 && info.steps == 1);
    return info;
}

Test(cuda_cubins, go_before_ptx_for_the_kernels_that_have_them)
{
    struct decoder_run r;
    struct backend_info info = info_of(&r, "1", "90");
    cr_assert_eq(info.n_cubins, N_CUBINS);
    cr_assert_null(info.jit_reason);
    decoder_run_close(&r);
}

Test(cuda_cubins, give_way_to_ptx_when_the_driver_refuses_them)
{
    struct decoder_run r;
    struct backend_info info = info_of(&r, "0", "90");
    cr_assert_eq(info.n_cubins, 0);
    cr_assert_eq(info.jit_reason != NULL, N_CUBINS > 0);
    cr_assert(!info.jit_reason || strstr(info.jit_reason, "refused"), "%s", info.jit_reason);
    decoder_run_close(&r);
}

Test(cuda_cubins, of_another_device_are_not_tried)
{
    struct decoder_run r;
    struct backend_info info = info_of(&r, "1", "80");
    cr_assert_eq(info.n_cubins, 0);
    cr_assert(!info.jit_reason || strstr(info.jit_reason, "compute capability 8.0"), "%s", info.jit_reason);
    decoder_run_close(&r);
}
