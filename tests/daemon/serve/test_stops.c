/* SPDX-License-Identifier: Apache-2.0 */
/* The automaton of stop strings, against a search that compares every string at every place. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/buf.h"
#include "daemon/serve/stops.h"
#include "tests/rng.h"

static struct rng rng;

static uint32_t draw(uint32_t n)
{
	return rng_below(&rng, n);
}

/* ---- the plain search: O(number of strings * length of the longest squared) a piece ---- */

/* Finds the first stop string in the held text, the longest if several begin there. */
static bool plain_find(const struct mx_buf *held, const struct mx_api_text *stops, uint32_t n,
                       size_t *out_at, uint32_t *out_stop)
{
	size_t best = SIZE_MAX;
	for (uint32_t i = 0; i < n; i++) {
		const char *hit = memmem(mx_buf_str(held), held->len, stops[i].s, stops[i].len);
		if (!hit)
			continue;
		size_t at = (size_t)(hit - held->data);
		if (at < best || (at == best && stops[i].len > stops[*out_stop].len)) {
			best = at;
			*out_stop = i;
		}
	}
	*out_at = best;
	return best != SIZE_MAX;
}

/* Returns the number of bytes at the end of the held text that could begin a stop string. */
static size_t plain_possible(const struct mx_buf *held, const struct mx_api_text *stops, uint32_t n)
{
	size_t longest = 0;
	for (uint32_t i = 0; i < n; i++) {
		size_t k = stops[i].len - 1;
		if (k > held->len)
			k = held->len;
		for (; k > longest; k--)
			if (!memcmp(held->data + held->len - k, stops[i].s, k))
				longest = k;
	}
	return longest;
}

/* Feeds a text in random pieces to both, to the first stop string. */
static void compare(const struct mx_api_text *stops, uint32_t n, const char *text, size_t len)
{
	struct mx_arena arena = {0};
	struct mx_stops s;
	struct mx_stop_cursor c = {0};
	struct mx_buf held = {0};
	assert_int_equal(mx_stops_build(&arena, stops, n, &s), MX_OK);
	for (size_t fed = 0; fed < len;) {
		size_t k = draw(6);
		if (k > len - fed)
			k = len - fed;
		size_t before = held.len, at;
		uint32_t stop = 0;
		struct mx_stop_match match = {0};
		mx_buf_append(&held, text + fed, k);
		bool want = plain_find(&held, stops, n, &at, &stop);
		assert_int_equal(mx_stops_feed(&s, &c, text + fed, k, &match), want);
		if (want) {
			assert_int_equal(match.stop, stop);
			assert_int_equal(before + match.end, at + stops[stop].len);
			break;
		}
		size_t possible = plain_possible(&held, stops, n);
		assert_int_equal(c.state.depth, possible);
		mx_buf_consume(&held, held.len - possible);
		fed += k;
	}
	mx_buf_free(&held);
	mx_arena_free(&arena);
}

static void random_strings(void **state)
{
	(void)state;
	const char *seed = getenv("MIXD_TEST_SEED");
	rng.state = seed ? strtoull(seed, NULL, 10) : (uint64_t)time(NULL);
	print_message("seed %llu\n", (unsigned long long)rng.state);
	for (int round = 0; round < 20000; round++) {
		/* few letters, two of them above 127, so that strings overlap in every way */
		static const char letters[] = {'a', (char)0xff, 'b', (char)0x80};
		uint32_t n_letters = 1 + draw(4), n = 1 + draw(draw(8) ? 5 : MX_API_MAX_STOPS);
		char text[200], bytes[MX_API_MAX_STOPS][16];
		struct mx_api_text stops[MX_API_MAX_STOPS];
		for (uint32_t i = 0; i < n; i++) {
			stops[i] = (struct mx_api_text){bytes[i], 1 + draw(16)};
			for (size_t k = 0; k < stops[i].len; k++)
				bytes[i][k] = letters[draw(n_letters)];
		}
		for (size_t k = 0; k < sizeof(text); k++)
			text[k] = letters[draw(n_letters + (n_letters < 4))];
		compare(stops, n, text, sizeof(text));
	}
}

/* ---- the bound ---- */

static char longest[MX_API_MAX_STOPS][MX_API_MAX_STOP_LEN];
static struct mx_api_text all[MX_API_MAX_STOPS];

/* As many and as long strings as there may be, none of which is ever found: a..ab, a..abb, ... */
static void make_hostile(void)
{
	for (size_t i = 0; i < MX_API_MAX_STOPS; i++) {
		memset(longest[i], 'a', MX_API_MAX_STOP_LEN);
		memset(longest[i] + MX_API_MAX_STOP_LEN - 1 - i, 'b', i + 1);
		all[i] = (struct mx_api_text){longest[i], MX_API_MAX_STOP_LEN};
	}
}

static void two_transitions_a_byte(void **state)
{
	(void)state;
	make_hostile();
	struct mx_arena arena = {0};
	struct mx_stops s;
	assert_int_equal(mx_stops_build(&arena, all, MX_API_MAX_STOPS, &s), MX_OK);
	/* the memory that stops.h and mixd(8) name */
	assert_true(arena.used <= 5 * (MX_API_MAX_STOP_LEN + 1) * MX_API_MAX_STOPS + 512);

	/* a text that is a possible stop string at every byte, one that never is for long, and both */
	static char text[1 << 18];
	static const struct {
		size_t every; /* a "c" after so many letters */
		char letter;
	} texts[] = {{SIZE_MAX, 'a'}, {MX_API_MAX_STOP_LEN, 'a'}, {3, 'a'}, {900, 'a'}, {2, 'b'}};
	for (size_t t = 0; t < sizeof(texts) / sizeof(*texts); t++) {
		for (size_t i = 0; i < sizeof(text); i++)
			text[i] = i % texts[t].every == texts[t].every - 1 ? 'c' : texts[t].letter;
		struct mx_stop_cursor c = {0};
		struct mx_stop_match match;
		for (size_t i = 0; i < sizeof(text); i += 4) /* a token of four bytes */
			assert_false(mx_stops_feed(&s, &c, text + i, 4, &match));
		assert_true(c.n_transitions >= sizeof(text));
		assert_true(c.n_transitions <= 2 * sizeof(text));
	}
	struct mx_stop_cursor c = {0};
	struct mx_stop_match match;
	assert_true(mx_stops_feed(&s, &c, longest[7], MX_API_MAX_STOP_LEN, &match));
	assert_int_equal(match.stop, 7);
	assert_int_equal(match.end, MX_API_MAX_STOP_LEN);
	mx_arena_free(&arena);
}

static void no_strings(void **state)
{
	(void)state;
	struct mx_stops s;
	struct mx_stop_cursor c = {0};
	struct mx_stop_match match;
	assert_int_equal(mx_stops_build(NULL, NULL, 0, &s), MX_OK);
	assert_false(mx_stops_feed(&s, &c, "text", 4, &match));
	assert_int_equal(c.state.depth, 0);
}

static void no_memory(void **state)
{
	(void)state;
	make_hostile();
	for (size_t limit = 16; limit < 5 * MX_API_MAX_STOP_LEN * MX_API_MAX_STOPS;
	     limit += limit / 2) {
		struct mx_arena arena = {.limit = limit};
		struct mx_stops s;
		assert_int_equal(mx_stops_build(&arena, all, MX_API_MAX_STOPS, &s), MX_E_NOMEM);
		mx_arena_free(&arena);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_strings),
		cmocka_unit_test(two_transitions_a_byte),
		cmocka_unit_test(no_strings),
		cmocka_unit_test(no_memory),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
