/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The service vllm.grpc.engine.VllmEngine: SubscribeKvEvents, the changes of the model's
 * prefix cache. A subscriber gets KvCacheCleared and all that is cached, then what comes
 * and goes; so it does again if it reads too slowly. Changes are looked for four times a
 * second.
 *
 * Events have the tokens of everybody's prompts: where keys are wanted only routers get
 * them, and no longer than they are that.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "daemon/grpc/front_impl.h"
#include "engine/kv_events.h"
#include "proto/pb/vllm/common.pb-c.h"

struct subscription {
	struct mx_served *model; /* held */
	struct mx_kv_reader *reader;
	uint32_t block_tokens;
	uint64_t n_batches, n_events;
};

/* An event with all its parts. */
struct event {
	Smg__Grpc__Common__KvCacheEvent event;
	Smg__Grpc__Common__KvBlocksStored stored;
	Smg__Grpc__Common__KvBlocksRemoved removed;
	Smg__Grpc__Common__KvCacheCleared cleared;
	Smg__Grpc__Common__KvBlock block, *blocks[1];
	int64_t hash;
	char salt[33];
};

static void describe_stored(const struct mx_kv_event *from, uint32_t block_tokens, struct event *e)
{
	smg__grpc__common__kv_blocks_stored__init(&e->stored);
	smg__grpc__common__kv_block__init(&e->block);
	e->block.block_hash = (int64_t)from->hash;
	e->block.block_size = (int32_t)block_tokens;
	e->block.n_token_ids = block_tokens;
	e->block.token_ids = (uint32_t *)(uintptr_t)from->tokens;
	e->blocks[0] = &e->block;
	e->stored.n_blocks = 1;
	e->stored.blocks = e->blocks;
	if (from->parent) {
		e->stored.has_parent_block_hash_case =
			SMG__GRPC__COMMON__KV_BLOCKS_STORED__HAS_PARENT_BLOCK_HASH_PARENT_BLOCK_HASH;
		e->stored.parent_block_hash = (int64_t)from->parent;
	}
	if (from->salt[0] || from->salt[1]) {
		snprintf(e->salt, sizeof(e->salt), "%016llx%016llx", (unsigned long long)from->salt[0],
		         (unsigned long long)from->salt[1]);
		e->stored.has_cache_salt_case =
			SMG__GRPC__COMMON__KV_BLOCKS_STORED__HAS_CACHE_SALT_CACHE_SALT;
		e->stored.cache_salt = mx_pb_string(e->salt);
	}
	e->event.data_case = SMG__GRPC__COMMON__KV_CACHE_EVENT__DATA_STORED;
	e->event.stored = &e->stored;
}

static void describe(const struct mx_kv_event *from, uint32_t block_tokens, struct event *e)
{
	smg__grpc__common__kv_cache_event__init(&e->event);
	switch (from->kind) {
	case MX_KV_STORED: describe_stored(from, block_tokens, e); break;
	case MX_KV_REMOVED:
		smg__grpc__common__kv_blocks_removed__init(&e->removed);
		e->hash = (int64_t)from->hash;
		e->removed.n_block_hashes = 1;
		e->removed.block_hashes = &e->hash;
		e->event.data_case = SMG__GRPC__COMMON__KV_CACHE_EVENT__DATA_REMOVED;
		e->event.removed = &e->removed;
		break;
	case MX_KV_CLEARED:
		smg__grpc__common__kv_cache_cleared__init(&e->cleared);
		e->event.data_case = SMG__GRPC__COMMON__KV_CACHE_EVENT__DATA_CLEARED;
		e->event.cleared = &e->cleared;
		break;
	}
}

/* Returns true if a call may see everybody's prompts; else ends it. */
static bool may_see(struct mx_rpc_call *c)
{
	struct mx_api_error err = {0};
	if (mx_grpc_is_router(c))
		return true;
	mx_api_fail(&err, MX_FAULT_FORBIDDEN, "not_a_router", NULL,
	            "these events tell what everybody asks: only keys with 'router: true' get them");
	mx_rpc_fail_api(c, &err, 0);
	return false;
}

