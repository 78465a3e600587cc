/* sanitized.h - the stride with which a test goes through many like cases. A sanitizer looks at code, which
 * like cases share: there it is `sanitized`. The release tests compare them all, or where each part of a case
 * is met with enough others every n-th.
 * `./dev test --all` (HEARTH_TEST_ALL) takes all of them everywhere. */
#pragma once

#if defined HEARTH_TEST_ALL
#define SAMPLED_STRIDE(n, sanitized) 1
#elif defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define SAMPLED_STRIDE(n, sanitized) (sanitized)
#else
#define SAMPLED_STRIDE(n, sanitized) (n)
#endif
#define SANITIZED_STRIDE(n) SAMPLED_STRIDE(1, n)
