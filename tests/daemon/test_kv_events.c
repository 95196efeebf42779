/* SPDX-License-Identifier: Apache-2.0 */
/* Tests what the publisher of cache events keeps for replay, and a model's endpoints and topic. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "daemon/kv_events/publisher.h"
#include "daemon/kv_events/replay.h"

static void check_kept(const struct mx_kv_replay *r, uint64_t first, uint64_t end)
{
	assert_int_equal(r->first, first);
	assert_int_equal(r->end, end);
	size_t bytes = 0;
	for (uint64_t i = first; i < end; i++) {
		const struct mx_kv_kept *k = mx_kv_replay_get(r, i);
		bytes += k->len;
		assert_int_equal(*(const unsigned char *)k->data, i % 256);
	}
	assert_int_equal(r->bytes, bytes);
}

static void add(struct mx_kv_replay *r, size_t len)
{
	unsigned char data[100];
	memset(data, (int)(r->end % 256), sizeof(data));
	mx_kv_replay_add(r, data, len);
}

static void keeps_so_many(void **state)
{
	(void)state;
	struct mx_kv_replay r;
	assert_int_equal(mx_kv_replay_init(&r, 5, 1000), MX_OK);
	check_kept(&r, 0, 0);
	for (uint64_t i = 0; i < 1000; i++) {
		add(&r, 10);
		check_kept(&r, i < 5 ? 0 : i - 4, i + 1);
	}
	mx_kv_replay_fini(&r);
	assert_int_equal(mx_kv_replay_init(&r, 0, 1000), MX_E_INVALID);
}

static void keeps_so_many_bytes(void **state)
{
	(void)state;
	struct mx_kv_replay r;
	assert_int_equal(mx_kv_replay_init(&r, 50, 90), MX_OK);
	add(&r, 40);
	add(&r, 50);
	check_kept(&r, 0, 2);
	add(&r, 1);
	check_kept(&r, 1, 3);
	add(&r, 90);
	check_kept(&r, 3, 4);
	add(&r, 91); /* alone too large: none is kept, and the numbers go on */
	check_kept(&r, 5, 5);
	add(&r, 10);
	check_kept(&r, 5, 6);
	mx_kv_replay_fini(&r);
}

static void expect(struct mx_buf *b, const char *text)
{
	assert_string_equal(mx_buf_str(b), text);
	mx_buf_clear(b);
}

static void each_model_has_its_port(void **state)
{
	(void)state;
	struct mx_buf b = {0};
	mx_kv_endpoint(&b, "tcp://*:5557", 0);
	expect(&b, "tcp://*:5557");
	mx_kv_endpoint(&b, "tcp://*:5557", 3);
	expect(&b, "tcp://*:5560");
	mx_kv_endpoint(&b, "tcp://[::]:5557", 1);
	expect(&b, "tcp://[::]:5558");
	mx_kv_endpoint(&b, "ipc:///run/events", 2);
	expect(&b, "ipc:///run/events_2");
	mx_buf_free(&b);
}

static void a_topic_names_model_and_host(void **state)
{
	(void)state;
	struct mx_buf b = {0};
	mx_kv_topic(&b, "", "m", "h");
	expect(&b, "");
	mx_kv_topic(&b, "kv@{host}@{model}", "m/x", "h");
	expect(&b, "kv@h@m/x");
	mx_kv_topic(&b, "{model}{mod}{", "{host}", "h");
	expect(&b, "{host}{mod}{");
	mx_buf_free(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(keeps_so_many),
		cmocka_unit_test(keeps_so_many_bytes),
		cmocka_unit_test(each_model_has_its_port),
		cmocka_unit_test(a_topic_names_model_and_host),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