/* Starts a subscription; takes over the hold. On failure ends the call. */
static void subscribe(struct mx_rpc_call *c, struct mx_served *model)
{
	struct subscription *s = mx_calloc(1, sizeof(*s));
	struct mx_kv_events *events =
		model->info.kv_events ? model->engine->ops->kv_events(model->engine) : NULL;
	if (s && events && mx_kv_reader_open(events, &s->reader) == MX_OK) {
		s->model = model;
		s->block_tokens = mx_kv_events_block_tokens(events);
		mx_rpc_set_state(c, s);
		return;
	}
	if (events)
		mx_rpc_fail(c, MX_RPC_RESOURCE_EXHAUSTED, "out of memory", NULL, 0);
	else
		mx_rpc_fail(c, MX_RPC_UNIMPLEMENTED, "the model has no prefix cache of pages to tell of",
		            NULL, 0);
	mx_served_release(model);
	free(s);
}

static void take(struct mx_rpc_call *c, const uint8_t *message, size_t n)
{
	struct mx_arena arena = {0};
	if (!may_see(c))
		return;
	Smg__Grpc__Common__SubscribeKvEventsRequest *m = (void *)mx_grpc_unpack(
		c, &smg__grpc__common__subscribe_kv_events_request__descriptor, message, n, &arena);
	if (m && m->start_sequence_number) {
		mx_rpc_fail(
			c, MX_RPC_OUT_OF_RANGE,
			"start_sequence_number: no batches are kept; begin with 0, for all that is cached",
			NULL, 0);
	} else if (m) {
		struct mx_served *model = mx_grpc_first_model(c);
		if (model)
			subscribe(c, model);
	}
	mx_arena_free(&arena);
}

static enum mx_rpc_next next(struct mx_rpc_call *c, struct mx_buf *out)
{
	struct subscription *s = mx_rpc_state(c);
	struct mx_kv_event events[MX_KV_READ];
	struct event described[MX_KV_READ];
	Smg__Grpc__Common__KvCacheEvent *list[MX_KV_READ];
	if (mx_served_state(s->model) != MX_SERVED_READY) { /* else it could not be unloaded */
		mx_rpc_fail(c, MX_RPC_UNAVAILABLE, "the model is drained", NULL, 0);
		return MX_RPC_DONE;
	}
	if (!may_see(c))
		return MX_RPC_DONE;
	uint32_t n = mx_kv_reader_read(s->reader, events);
	if (!n)
		return MX_RPC_WAIT;
	for (uint32_t i = 0; i < n; i++) {
		describe(&events[i], s->block_tokens, &described[i]);
		described[i].event.event_id = ++s->n_events;
		list[i] = &described[i].event;
	}
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	Smg__Grpc__Common__KvEventBatch m = SMG__GRPC__COMMON__KV_EVENT_BATCH__INIT;
	m.sequence_number = ++s->n_batches;
	m.timestamp = (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
	m.has_dp_rank_case = SMG__GRPC__COMMON__KV_EVENT_BATCH__HAS_DP_RANK_DP_RANK;
	m.n_events = n;
	m.events = list;
	mx_pb_pack(&m.base, out);
	return MX_RPC_MESSAGE;
}

static void end(struct mx_rpc_call *c, enum mx_rpc_code code)
{
	struct subscription *s = mx_rpc_state(c);
	(void)code;
	if (!s)
		return;
	mx_kv_reader_close(s->reader);
	mx_served_release(s->model);
	free(s);
}

const struct mx_rpc_method mx_vllm_events = {.path =
                                                 "/vllm.grpc.engine.VllmEngine/SubscribeKvEvents",
                                             .server_streams = true,
                                             .ticks = true,
                                             .take = take,
                                             .next = next,
                                             .end = end};
