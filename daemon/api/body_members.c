#include "body_members.h"
#include "generation/generation.h" /* STEP_MAX_HISTORY */

bool body_put(json_t *out, const char *name, json_t *value)
{
    return !value || json_is_null(value) || json_object_set(out, name, value) == 0;
}

bool body_put_member(json_t *out, const struct body_member *m, json_t *value)
{
    json_int_t instead = m->negative == NEGATIVE_ALL ? STEP_MAX_HISTORY : 0;
    if (m->negative == NEGATIVE_AS_IT_IS || !json_is_number(value) || json_number_value(value) >= 0)
        return body_put(out, m->here, value);
    return m->negative == NEGATIVE_NOTHING || json_object_set_new(out, m->here, json_integer(instead)) == 0;
}

bool body_copy(json_t *out, const json_t *from, const struct body_member *list)
{
    for (const struct body_member *m = list; m->there; m++)
        if (!json_object_get(out, m->here) && !body_put_member(out, m, json_object_get(from, m->there)))
            return false;
    return true;
}
