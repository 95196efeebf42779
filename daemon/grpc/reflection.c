/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Server reflection: tells clients the .proto files of the services. The build packs
 * them into one FileDescriptorSet, which is part of the program. Versions v1 and
 * v1alpha differ in their names only.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/grpc/descriptors.h"
#include "daemon/grpc/front_impl.h"
#include "proto/pb/descriptor_names.pb-c.h"
#include "proto/pb/grpc/reflection/v1/reflection.pb-c.h"

typedef Mixd__Names__File file_names;
typedef Grpc__Reflection__V1__ServerReflectionRequest request;
typedef Grpc__Reflection__V1__ServerReflectionResponse response;

#define MAX_FILES 32

struct mx_reflection {
	Mixd__Names__FileSet *set; /* the files as they are sent */
	file_names *files[MAX_FILES];
	size_t n_files;
};

mx_status mx_reflection_create(struct mx_reflection **out, struct mx_err *err)
{
	struct mx_reflection *r = mx_calloc(1, sizeof(*r));
	if (!r)
		return mx_fail(err, MX_E_NOMEM, "out of memory");
	r->set = mixd__names__file_set__unpack(NULL, mx_grpc_descriptors_len, mx_grpc_descriptors);
	size_t n = r->set ? r->set->n_file : 0;
	for (; r->n_files < n && n <= MAX_FILES; r->n_files++) {
		const ProtobufCBinaryData *f = &r->set->file[r->n_files];
		r->files[r->n_files] = mixd__names__file__unpack(NULL, f->len, f->data);
		if (!r->files[r->n_files])
			break;
	}
	if (!n || r->n_files < n) {
		mx_reflection_destroy(r);
		return mx_fail(err, MX_E_INTERNAL, "the descriptions of the services cannot be read");
	}
	*out = r;
	return MX_OK;
}

void mx_reflection_destroy(struct mx_reflection *r)
{
	if (!r)
		return;
	for (size_t i = 0; i < r->n_files; i++)
		mixd__names__file__free_unpacked(r->files[i], NULL);
	if (r->set)
		mixd__names__file_set__free_unpacked(r->set, NULL);
	free(r);
}

/* ---- symbols ---- */

/* Text that is still to be matched. */
struct symbol {
	const char *s;
	size_t len;
};

/* Takes a name off the front of a symbol, with the dot behind it. False if it is not there. */
static bool take_name(struct symbol *at, const ProtobufCBinaryData *name)
{
	if (at->len < name->len || memcmp(at->s, name->data, name->len))
		return false;
	if (at->len > name->len && at->s[name->len] != '.')
		return false;
	size_t n = name->len + (at->len > name->len);
	at->s += n;
	at->len -= n;
	return true;
}

/* Returns true if the symbol is one of these types, or within one. Fields and values of enums count
 * as their type. */
static bool in_types(struct symbol at, Mixd__Names__Type *const *types, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct symbol rest = at;
		if (take_name(&rest, &types[i]->name))
			return true;
	}
	return false;
}

static bool in_services(struct symbol at, const file_names *f)
{
	for (size_t i = 0; i < f->n_service; i++) {
		const Mixd__Names__Service *s = f->service[i];
		struct symbol rest = at;
		if (!take_name(&rest, &s->name))
			continue;
		if (!rest.len)
			return true;
		for (size_t k = 0; k < s->n_method; k++) {
			struct symbol method = rest;
			if (take_name(&method, &s->method[k]->name) && !method.len)
				return true;
		}
	}
	return false;
}

/* Returns the index of the file that defines a symbol, or n_files. */
static size_t file_of_symbol(const struct mx_reflection *r, const ProtobufCBinaryData *name)
{
	size_t i = 0;
	for (; i < r->n_files; i++) {
		const file_names *f = r->files[i];
		struct symbol at = {(const char *)name->data, name->len};
		if (take_name(&at, &f->package) && at.len &&
		    (in_services(at, f) || in_types(at, f->message_type, f->n_message_type) ||
		     in_types(at, f->enum_type, f->n_enum_type)))
			break;
	}
	return i;
}

static bool same(const ProtobufCBinaryData *a, const ProtobufCBinaryData *b)
{
	return a->len == b->len && !memcmp(a->data, b->data, a->len);
}

static size_t file_of_name(const struct mx_reflection *r, const ProtobufCBinaryData *name)
{
	size_t i = 0;
	while (i < r->n_files && !same(&r->files[i]->name, name))
		i++;
	return i;
}

/* ---- answers ---- */

