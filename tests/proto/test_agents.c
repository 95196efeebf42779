/* SPDX-License-Identifier: Apache-2.0 */
/* Answers of agents' APIs: the same JSON in pieces of any size; names of errors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above */
#include <cmocka.h>
#include <jansson.h>
#include <string.h>

#include "proto/messages/response.h"
#include "proto/messages/request.h"
#include "proto/responses/request.h"
#include "proto/responses/response.h"
#include "proto/translate.h"

#define LONG 5000

static char long_text[LONG];
static struct mx_api_token tokens[40];
static struct mx_top_token top[80];

static void token_bytes(void *arg, int32_t id, struct mx_buf *out)
{
	(void)arg;
	mx_buf_putc(out, (char)('a' + id % 26));
}
static const struct mx_api_vocab vocab = {token_bytes, NULL};

/* One item of each kind, and one whose text is longer than a slice. */
static struct mx_api_item item(const void *arg, size_t i)
{
	(void)arg;
	const struct mx_api_item items[] = {
		{.kind = MX_API_ITEM_REASONING, .text = "h\"m", .len = 3},
		{.kind = MX_API_ITEM_TEXT,
	     .text = long_text,
	     .len = LONG,
	     .vocab = &vocab,
	     .tokens = tokens,
	     .n_tokens = 40,
	     .top = top,
	     .top_stride = 2},
		{.kind = MX_API_ITEM_CALL, .text = "{\"a\":1}", .len = 7, .call_id = "c", .name = "f"},
		{.kind = MX_API_ITEM_TEXT, .text = "", .cut = true},
	};
	return items[i];
}

static void fill(void)
{
	for (size_t i = 0; i < LONG; i++)
		long_text[i] = i % 7 ? 'x' : '\n';
	for (int i = 0; i < 40; i++) {
		tokens[i] = (struct mx_api_token){.id = i, .logprob = -1, .n_top = 2};
		top[2 * i] = (struct mx_top_token){.token = i, .logprob = -1};
		top[2 * i + 1] = (struct mx_top_token){.token = i + 1, .logprob = -2};
	}
}

static struct mx_responses_state response_state(struct mx_buf *echo, struct mx_api_usage *usage)
{
	mx_buf_puts(echo, "\"instructions\":\"");
	for (int i = 0; i < 300; i++)
		mx_buf_puts(echo, "word ");
	mx_buf_puts(echo, "\",");
	*usage = (struct mx_api_usage){.prompt = 10, .cached = 4, .completion = 7, .reasoning = 2};
	return (struct mx_responses_state){.id = "id",
	                                   .created = 1,
	                                   .completed = 2,
	                                   .model = "m",
	                                   .echo = echo,
	                                   .status = MX_RESPONSES_COMPLETED,
	                                   .item = item,
	                                   .n_items = 4,
	                                   .usage = usage};
}

static json_t *parse(const struct mx_buf *b, size_t from, size_t len)
{
	json_error_t e;
	json_t *v = json_loadb(b->data + from, len, 0, &e);
	if (!v)
		fail_msg("%s at %d of %.*s", e.text, e.position, (int)len, b->data + from);
	return v;
}

static void test_response_in_pieces(void **state)
{
	(void)state;
	struct mx_buf echo = {0}, whole = {0}, pieces = {0};
	struct mx_api_usage usage;
	const struct mx_responses_state s = response_state(&echo, &usage);
	struct mx_responses_cursor at = {0};
	assert_true(mx_responses_write(&whole, &s, SIZE_MAX / 2, &at));
	json_t *v = parse(&whole, 0, whole.len);
	json_t *output = json_object_get(v, "output");
	assert_int_equal(json_array_size(output), 4);
	assert_string_equal(json_string_value(json_object_get(json_array_get(output, 2), "arguments")),
	                    "{\"a\":1}");
	assert_string_equal(json_string_value(json_object_get(json_array_get(output, 3), "status")),
	                    "incomplete");
	json_decref(v);
	for (size_t max = 1; max < 3000; max = max * 2 + 1) {
		mx_buf_clear(&pieces);
		size_t before;
		do {
			before = pieces.len;
			assert_true(pieces.len <= whole.len);
		} while (!mx_responses_write(&pieces, &s, max, &at) && pieces.len > before);
		assert_int_equal(pieces.len, whole.len);
		assert_memory_equal(pieces.data, whole.data, whole.len);
	}
	mx_buf_free(&echo);
	mx_buf_free(&whole);
	mx_buf_free(&pieces);
}

