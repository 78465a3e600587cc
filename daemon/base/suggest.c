#include "suggest.h"

#include <ctype.h>
#include <string.h>

#define MAX_WORD 127

static size_t min2(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Three rows of the usual table: the swap of neighbours looks two rows back. */
size_t nearest_distance(const char *a, const char *b)
{
    size_t rows[3][MAX_WORD + 1];
    size_t n_a = strnlen(a, MAX_WORD), n_b = strnlen(b, MAX_WORD);

    for (size_t j = 0; j <= n_b; j++)
        rows[0][j] = j;
    for (size_t i = 1; i <= n_a; i++) {
        size_t *now = rows[i % 3], *last = rows[(i + 2) % 3], *before = rows[(i + 1) % 3];
        now[0] = i;
        for (size_t j = 1; j <= n_b; j++) {
            int x = tolower((unsigned char)a[i - 1]), y = tolower((unsigned char)b[j - 1]);
            now[j] = min2(min2(last[j], now[j - 1]) + 1, last[j - 1] + (x != y));
            if (i > 1 && j > 1 && x == tolower((unsigned char)b[j - 2]) &&
                y == tolower((unsigned char)a[i - 2]))
                now[j] = min2(now[j], before[j - 2] + 1);
        }
    }
    return rows[n_a % 3][n_b];
}

const char *nearest(const char *word, const char *const *candidates, size_t n)
{
    size_t allowed = strlen(word) / 3 > 2 ? strlen(word) / 3 : 2;
    const char *best = NULL;

    for (size_t i = 0; i < n; i++) {
        size_t distance = nearest_distance(word, candidates[i]);
        if (distance <= allowed) {
            best = candidates[i];
            if (distance == 0)
                break;
            allowed = distance - 1;
        }
    }
    return best;
}
