/* SPDX-License-Identifier: Apache-2.0 */
/* Which entries have to be moved after trees of drafts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "mixers/tree.h"

enum { SPANS = 2 * MX_TREE_MOVES + 5 };

/* Of three spans one keeps a branch, one the first tokens of its tree, one is a chain. */
static void branches_are_moved_a_launch_at_a_time(void **state)
{
	static const uint32_t branch[] = {0, 2, 5, 15}, first[] = {0, 1};
	static struct mx_kept kept[SPANS];
	struct mx_tree_move moves[MX_TREE_MOVES];
	const struct mx_step step = {.n_spans = SPANS};
	uint32_t next = 0, span = 0, calls = 0;
	(void)state;
	for (uint32_t i = 0; i < SPANS; i++)
		kept[i] = i % 3 == 0   ? (struct mx_kept){.n = 4, .path = branch}
		          : i % 3 == 1 ? (struct mx_kept){.n = 2, .path = first}
		                       : (struct mx_kept){.n = 3};
	assert_true(mx_tree_any_moves(&step, kept));
	for (uint32_t n; (n = mx_tree_take_moves(&step, kept, &next, moves)); calls++)
		for (uint32_t i = 0; i < n; i++, span += 3) {
			assert_int_equal(moves[i].span, span);
			assert_int_equal(moves[i].n, 4);
			assert_int_equal(moves[i].path, 0xf520);
		}
	assert_int_equal(span, (SPANS + 2) / 3 * 3);
	assert_int_equal(calls, 1);
	for (uint32_t i = 0; i < SPANS; i++) /* more than a launch takes */
		kept[i] = (struct mx_kept){.n = 4, .path = branch};
	next = 0;
	for (uint32_t n = 0, all = 0; all < SPANS; all += n) {
		n = mx_tree_take_moves(&step, kept, &next, moves);
		assert_int_equal(n, SPANS - all < MX_TREE_MOVES ? SPANS - all : MX_TREE_MOVES);
		assert_int_equal(moves[0].span, all);
		assert_int_equal(moves[n - 1].span, all + n - 1);
	}
	assert_int_equal(mx_tree_take_moves(&step, kept, &next, moves), 0);
}

static void chains_have_none(void **state)
{
	static const uint32_t first[] = {0, 1, 2};
	const struct mx_kept kept[2] = {{.n = 3, .path = first}, {.n = 0}};
	struct mx_tree_move moves[MX_TREE_MOVES];
	const struct mx_step step = {.n_spans = 2};
	uint32_t next = 0;
	(void)state;
	assert_false(mx_tree_any_moves(&step, kept));
	assert_int_equal(mx_tree_take_moves(&step, kept, &next, moves), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(branches_are_moved_a_launch_at_a_time),
	                                   cmocka_unit_test(chains_have_none)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
