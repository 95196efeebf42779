/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a parser and writes down its events. */
#ifndef MX_TESTS_TOOLS_RECORD_H
#define MX_TESTS_TOOLS_RECORD_H

#include "proto/tools/parser.h"
#include "tests/proto/tools/samples.h"

struct mx_record {
	struct mx_buf events; /* as in struct mx_sample */
	/* what a reader that takes back broken calls has of the text, were there no calls */
	struct mx_buf text;
	unsigned n_ends, n_broken, n_cut, n_begins;
	bool reasoned;
	char kind; /* of the last event */
	bool bad;  /* events in an impossible order, or arguments that are no JSON object */
	struct mx_buf arguments;
};
void mx_record_free(struct mx_record *r);

/* Parses text[0..n), cut behind the first `cut` bytes and then every `step` bytes. cut_off: the
 * answer would have gone on. */
void mx_record(const struct mx_tool_parser_options *o, const char *text, size_t n, size_t cut,
               size_t step, bool cut_off, struct mx_record *out);

#endif