/* Checks an event: "event: NAME\ndata: {"type":"NAME",...}\n\n". */
static void check_event(const struct mx_buf *b)
{
	const char *text = mx_buf_str((struct mx_buf *)(uintptr_t)b);
	const char *data = strstr(text, "\ndata: ");
	assert_non_null(data);
	assert_memory_equal(text, "event: ", 7);
	assert_memory_equal(b->data + b->len - 2, "\n\n", 2);
	size_t from = (size_t)(data - text) + 7;
	json_t *v = parse(b, from, b->len - 2 - from);
	const char *type = json_string_value(json_object_get(v, "type"));
	assert_int_equal(strlen(type), (size_t)(data - text) - 7);
	assert_memory_equal(type, text + 7, strlen(type));
	json_decref(v);
}

static void test_events_in_pieces(void **state)
{
	(void)state;
	struct mx_buf echo = {0}, whole = {0}, pieces = {0};
	struct mx_api_usage usage;
	const struct mx_responses_state s = response_state(&echo, &usage);
	struct mx_responses_cursor at = {0};
	for (int e = MX_RESPONSES_EV_CREATED; e <= MX_RESPONSES_EV_ITEM_DONE; e++) {
		for (size_t i = 0; i < 4; i++) {
			bool part = e == MX_RESPONSES_EV_PART_ADDED || e == MX_RESPONSES_EV_PART_DONE;
			const struct mx_api_item m = item(NULL, i),
									 *delta = e == MX_RESPONSES_EV_DELTA ? &m : NULL;
			if (part && m.kind == MX_API_ITEM_CALL)
				continue;
			mx_buf_clear(&whole);
			assert_true(mx_responses_write_event(&whole, &s, (enum mx_responses_event)e, 5, i,
			                                     delta, SIZE_MAX / 2, &at));
			check_event(&whole);
			for (size_t max = 1; max < 3000; max = max * 3 + 1) {
				mx_buf_clear(&pieces);
				while (!mx_responses_write_event(&pieces, &s, (enum mx_responses_event)e, 5, i,
				                                 delta, max, &at))
					assert_true(pieces.len < whole.len);
				assert_int_equal(pieces.len, whole.len);
				assert_memory_equal(pieces.data, whole.data, whole.len);
			}
		}
	}
	mx_buf_free(&echo);
	mx_buf_free(&whole);
	mx_buf_free(&pieces);
}

