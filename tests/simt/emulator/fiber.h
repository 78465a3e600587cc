/* fiber.h - switching between stacks of one host thread: a few instructions on x86-64, ucontext elsewhere.
 * Thread: all fibers of a set belong to one thread. Memory: fiber_stack_close() releases the stack. */
#pragma once
#include <stddef.h>

#if defined(__x86_64__) && !defined(FIBER_UCONTEXT) /* define FIBER_UCONTEXT to test the other way */
#define FIBER_ASSEMBLY 1
#else
#include <ucontext.h>
#endif

struct fiber {
#ifdef FIBER_ASSEMBLY
    void *sp;
#else
    ucontext_t context;
#endif
    char *stack; /* NULL for the host thread's own */
    size_t stack_size;
    void *asan_fake_stack;
};

/* Reserves a stack of `size` bytes with an unmapped page below it. Returns 0, or -1. */
int fiber_stack_open(struct fiber *f, size_t size);
void fiber_stack_close(struct fiber *f);
/* Makes the next switch to `f` call entry(), which must never return. The call that ran on that stack before
 * is lost. */
void fiber_start(struct fiber *f, void (*entry)(void));
void fiber_switch(struct fiber *from, struct fiber *to);
/* Must be called first in a fresh fiber, and in the host thread after the switch back. */
void fiber_arrived(struct fiber *self);
