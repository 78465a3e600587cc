/* Counts of requests per client, with and without memory for them. */
#include "http/client_limit.h"
#include "support/failing_alloc.h"

#include <criterion/criterion.h>

static struct clients clients;

Test(client_limit, a_client_gets_its_limit_and_others_get_theirs)
{
    cr_assert_eq(clients_enter(&clients, 1, 2), CLIENT_COUNTED);
    cr_assert_eq(clients_enter(&clients, 1, 2), CLIENT_COUNTED);
    cr_assert_eq(clients_enter(&clients, 1, 2), CLIENT_REFUSED);
    cr_assert_eq(clients_enter(&clients, 2, 2), CLIENT_COUNTED);
    clients_leave(&clients, 1);
    cr_assert_eq(clients_enter(&clients, 1, 2), CLIENT_COUNTED);
    clients_free(&clients);
}

/* The first allocation is the table's, the second the client's. */
Test(client_limit, without_memory_a_request_is_let_in_uncounted)
{
    for (long n = 0; n < 2; n++) {
        fail_alloc_after(n);
        enum client_entry entry = clients_enter(&clients, 1, 1);
        fail_alloc_never();
        cr_expect_eq(entry, CLIENT_UNCOUNTED, "allocation %ld: %d", n, entry);
        cr_expect_eq(clients.n, 0);
    }
    cr_expect_eq(clients_enter(&clients, 1, 1), CLIENT_COUNTED);
    cr_expect_eq(clients_enter(&clients, 1, 1), CLIENT_REFUSED);
    clients_leave(&clients, 1);
    cr_expect_eq(clients.n, 0);
    clients_free(&clients);
}
