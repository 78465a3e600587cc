/* call_id.h - ids of calls of tools: CALL_ID letters and digits, all that Mistral's templates take. Thread:
 * any. Memory: none. */
#pragma once
#include <stdint.h>

#define CALL_ID 9 /* characters; no NUL is written */

static inline void call_id_write(char *out, uint64_t hash)
{
    static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    for (int i = 0; i < CALL_ID; i++, hash /= 62)
        out[i] = digits[hash % 62];
}
