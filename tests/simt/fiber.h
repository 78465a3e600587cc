/* fiber.h - switching between stacks of one host thread: a few instructions on x86-64, ucontext elsewhere. */
#pragma once
#include <stddef.h>

#if defined(__x86_64__) && !defined(FIBER_UCONTEXT) /* the define is for trying the other way */
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

/* A stack of `size` bytes with an unmapped page below it. 0, or -1. */
int fiber_stack_open(struct fiber *f, size_t size);
void fiber_stack_close(struct fiber *f);
/* The next switch to `f` calls entry(), which must never return. Whatever ran on that stack before is
 * forgotten. */
void fiber_start(struct fiber *f, void (*entry)(void));
void fiber_switch(struct fiber *from, struct fiber *to);
/* The first thing a fresh fiber does, and the host thread after the switch back. */
void fiber_arrived(struct fiber *self);
