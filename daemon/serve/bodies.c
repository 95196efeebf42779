/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/bodies.h"

#define FREE_BYTES     (64u << 10) /* of one body */
#define ALL_FREE_BYTES (64u << 20) /* of all connections together */

static uint64_t free_bytes(unsigned max_connections)
{
	uint64_t share = ALL_FREE_BYTES / (max_connections ? max_connections : 1);
	return share < FREE_BYTES ? share : FREE_BYTES;
}

uint64_t mx_bodies_free_total(unsigned max_connections)
{
	return free_bytes(max_connections) * max_connections;
}

void mx_bodies_init(struct mx_bodies *b, unsigned max_connections, uint64_t budget)
{
	*b = (struct mx_bodies){.free_bytes = free_bytes(max_connections), .budget = budget};
	pthread_mutex_init(&b->lock, NULL);
}

void mx_bodies_destroy(struct mx_bodies *b)
{
	pthread_mutex_destroy(&b->lock);
}

static void unlink_locked(struct mx_bodies *b, struct mx_upload *u)
{
	if (!u->unfinished)
		return;
	*(u->older ? &u->older->newer : &b->oldest) = u->newer;
	*(u->newer ? &u->newer->older : &b->newest) = u->older;
	u->older = u->newer = NULL;
	u->unfinished = false;
}

static void link_newest_locked(struct mx_bodies *b, struct mx_upload *u)
{
	u->older = b->newest;
	*(b->newest ? &b->newest->newer : &b->oldest) = u;
	b->newest = u;
	u->unfinished = true;
}

static void free_locked(struct mx_bodies *b, struct mx_upload *u)
{
	unlink_locked(b, u);
	b->paid -= u->paid;
	u->paid = 0;
	mx_buf_free(u->text);
}

static void drop_locked(struct mx_bodies *b, struct mx_upload *u)
{
	free_locked(b, u);
	u->dropped = true;
}

/* Takes n bytes of the budget for a body that is not in the list, if need be from those in it. */
static bool pay_locked(struct mx_bodies *b, struct mx_upload *u, uint64_t n)
{
	while (b->budget - b->paid < n && b->oldest)
		drop_locked(b, b->oldest);
	if (b->budget - b->paid < n)
		return false;
	b->paid += n;
	u->paid += n;
	return true;
}

bool mx_bodies_append(struct mx_bodies *b, struct mx_upload *u, const char *data, size_t n)
{
	pthread_mutex_lock(&b->lock);
	unlink_locked(b, u);
	bool ok = !u->dropped;
	uint64_t cost = ok ? u->text->len + n : 0;
	cost = cost > b->free_bytes ? cost - b->free_bytes - u->paid : 0;
	if (ok && cost)
		ok = pay_locked(b, u, cost);
	if (ok) {
		mx_buf_append(u->text, data, n);
		ok = !u->text->failed;
	}
	if (ok && u->paid)
		link_newest_locked(b, u);
	if (!ok)
		drop_locked(b, u);
	pthread_mutex_unlock(&b->lock);
	return ok;
}

bool mx_bodies_complete(struct mx_bodies *b, struct mx_upload *u)
{
	pthread_mutex_lock(&b->lock);
	unlink_locked(b, u);
	bool whole = !u->dropped;
	pthread_mutex_unlock(&b->lock);
	return whole;
}

void mx_bodies_free(struct mx_bodies *b, struct mx_upload *u)
{
	pthread_mutex_lock(&b->lock);
	free_locked(b, u);
	pthread_mutex_unlock(&b->lock);
}
