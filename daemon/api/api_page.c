/* api_page.c - GET /: the page. */
#include "api.h"
#include "generation/generation.h"
#include "page/page.h"

void api_page(struct request *r)
{
    r->policy = page_policy();
    if (!r->policy) {
        api_out_of_memory(&r->error);
        request_fail(r, &r->error);
        return;
    }
    r->content_type = "text/html; charset=utf-8";
    buf_put(&r->out, page_html, page_html_size);
    request_reply(r, 200);
}