static void write_error(const request *q, enum mx_rpc_code code, const char *text,
                        struct mx_buf *out)
{
	Grpc__Reflection__V1__ErrorResponse error = GRPC__REFLECTION__V1__ERROR_RESPONSE__INIT;
	response m;
	grpc__reflection__v1__server_reflection_response__init(&m);
	error.error_code = code;
	error.error_message = mx_pb_string(text);
	m.valid_host = q->host;
	m.original_request = (request *)(uintptr_t)q;
	m.message_response_case =
		GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_ERROR_RESPONSE;
	m.error_response = &error;
	mx_pb_pack(&m.base, out);
}

/* Writes file i, and behind it those that it imports. */
static void write_file(const struct mx_reflection *r, const request *q, size_t i,
                       struct mx_buf *out)
{
	if (i == r->n_files) {
		write_error(q, MX_RPC_NOT_FOUND, "there is no such file or symbol", out);
		return;
	}
	Grpc__Reflection__V1__FileDescriptorResponse files =
		GRPC__REFLECTION__V1__FILE_DESCRIPTOR_RESPONSE__INIT;
	ProtobufCBinaryData list[MAX_FILES];
	response m;
	grpc__reflection__v1__server_reflection_response__init(&m);
	list[files.n_file_descriptor_proto++] = r->set->file[i];
	for (size_t d = 0; d < r->files[i]->n_dependency; d++) {
		size_t needed = file_of_name(r, &r->files[i]->dependency[d]);
		if (needed < r->n_files && files.n_file_descriptor_proto < MAX_FILES)
			list[files.n_file_descriptor_proto++] = r->set->file[needed];
	}
	files.file_descriptor_proto = list;
	m.valid_host = q->host;
	m.original_request = (request *)(uintptr_t)q;
	m.message_response_case =
		GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_FILE_DESCRIPTOR_RESPONSE;
	m.file_descriptor_response = &files;
	mx_pb_pack(&m.base, out);
}

static void write_services(const struct mx_reflection *r, const request *q, struct mx_buf *out)
{
	Grpc__Reflection__V1__ListServiceResponse list =
		GRPC__REFLECTION__V1__LIST_SERVICE_RESPONSE__INIT;
	Grpc__Reflection__V1__ServiceResponse services[MAX_FILES], *pointers[MAX_FILES];
	char names[MAX_FILES][128];
	response m;
	for (size_t i = 0; i < r->n_files; i++) {
		const file_names *f = r->files[i];
		for (size_t k = 0; k < f->n_service && list.n_service < MAX_FILES; k++) {
			size_t n = list.n_service++;
			grpc__reflection__v1__service_response__init(&services[n]);
			snprintf(names[n], sizeof(names[n]), "%.*s.%.*s", (int)f->package.len,
			         (const char *)f->package.data, (int)f->service[k]->name.len,
			         (const char *)f->service[k]->name.data);
			services[n].name = mx_pb_string(names[n]);
			pointers[n] = &services[n];
		}
	}
	list.service = pointers;
	grpc__reflection__v1__server_reflection_response__init(&m);
	m.valid_host = q->host;
	m.original_request = (request *)(uintptr_t)q;
	m.message_response_case =
		GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_LIST_SERVICES_RESPONSE;
	m.list_services_response = &list;
	mx_pb_pack(&m.base, out);
}

static void answer(const struct mx_reflection *r, const request *q, struct mx_buf *out)
{
	switch (q->message_request_case) {
	case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_BY_FILENAME:
		write_file(r, q, file_of_name(r, &q->file_by_filename), out);
		break;
	case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_CONTAINING_SYMBOL:
		write_file(r, q, file_of_symbol(r, &q->file_containing_symbol), out);
		break;
	case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_LIST_SERVICES:
		write_services(r, q, out);
		break;
	case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_CONTAINING_EXTENSION:
	case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_ALL_EXTENSION_NUMBERS_OF_TYPE:
		write_error(q, MX_RPC_NOT_FOUND, "no message has extensions", out);
		break;
	default: write_error(q, MX_RPC_UNIMPLEMENTED, "unknown kind of request", out);
	}
}

static void take(struct mx_rpc_call *c, const uint8_t *message, size_t n)
{
	const struct mx_grpc *g = mx_rpc_arg(c);
	struct mx_arena arena = {0};
	struct mx_buf reply = {0};
	request *q = (void *)mx_grpc_unpack(
		c, &grpc__reflection__v1__server_reflection_request__descriptor, message, n, &arena);
	if (q) {
		answer(g->reflection, q, &reply);
		mx_rpc_reply(c, &reply);
	}
	mx_arena_free(&arena);
}

#define METHOD(package)                                                                            \
	{                                                                                              \
		.path = "/" package ".ServerReflection/ServerReflectionInfo", .client_streams = true,      \
		.server_streams = true, .quick = true, .take = take                                        \
	}
const struct mx_rpc_method mx_grpc_reflection_v1 = METHOD("grpc.reflection.v1");
const struct mx_rpc_method mx_grpc_reflection_v1alpha = METHOD("grpc.reflection.v1alpha");
