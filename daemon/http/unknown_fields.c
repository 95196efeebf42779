/* SPDX-License-Identifier: Apache-2.0 */
/* Warns of request fields that were taken although nobody knows them (http.unknown_fields). */
#include "base/clock.h"
#include "base/log.h"
#include "daemon/http/exchange.h"

#define EVERY_S                                                                                    \
	10 /* at most one line in so many seconds: clients choose how many there would be              \
	    */

void mx_exchange_warn_unknown(struct mx_exchange *x, const struct mx_api_unknown *unknown)
{
	struct mx_http *h = x->http;
	if (!unknown->text[0])
		return;
	uint64_t now = mx_now_ns(), next = atomic_load(&h->next_unknown_ns);
	if (now < next ||
	    !atomic_compare_exchange_strong(&h->next_unknown_ns, &next, now + EVERY_S * MX_NS_PER_S)) {
		atomic_fetch_add(&h->unknown_unsaid, 1);
		return;
	}
	uint64_t unsaid = atomic_exchange(&h->unknown_unsaid, 0);
	mx_warning("http", "%s, request %s: ignored: %s (and %llu more since the last such line)",
	           mx_http_route_name(x->route->id), x->id, unknown->text, (unsigned long long)unsaid);
}
