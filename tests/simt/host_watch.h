/* host_watch.h - host code that reports its accesses to memory which it shares with a device.
 *
 * A program is linked with host_watch.c and with objects that were compiled for ThreadSanitizer, whose calls
 * host_watch.c takes in place of that sanitizer's runtime. The emulated driver finds simt_host_watch in the
 * program (cuInit), and gives the accesses to the clocks of its grids (emulator.h). With any other driver, or
 * none, nothing is reported and every access is what it would be. The library's own source has no part in it.
 * Thread: any. */
#pragma once
#include "simt/emulator/emulator.h"

struct simt_host_watch {
    /* Pinned memory of the driver lies between these; other memory may too. */
    _Atomic uintptr_t low, high;
    /* Reports an access. Ordered ones it also does: *value is what is stored or was loaded, of 4 or 8 bytes.
     * False: the memory is not shared, and nothing was done. */
    bool (*_Atomic access)(enum simt_host_access what, void *p, size_t size, uint64_t *value, const void *pc);
};

extern struct simt_host_watch simt_host_watch;
