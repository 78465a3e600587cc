/* sanitized.h - the stride with which a test goes through many like cases: 1, and n under a sanitizer. A
 * sanitizer looks at code, which like cases share; the release tests compare them all. `./dev test --all`
 * (HEARTH_TEST_ALL) takes all of them under the sanitizer too. */
#pragma once

#if (defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__) && !defined HEARTH_TEST_ALL
#define SANITIZED_STRIDE(n) (n)
#else
#define SANITIZED_STRIDE(n) 1
#endif
