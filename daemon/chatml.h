/* chatml.h - whether a model's chat template says no more than ChatML: every message as
 * "<|im_start|>role\ncontent<|im_end|>\n", then "<|im_start|>assistant\n". Templates are programs, and this
 * does not run them: it refuses what it finds of the things by which templates are known to say more, and
 * reads the one that is common, a default system message. Pure; any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#define CHATML_START      "<|im_start|>"
#define CHATML_END        "<|im_end|>"
#define CHATML_MAX_SYSTEM 1024 /* bytes of a default system message */

struct chatml {
    char
        system[CHATML_MAX_SYSTEM]; /* said when the first message is no system message; n_system 0: nothing */
    size_t n_system;
    bool changes_tools;   /* tool messages may be written in another way */
    bool changes_answers; /* so may an assistant's message that is the last or holds "</think>" */
};

/* `text` NULL: the file has no template, which is plain ChatML. NULL when *out says all that the template
 * does; else words for "the template ...", and *out is nothing to use. */
const char *chatml_detect(const char *text, size_t len, struct chatml *out);
