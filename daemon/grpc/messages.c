/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/grpc/messages.h"

/* Where a message is packed to. */
struct sink {
	ProtobufCBuffer base;
	struct mx_buf *out;
};

static void append(ProtobufCBuffer *to, size_t n, const uint8_t *data)
{
	mx_buf_append(((struct sink *)to)->out, data, n);
}

void mx_pb_pack(const ProtobufCMessage *m, struct mx_buf *out)
{
	struct sink sink = {{append}, out};
	if (mx_buf_reserve(out, protobuf_c_message_get_packed_size(m)))
		protobuf_c_message_pack_to_buffer(m, &sink.base);
}

/* Memory of a message that is being read. */
struct room {
	struct mx_arena *arena;
	bool full;
};

static void *allocate(void *arg, size_t n)
{
	struct room *room = arg;
	void *p = mx_arena_alloc(room->arena, n ? n : 1);
	room->full = room->full || !p;
	return p;
}

static void release(void *arg, void *p)
{
	(void)arg;
	(void)p;
}

mx_status mx_pb_unpack(const ProtobufCMessageDescriptor *type, const uint8_t *data, size_t n,
                       struct mx_arena *arena, ProtobufCMessage **out, struct mx_api_error *err)
{
	struct room room = {arena, false};
	ProtobufCAllocator allocator = {allocate, release, &room};
	arena->limit = n * MX_PB_GROWTH + 4096;
	ProtobufCMessage *m = protobuf_c_message_unpack(type, &allocator, n, data);
	if (m) {
		*out = m;
		return MX_OK;
	}
	if (room.full)
		return mx_api_fail(
			err, MX_FAULT_TOO_LARGE, "request_too_large", NULL,
			"the message takes more than %d times its %zu bytes when it is read: send "
			"fewer values at a time",
			MX_PB_GROWTH, n);
	return mx_api_fail(err, MX_FAULT_INVALID, "invalid_message", NULL,
	                   "the message is not a well-formed %s", type->name);
}
