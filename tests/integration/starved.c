#include "starved.h"
#include "harness.h"

#include <sys/mman.h>

struct starve *starve;

int starved_open(void)
{
    char number[16];
    int fd = memfd_create("starve", 0);
    cr_assert_eq(ftruncate(fd, sizeof *starve), 0);
    starve = mmap(NULL, sizeof *starve, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    cr_assert_neq(starve, MAP_FAILED);
    starve->fails_at[STARVE_OURS] = starve->fails_at[STARVE_THEIRS] = -1;
    snprintf(number, sizeof number, "%d", fd);
    setenv(STARVE_FD, number, 1);
    daemon_binary = HEARTHD_STARVED_BINARY;
    return fd;
}

void starved_start(const char *const *flags)
{
    int fd = starved_open();
    daemon_start(flags);
    close(fd);
}
