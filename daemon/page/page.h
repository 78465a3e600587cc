/* page.h - the page at /: one HTML file inside the program (daemon/page/index.html), and the policy under
 * which a browser runs it. Thread: loop; the policy is made once. */
#pragma once
#include <stddef.h>

extern const char page_html[]; /* page_html_size bytes and a NUL */
extern const size_t page_html_size;

/* The Content-Security-Policy: nothing but the page's own style and script, by their SHA-256, and requests to
 * where it came from. NULL: out of memory. */
const char *page_policy(void);
