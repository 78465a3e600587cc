/* The name of the CPU, as /proc/cpuinfo has it. */
#include "base/cpu_name.h"

#include <criterion/criterion.h>
#include <string.h>

Test(cpu_name, has_no_spaces_around_it_and_is_cut_to_its_room)
{
    char whole[64], cut[4];
    cpu_name(whole, sizeof whole);
    cpu_name(cut, sizeof cut);
    size_t n = strlen(whole);
    cr_assert(n > 0 && whole[0] != ' ' && whole[n - 1] != ' ', "'%s'", whole);
    cr_assert_eq(strncmp(cut, whole, 3), 0);
    cr_assert_eq(strlen(cut), n < 3 ? n : 3);
}
