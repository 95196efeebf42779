/* SPDX-License-Identifier: Apache-2.0 */
/* Takes values of messages into requests of the API, with the checks that JSON's parser does. Each
 * function that fails fills *err with a 400 that names the field. */
#ifndef MX_DAEMON_GRPC_FILL_H
#define MX_DAEMON_GRPC_FILL_H

#include "daemon/grpc/messages.h"
#include "proto/request.h"

mx_status mx_fill_invalid(struct mx_api_error *err, const char *field, const char *why);
mx_status mx_fill_too_many(struct mx_api_error *err, const char *field, size_t n, size_t most);
mx_status mx_fill_no_memory(struct mx_api_error *err);

/* Borrows a text, which must be UTF-8. An empty one is absent (NULL), as proto3 has it, unless it
 * is a prompt's. */
mx_status mx_fill_text(const ProtobufCBinaryData *text, const char *field, struct mx_api_text *out,
                       struct mx_api_error *err);
/* Borrows token ids, which must be below 2^31. */
mx_status mx_fill_ids(const uint32_t *ids, size_t n, const char *field, const int32_t **out,
                      struct mx_api_error *err);
/* Borrows stop strings. */
mx_status mx_fill_stops(struct mx_api_request *r, const ProtobufCBinaryData *stops, size_t n,
                        const char *field, struct mx_api_error *err);

/* Borrows the text of a constraint, or the texts of a choice; an empty one is refused. `field` is
 * kept. */
mx_status mx_fill_form(struct mx_api_request *r, enum mx_constraint_kind kind,
                       const ProtobufCBinaryData *text, const char *field,
                       struct mx_api_error *err);
mx_status mx_fill_choice(struct mx_api_request *r, const ProtobufCBinaryData *texts, size_t n,
                         const char *field, struct mx_api_error *err);

#endif
