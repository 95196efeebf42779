/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The last batches that were published, for subscribers that missed some. Bounded in number and in
 * bytes: the oldest go first. For one thread.
 */
#ifndef MX_DAEMON_KV_EVENTS_REPLAY_H
#define MX_DAEMON_KV_EVENTS_REPLAY_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct mx_kv_kept {
	void *data; /* the batch */
	size_t len;
};

struct mx_kv_replay {
	struct mx_kv_kept *kept;  /* [cap] batch i is at i % cap */
	uint64_t cap, first, end; /* batches first .. end - 1 are kept */
	size_t bytes, max_bytes;
};

/* Makes room for `cap` batches, cap >= 1, of max_bytes together. */
mx_status mx_kv_replay_init(struct mx_kv_replay *r, uint64_t cap, size_t max_bytes);
void mx_kv_replay_fini(struct mx_kv_replay *r); /* takes a zeroed one */

/* Keeps a copy of batch r->end. If it cannot be kept, no earlier one is either. */
void mx_kv_replay_add(struct mx_kv_replay *r, const void *data, size_t len);
/* Returns batch i, first <= i < end. */
const struct mx_kv_kept *mx_kv_replay_get(const struct mx_kv_replay *r, uint64_t i);

#endif
