/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tables of transforms depend on the side of a tile only: all layers share one
 * copy, which remains in the cache while a step runs through the layers.
 */
#include <pthread.h>
#include <stdlib.h>

#include "mixers/hyena/lc.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
	struct lc_plan *plan;
	float *weights;
	uint32_t users;
} tables[LC_LOG2_BLOCK + LC_MAX_LEVELS];

static mx_status make(uint32_t n, struct lc_plan **plan, float **weights)
{
	mx_status st = lc_plan_create(n, plan);
	if (st != MX_OK || lc_parts(n) == 1)
		return st;
	*weights = calloc((size_t)LC_PARTS * n, 2 * sizeof(**weights));
	if (!*weights) {
		lc_plan_destroy(*plan);
		return MX_E_NOMEM;
	}
	lc_part_weights(n, *weights);
	return MX_OK;
}

mx_status lc_tables_take(uint32_t log2_n, const struct lc_plan **out_plan,
                         const float **out_weights)
{
	mx_status st = MX_OK;
	struct lc_plan *plan = NULL;
	float *weights = NULL;
	pthread_mutex_lock(&lock);
	if (tables[log2_n].users == 0 && (st = make(1u << log2_n, &plan, &weights)) == MX_OK) {
		tables[log2_n].plan = plan;
		tables[log2_n].weights = weights;
	}
	if (st == MX_OK) {
		tables[log2_n].users++;
		*out_plan = tables[log2_n].plan;
		*out_weights = tables[log2_n].weights;
	}
	pthread_mutex_unlock(&lock);
	return st;
}

void lc_tables_leave(uint32_t log2_n)
{
	pthread_mutex_lock(&lock);
	if (--tables[log2_n].users == 0) {
		lc_plan_destroy(tables[log2_n].plan);
		free(tables[log2_n].weights);
	}
	pthread_mutex_unlock(&lock);
}
