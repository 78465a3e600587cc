/* rig.h - a decoder's memory and one launch of it on the emulator, without a backend. It does the host side
 * of the persistent decoder in the open, so that a test can do it wrong.
 * Thread: the test's; `outside` may be set by another. */
#pragma once
#include "abi/device_abi.h"
#include "simt/emulator/emulator.h"
#include "cuda/plan.h"

#define RIG_BUFFERS 48
#define RIG_SCRIPT  2

struct rig_config {
    const char *kernel;
    const struct program *program;         /* the dependencies are filled in a copy */
    const struct decoder_matrix *matrices; /* [n_weights], tiles included */
    const uint64_t *vectors;               /* [n_weights] */
    uint32_t n_weights;
    struct kv_layout layout, windows; /* of pages and, if there are any, window pages */
    uint32_t n_windows;
    uint32_t n_slots, n_ctx, n_pages, max_rows, logits_stride;
    uint32_t n_recurrent; /* layers with states of this shape */
    struct delta_shape delta;
    struct plan_device device;
    uint32_t n_stages; /* stages of the ring; 0: as planned */
    bool words;        /* ops pass words on where plan_words() says so */
};

struct rig {
    struct rig_config config;
    struct simt_machine *machine;
    struct decoder_args args;
    struct plan plan;
    struct program *program;
    uint64_t panel_bytes; /* plan_panels() */
    struct decoder_control *control;
    struct step *steps;
    struct step_result *results; /* [DECODER_RING][STEP_MAX_LOGITS] */
    char *transfer;
    uint32_t *masks; /* [DECODER_MASKS][sample_mask_words()] */
    struct decoder_mark
        *marks; /* [n_blocks][n_ops], then the border's; args.trace is their address if a test sets it */
    struct simt_outside *outside; /* for the next launches; NULL: the seed decides everything */
    struct rig_buffer {
        void *memory;
        size_t size;
        bool kept;    /* the model owns the contents */
        bool cleared; /* cleared before each launch */
    } buffers[RIG_BUFFERS];
    uint32_t n_buffers;
    /* The host's part in the next launch, if it has one: rig_script(). */
    struct rig_script {
        struct step *steps[RIG_SCRIPT];
        uint32_t n_steps, n_rounds; /* the steps, so many times over */
        uint32_t submitted, taken;
        bool told;
    } script;
};

void rig_open(struct rig *r, const struct rig_config *config);
void rig_close(struct rig *r);
/* Restores the state after load(): nothing was submitted yet. */
void rig_reset(struct rig *r);
/* Announces memory of the model that the kernel reads: packed weights, gains. */
void rig_map(struct rig *r, void *memory, size_t size, const char *name);

/* Returns the next place in the ring, zeroed; rig_submit() submits it. */
struct step *rig_step(struct rig *r);
void rig_submit(struct rig *r);
/* Returns the results of the `back`th step before the newest finished one. */
const struct step_result *rig_results(const struct rig *r, uint32_t back);

/* Returns the next step, zeroed, of a host that acts while the launch runs: it writes each step into the ring
 * when there is room, takes the results of each, and asks for the end after the last. A logit row with a
 * mask, whatever its number, gets one in the place of its step, made from the step's id. The scheduler
 * decides when the host acts, and its accesses are checked. A script is for one launch. */
struct step *rig_script(struct rig *r);

/* The host reads what the device has answered of the newest step, if anything, or the record of its failure.
 * Returns 0, or -1 with the report. */
int rig_take_answer(struct rig *r, const struct step *step, struct simt_report *report);

/* Runs one launch to its end, after which the host takes what it has waited for: results, a failure's record,
 * and with `left` all memory. Returns 0, or -1 with the report. */
int rig_launch(struct rig *r, uint32_t sm, uint64_t seed, enum simt_schedule schedule, int mute,
               struct simt_report *report);
