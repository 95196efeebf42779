/* SPDX-License-Identifier: Apache-2.0 */
/* Takes any bytes as an answer in a format of tool calls, which the first byte chooses; the second
 * says how it is cut. The events must be possible ones and must not depend on the cuts, and what
 * holds no call and no reasoning must come back whole. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/proto/tools/record.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	size_t n_formats = 0, n_reasonings = 0;
	while (mx_tool_format_name_at(n_formats))
		n_formats++;
	while (mx_reasoning_format_name_at(n_reasonings))
		n_reasonings++;
	if (size < 2)
		return 0;
	const struct mx_tool_format *calls =
		mx_tool_format_named(mx_tool_format_name_at(data[0] % n_formats));
	size_t reasoning = data[1] / 8 % (n_reasonings + 1);
	const struct mx_tool_parser_options o = {
		.calls = calls,
		.reasoning = reasoning < n_reasonings
	                     ? mx_reasoning_format_named(mx_reasoning_format_name_at(reasoning))
	                     : NULL,
		.reasoning_open = data[1] & 128,
		.seed = 1};
	const char *text = (const char *)data + 2;
	struct mx_record whole, cut;
	bool cut_off = data[0] & 128;
	mx_record(&o, text, size - 2, 0, SIZE_MAX, cut_off, &whole);
	mx_record(&o, text, size - 2, 0, 1u + data[1] % 8, cut_off, &cut);
	bool plain = !cut_off && !whole.n_ends && !whole.reasoned && !o.reasoning &&
	             !mx_tool_format_reasons(calls);
	if (whole.bad || cut.bad || whole.events.len != cut.events.len ||
	    memcmp(mx_buf_str(&whole.events), mx_buf_str(&cut.events), whole.events.len) ||
	    (plain && (whole.text.len != size - 2 || memcmp(mx_buf_str(&whole.text), text, size - 2))))
		abort();
	mx_record_free(&whole);
	mx_record_free(&cut);
	return 0;
}
