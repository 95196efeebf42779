/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Protocol-buffer messages: reading into bounded memory, writing to buffers.
 *
 * The C code of the messages is made from the .proto files of proto/ with every
 * `string` as `bytes`, since texts may have NUL bytes, and every `optional` as a
 * oneof of one (proto/messages.sed); both are the same on the wire.
 */
#ifndef MX_DAEMON_GRPC_MESSAGES_H
#define MX_DAEMON_GRPC_MESSAGES_H

#include <protobuf-c/protobuf-c.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "proto/error.h"

/* Describes bytes that the message does not own. */
static inline ProtobufCBinaryData mx_pb_bytes(const void *data, size_t n)
{
	return (ProtobufCBinaryData){n, (uint8_t *)(uintptr_t)data};
}
static inline ProtobufCBinaryData mx_pb_string(const char *s)
{
	return mx_pb_bytes(s, s ? strlen(s) : 0);
}
/* True if the bytes are this string. */
static inline bool mx_pb_is(const ProtobufCBinaryData *b, const char *s)
{
	return b->len == strlen(s) && !memcmp(b->data, s, b->len);
}

/* Appends a message. */
void mx_pb_pack(const ProtobufCMessage *m, struct mx_buf *out);

/* Bytes of memory that a message may take when it is read: this many for each of its own. */
#define MX_PB_GROWTH 12

/* Reads a message of n bytes into the arena, which frees it. On failure *err has the fault
 * MX_FAULT_INVALID, for one that is not well formed, or MX_FAULT_TOO_LARGE, for one that takes more
 * than MX_PB_GROWTH times its bytes. */
mx_status mx_pb_unpack(const ProtobufCMessageDescriptor *type, const uint8_t *data, size_t n,
                       struct mx_arena *arena, ProtobufCMessage **out, struct mx_api_error *err);

#endif
