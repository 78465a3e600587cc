/* Memory that is promised but not touched yet. */
#include "base/memory.h"

#include <criterion/criterion.h>
#include <string.h>

#define SIZE ((size_t)8 << 20)

Test(memory, a_promise_holds_until_the_block_is_touched_or_given_back)
{
    struct memory_block a, b;
    cr_assert_eq(memory_take(&a, SIZE, "a", NULL), 0);
    cr_assert_eq(memory_take(&b, SIZE, "b", NULL), 0);
    cr_assert_eq(memory_promised(), 0, "taken is not promised");
    memory_promise(&a);
    memory_promise(&b);
    cr_assert_eq(memory_promised(), 2 * SIZE);
    memset(a.data, 1, SIZE / 2);
    cr_assert_eq(memory_promised(), SIZE + SIZE / 2);
    memset(a.data, 1, SIZE);
    cr_assert_eq(memory_promised(), SIZE);
    memory_give(&b);
    cr_assert_eq(memory_promised(), 0);
    memory_give(&a);
    cr_assert_eq(memory_promised(), 0);
}
