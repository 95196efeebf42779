/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/kv_events/replay.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

mx_status mx_kv_replay_init(struct mx_kv_replay *r, uint64_t cap, size_t max_bytes)
{
	*r = (struct mx_kv_replay){.cap = cap, .max_bytes = max_bytes};
	r->kept = cap ? mx_calloc(cap, sizeof(*r->kept)) : NULL;
	return r->kept ? MX_OK : cap ? MX_E_NOMEM : MX_E_INVALID;
}

static void drop_first(struct mx_kv_replay *r)
{
	struct mx_kv_kept *k = &r->kept[r->first++ % r->cap];
	r->bytes -= k->len;
	free(k->data);
	*k = (struct mx_kv_kept){0};
}

void mx_kv_replay_fini(struct mx_kv_replay *r)
{
	while (r->first < r->end)
		drop_first(r);
	free(r->kept);
	r->kept = NULL;
}

void mx_kv_replay_add(struct mx_kv_replay *r, const void *data, size_t len)
{
	while (r->first < r->end && (r->end - r->first == r->cap || r->bytes + len > r->max_bytes))
		drop_first(r);
	void *copy = len <= r->max_bytes ? malloc(len ? len : 1) : NULL;
	if (!copy) {
		while (r->first < r->end)
			drop_first(r);
		r->first = ++r->end;
		return;
	}
	memcpy(copy, data, len);
	r->kept[r->end++ % r->cap] = (struct mx_kv_kept){copy, len};
	r->bytes += len;
}

const struct mx_kv_kept *mx_kv_replay_get(const struct mx_kv_replay *r, uint64_t i)
{
	return &r->kept[i % r->cap];
}
