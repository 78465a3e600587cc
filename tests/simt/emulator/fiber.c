#include "fiber.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define COLOURS      32
#define COLOUR_BYTES 128

#if defined(__SANITIZE_ADDRESS__)
#define FIBER_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FIBER_ASAN 1
#endif
#endif

#ifdef FIBER_ASAN
void __sanitizer_start_switch_fiber(void **save, const void *bottom, size_t size);
void __sanitizer_finish_switch_fiber(void *save, const void **bottom_old, size_t *size_old);
void __asan_unpoison_memory_region(void const volatile *addr, size_t size);

/* ASan must know the stack it switches to; the host thread's is learned at the first switch away from it. */
static _Thread_local const void *host_bottom;
static _Thread_local size_t host_size;
#endif

int fiber_stack_open(struct fiber *f, size_t size)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *base =
        mmap(NULL, size + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return -1;
    mprotect(base, page, PROT_NONE);
    f->stack = base + page;
    f->stack_size = size;
    return 0;
}

void fiber_stack_close(struct fiber *f)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
#ifdef FIBER_ASAN
    /* The next user of these addresses, a mapped file say, must not find a stack's red zones in the shadow.
     */
    if (f->stack)
        __asan_unpoison_memory_region(f->stack, f->stack_size);
#endif
    if (f->stack)
        munmap(f->stack - page, f->stack_size + page);
    f->stack = NULL;
}

#ifdef FIBER_ASSEMBLY
/* Saves the registers that a callee must keep and the stack pointer in *from_sp, and takes up the other
 * stack. */
void fiber_switch_stacks(void **from_sp, void *to_sp);
__asm__(".text\n"
        ".globl fiber_switch_stacks\n"
        ".type fiber_switch_stacks, @function\n"
        "fiber_switch_stacks:\n"
        "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n    pushq %r13\n    pushq %r14\n    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n    popq %r14\n    popq %r13\n    popq %r12\n    popq %rbx\n    popq %rbp\n"
        "    ret\n"
        ".size fiber_switch_stacks, .-fiber_switch_stacks\n");
#endif

void fiber_start(struct fiber *f, void (*entry)(void))
{
#ifdef FIBER_ASAN
    __asan_unpoison_memory_region(f->stack, f->stack_size);
#endif
    f->asan_fake_stack = NULL;
#ifdef FIBER_ASSEMBLY
    /* Stacks lie whole pages apart: without another start in each, the words in use of all of them would
     * share a few sets of the cache. */
    size_t start = (uintptr_t)f->stack / f->stack_size % COLOURS * COLOUR_BYTES;
    void **top = (void **)(f->stack + f->stack_size - start);
    *--top = NULL; /* a return address for entry(): its stack is aligned as after a call */
    *--top = (void *)(uintptr_t)entry;
    for (int i = 0; i < 6; i++)
        *--top = NULL;
    f->sp = top;
#else
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = f->stack_size;
    f->context.uc_link = NULL;
    makecontext(&f->context, entry, 0);
#endif
}

void fiber_switch(struct fiber *from, struct fiber *to)
{
#ifdef FIBER_ASAN
    __sanitizer_start_switch_fiber(&from->asan_fake_stack, to->stack ? to->stack : host_bottom,
                                   to->stack ? to->stack_size : host_size);
#endif
#ifdef FIBER_ASSEMBLY
    fiber_switch_stacks(&from->sp, to->sp);
#else
    swapcontext(&from->context, &to->context);
#endif
    fiber_arrived(from);
}

void fiber_arrived(struct fiber *self)
{
#ifdef FIBER_ASAN
    const void *bottom = NULL;
    size_t size = 0;
    __sanitizer_finish_switch_fiber(self->asan_fake_stack, &bottom, &size);
    if (self->stack && !host_bottom) { /* fibers are entered from the host's stack only */
        host_bottom = bottom;
        host_size = size;
    }
#else
    (void)self;
#endif
}