static void test_message_in_pieces(void **state)
{
	(void)state;
	struct mx_buf whole = {0}, pieces = {0};
	const struct mx_api_ending ending = {MX_API_ENDED_TEXT, "st\"op", 5};
	const struct mx_messages_state s = {.id = "id",
	                                    .model = "m",
	                                    .ending = &ending,
	                                    .item = item,
	                                    .n_items = 4,
	                                    .usage = {.prompt = 10, .cached = 4, .completion = 7}};
	struct mx_messages_cursor at = {0};
	assert_true(mx_messages_write(&whole, &s, SIZE_MAX / 2, &at));
	json_t *v = parse(&whole, 0, whole.len);
	const json_t *content = json_object_get(v, "content");
	assert_int_equal(json_array_size(content), 4);
	const json_t *input = json_object_get(json_array_get(content, 2), "input");
	assert_int_equal(json_integer_value(json_object_get(input, "a")), 1);
	assert_string_equal(json_string_value(json_object_get(v, "stop_sequence")), "st\"op");
	assert_int_equal(
		json_integer_value(json_object_get(json_object_get(v, "usage"), "input_tokens")), 6);
	json_decref(v);
	for (size_t max = 1; max < 3000; max = max * 2 + 1) {
		mx_buf_clear(&pieces);
		while (!mx_messages_write(&pieces, &s, max, &at))
			assert_true(pieces.len < whole.len);
		assert_int_equal(pieces.len, whole.len);
		assert_memory_equal(pieces.data, whole.data, whole.len);
	}
	for (size_t i = 0; i < 4; i++) {
		const struct mx_api_item m = item(NULL, i);
		struct mx_api_cursor delta = {0};
		mx_buf_clear(&whole);
		mx_messages_write_block_start(&whole, i, &m);
		check_event(&whole);
		mx_buf_clear(&whole);
		assert_true(mx_messages_write_delta(&whole, i, &m, SIZE_MAX / 2, &delta));
		check_event(&whole);
		mx_buf_clear(&pieces);
		while (!mx_messages_write_delta(&pieces, i, &m, 100, &delta))
			assert_true(pieces.len < whole.len);
		assert_int_equal(pieces.len, whole.len);
		assert_memory_equal(pieces.data, whole.data, whole.len);
	}
	mx_buf_free(&whole);
	mx_buf_free(&pieces);
}

static void check_rename(const char *param, const char *message, const char *new_param,
                         const char *new_message)
{
	struct mx_api_error err;
	mx_api_fail(&err, MX_FAULT_INVALID, "c", param, "%s", message);
	mx_responses_rename_error(&err);
	assert_string_equal(err.param, new_param);
	assert_string_equal(err.message, new_message);
}

static void test_names_of_errors(void **state)
{
	(void)state;
	check_rename("messages", "'messages' is empty", "input", "'input' is empty");
	check_rename("messages[3].name", "'messages[3].name' and 'x'", "input[3].name",
	             "'input[3].name' and 'x'");
	check_rename("max_tokens", "shorten 'max_tokens'", "max_output_tokens",
	             "shorten 'max_output_tokens'");
	check_rename("messages_x", "'messages_x' is not messages", "messages_x",
	             "'messages_x' is not messages");
	check_rename("response_format.json_schema.schema", "'response_format.json_schema.schema': no",
	             "text.format.schema", "'text.format.schema': no");
	check_rename("tools[12].function.name",
	             "'tools[12].function.name' and '/3/function/parameters/a'", "tools[12].name",
	             "'tools[12].name' and '/3/parameters/a'");
	check_rename("tools[].function", "'tools.function' '", "tools[].function",
	             "'tools.function' '");
	struct mx_api_error e;
	mx_api_fail(&e, MX_FAULT_INVALID, "c", "tools[1].function.parameters",
	            "'tools[1].function.parameters' at '/1/function/parameters/type'");
	mx_messages_rename_error(&e);
	assert_string_equal(e.param, "tools[1].input_schema");
	assert_string_equal(e.message, "'tools[1].input_schema' at '/1/input_schema/type'");
	/* the longest ones are cut off */
	char message[700];
	memset(message, 'y', sizeof(message) - 1);
	message[699] = 0;
	memcpy(message, "'max_tokens'", 12);
	struct mx_api_error err;
	mx_api_fail(&err, MX_FAULT_INVALID, "c", NULL, "%s", message);
	mx_responses_rename_error(&err);
	assert_int_equal(strlen(err.message), sizeof(err.message) - 1);
	assert_memory_equal(err.message, "'max_output_tokens'yyy", 22);
}

int main(void)
{
	fill();
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_response_in_pieces),
		cmocka_unit_test(test_events_in_pieces),
		cmocka_unit_test(test_message_in_pieces),
		cmocka_unit_test(test_names_of_errors),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
