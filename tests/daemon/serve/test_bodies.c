/* SPDX-License-Identifier: Apache-2.0 */
/* The room for bodies: who loses it, who never does, and its bound. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "daemon/serve/bodies.h"

#define MIB         ((size_t)1 << 20)
#define CONNECTIONS 1024
#define LARGEST     (8 * MIB)
#define BUDGET      (8 * LARGEST)
#define N           200 /* uploads of the random test */

static char zeros[LARGEST];

struct one {
	struct mx_buf text;
	struct mx_upload upload;
};

static struct one *begin(struct one *o)
{
	*o = (struct one){.upload = {.text = &o->text}};
	return o;
}

static bool append(struct mx_bodies *b, struct one *o, size_t n)
{
	return mx_bodies_append(b, &o->upload, zeros, n);
}

static void the_one_that_stands_still_goes(void **state)
{
	(void)state;
	struct mx_bodies b;
	struct one held[8], late;
	mx_bodies_init(&b, CONNECTIONS, BUDGET);
	for (int i = 0; i < 8; i++)
		assert_true(append(&b, begin(&held[i]), LARGEST - 1));
	/* the first gets a byte: the second has now waited for longest */
	assert_true(append(&b, &held[0], 1));
	assert_true(append(&b, begin(&late), LARGEST));
	for (int i = 0; i < 8; i++)
		assert_int_equal(held[i].upload.dropped, i == 1);
	assert_int_equal(held[1].text.len, 0);
	assert_false(append(&b, &held[1], 1));
	assert_false(mx_bodies_complete(&b, &held[1].upload));
	assert_true(mx_bodies_complete(&b, &held[0].upload));
	for (int i = 0; i < 8; i++)
		mx_bodies_free(&b, &held[i].upload);
	mx_bodies_free(&b, &late.upload);
	assert_int_equal(b.paid, 0);
	mx_bodies_destroy(&b);
}

static void complete_bodies_stay(void **state)
{
	(void)state;
	struct mx_bodies b;
	struct one held[9], small;
	mx_bodies_init(&b, CONNECTIONS, BUDGET);
	for (int i = 0; i < 8; i++) {
		assert_true(append(&b, begin(&held[i]), LARGEST));
		assert_true(mx_bodies_complete(&b, &held[i].upload));
	}
	assert_false(append(&b, begin(&held[8]), LARGEST));
	assert_true(append(&b, begin(&small), b.free_bytes)); /* costs nothing */
	for (int i = 0; i < 8; i++) {
		assert_int_equal(held[i].text.len, LARGEST);
		mx_bodies_free(&b, &held[i].upload);
	}
	mx_bodies_free(&b, &small.upload);
	mx_bodies_destroy(&b);
}

static void the_bound_holds_for_any_number_of_connections(void **state)
{
	(void)state;
	const unsigned connections[] = {1, 16, 1024, 1025, 20000, 1 << 20};
	for (size_t i = 0; i < sizeof(connections) / sizeof(*connections); i++) {
		struct mx_bodies b;
		mx_bodies_init(&b, connections[i], BUDGET);
		assert_true(b.free_bytes * connections[i] <= 64 * MIB);
		assert_int_equal(mx_bodies_free_total(connections[i]), b.free_bytes * connections[i]);
		mx_bodies_destroy(&b);
	}
}

static void random_uploads(void **state)
{
	(void)state;
	const char *given = getenv("MIXD_TEST_SEED");
	unsigned seed = given ? (unsigned)strtoul(given, NULL, 10) : (unsigned)time(NULL);
	print_message("seed %u\n", seed);
	srand(seed);
	static struct one held[N];
	static bool complete[N];
	struct mx_bodies b;
	mx_bodies_init(&b, N, BUDGET);
	for (int i = 0; i < N; i++)
		begin(&held[i]);
	for (int step = 0; step < 4000; step++) {
		int i = rand() % N;
		struct one *o = &held[i];
		bool was = o->upload.dropped;
		if (complete[i] || was || rand() % 50 == 0) {
			mx_bodies_free(&b, &o->upload);
			begin(o);
			complete[i] = false;
		} else if (rand() % 20 == 0) {
			assert_true(mx_bodies_complete(&b, &o->upload));
			complete[i] = rand() % 4 == 0; /* the others are served at once */
			if (!complete[i]) {
				mx_bodies_free(&b, &o->upload);
				begin(o);
			}
		} else {
			size_t n = 1 + (size_t)rand() % MIB;
			if (o->text.len + n <= LARGEST)
				append(&b, o, n);
		}
		uint64_t held_bytes = 0, paid = 0;
		for (int k = 0; k < N; k++) {
			held_bytes += held[k].text.len;
			paid += held[k].upload.paid;
			assert_false(complete[k] && held[k].upload.dropped);
		}
		assert_int_equal(paid, b.paid);
		assert_true(paid <= b.budget);
		assert_true(held_bytes <= BUDGET + mx_bodies_free_total(N));
	}
	for (int i = 0; i < N; i++)
		mx_bodies_free(&b, &held[i].upload);
	assert_int_equal(b.paid, 0);
	assert_null(b.oldest);
	assert_null(b.newest);
	mx_bodies_destroy(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_one_that_stands_still_goes),
		cmocka_unit_test(complete_bodies_stay),
		cmocka_unit_test(the_bound_holds_for_any_number_of_connections),
		cmocka_unit_test(random_uploads),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
