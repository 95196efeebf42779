/* SPDX-License-Identifier: Apache-2.0 */
/* The list of served models: look-ups, and its replacement while others look up. */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "daemon/serve/service.h"

static struct mx_served *take(struct mx_service *s, const char *name)
{
	return mx_service_take(s, name, strlen(name));
}

static void names_go_before_aliases(void **state)
{
	(void)state;
	struct mx_service s;
	static const char *const aliases[] = {"b", "c"};
	assert_int_equal(mx_service_init(&s, "0"), MX_OK);
	size_t n;
	assert_null(mx_service_take_only(&s, &n));
	assert_int_equal(n, 0);
	const struct mx_listing list[] = {{mx_served_create("a"), aliases, 2},
	                                  {mx_served_create("b"), NULL, 0}};
	assert_int_equal(mx_service_publish(&s, list, 1), MX_OK);
	assert_ptr_equal(take(&s, "b"), list[0].model);
	assert_ptr_equal(mx_service_take_only(&s, &n), list[0].model);
	assert_int_equal(mx_service_publish(&s, list, 2), MX_OK);
	assert_ptr_equal(take(&s, "b"), list[1].model);
	assert_ptr_equal(take(&s, "c"), list[0].model);
	assert_null(take(&s, "d"));
	assert_null(take(&s, "aa"));
	assert_null(mx_service_take(&s, "a\0", 2));
	assert_null(mx_service_take_only(&s, &n));
	assert_int_equal(n, 2);

	struct mx_listed *listed;
	assert_int_equal(mx_service_list(&s, &listed, &n), MX_OK);
	assert_int_equal(n, 4);
	static const char *const ids[] = {"a", "b", "b", "c"}, *const roots[] = {"a", "b", "a", "a"};
	for (size_t i = 0; i < n; i++) {
		assert_string_equal(listed[i].id, ids[i]);
		assert_string_equal(listed[i].root, roots[i]);
		assert_false(listed[i].ready);
	}
	free(listed);
	mx_service_destroy(&s);
}

static void a_model_that_is_not_listed_lives_while_it_is_held(void **state)
{
	(void)state;
	struct mx_service s;
	assert_int_equal(mx_service_init(&s, "0"), MX_OK);
	struct mx_listing a = {.model = mx_served_create("a")}, b = {.model = mx_served_create("a")};
	assert_int_equal(mx_service_publish(&s, &a, 1), MX_OK);
	struct mx_served *held = take(&s, "a");
	struct mx_served_set all;
	mx_service_take_all(&s, &all);
	assert_int_equal(all.n, 1);
	assert_int_equal(mx_service_publish(&s, &b, 1), MX_OK);
	assert_true(mx_served_is_held(a.model));
	assert_false(mx_served_is_held(b.model));
	assert_ptr_equal(held, a.model);
	mx_served_release(held);
	assert_true(mx_served_is_held(a.model));
	mx_served_set_release(&all);
	assert_false(mx_served_is_held(a.model));
	mx_served_release(NULL);
	mx_served_free(a.model);
	/* too many: nothing changes */
	struct mx_listing many[MX_SERVICE_MODELS + 1] = {{0}};
	assert_int_equal(mx_service_publish(&s, many, MX_SERVICE_MODELS + 1), MX_E_LIMIT);
	assert_ptr_equal(take(&s, "a"), b.model);
	mx_service_destroy(&s);
}

enum { SWAPS = 2000, LOOKERS = 3 };

struct race {
	struct mx_service s;
	_Atomic bool over;
	_Atomic unsigned missing, looked;
};

static void *look(void *arg)
{
	struct race *r = arg;
	while (!atomic_load(&r->over)) {
		struct mx_served *m = take(&r->s, "alias");
		struct mx_listed *listed = NULL;
		size_t n = 0;
		atomic_fetch_add(&r->missing, !m || m->created == 0);
		mx_served_release(m);
		if (mx_service_list(&r->s, &listed, &n) == MX_OK)
			atomic_fetch_add(&r->missing, n != 2);
		free(listed);
		atomic_fetch_add(&r->looked, 1);
	}
	return NULL;
}

/* Each swap frees the model that was listed before, as soon as nobody holds it. */
static void lookups_never_miss_while_the_list_is_replaced(void **state)
{
	(void)state;
	static const char *const alias[] = {"alias"};
	static struct race r;
	pthread_t threads[LOOKERS];
	assert_int_equal(mx_service_init(&r.s, "0"), MX_OK);
	struct mx_listing now = {mx_served_create("even"), alias, 1};
	assert_int_equal(mx_service_publish(&r.s, &now, 1), MX_OK);
	for (int i = 0; i < LOOKERS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, look, &r), 0);
	for (int i = 0; i < SWAPS || atomic_load(&r.looked) < 100; i++) {
		struct mx_listing next = {mx_served_create(i % 2 ? "even" : "odd"), alias, 1};
		assert_int_equal(mx_service_publish(&r.s, &next, 1), MX_OK);
		while (mx_served_is_held(now.model))
			sched_yield();
		memset(now.model->name, 0, sizeof now.model->name);
		now.model->created = 0;
		mx_served_free(now.model);
		now = next;
	}
	atomic_store(&r.over, true);
	for (int i = 0; i < LOOKERS; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(atomic_load(&r.missing), 0);
	mx_service_destroy(&r.s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(names_go_before_aliases),
		cmocka_unit_test(a_model_that_is_not_listed_lives_while_it_is_held),
		cmocka_unit_test(lookups_never_miss_while_the_list_is_replaced),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
