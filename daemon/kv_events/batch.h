/* SPDX-License-Identifier: Apache-2.0 */
/* Writes events of the prefix cache as vLLM does: an EventBatch in msgpack. */
#ifndef MX_DAEMON_KV_EVENTS_BATCH_H
#define MX_DAEMON_KV_EVENTS_BATCH_H

#include "base/buf.h"
#include "engine/kv_events.h"

enum mx_kv_encoding {
	MX_KV_MAPS,  /* events are maps with a "type": vLLM 0.26 */
	MX_KV_ARRAYS /* events are arrays that begin with the type: vLLM 0.19 */
};

/* Appends [time, events, 0] to *out. `time`: seconds since the epoch; block_tokens: of each block.
 * A block behind the one before it joins its event, as do blocks that are removed one after the
 * other. */
void mx_kv_batch_write(struct mx_buf *out, double time, const struct mx_kv_event *events,
                       uint32_t n, uint32_t block_tokens, enum mx_kv_encoding encoding);

#endif
