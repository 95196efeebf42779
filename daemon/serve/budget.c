/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/budget.h"

bool mx_budget_take(struct mx_budget *b, uint64_t n)
{
	uint64_t used = atomic_load(&b->used);
	do
		if (n > b->limit || used > b->limit - n)
			return false;
	while (!atomic_compare_exchange_weak(&b->used, &used, used + n));
	return true;
}

void mx_budget_give(struct mx_budget *b, uint64_t n)
{
	atomic_fetch_sub(&b->used, n);
}

uint64_t mx_budget_used(const struct mx_budget *b)
{
	return atomic_load(&b->used);
}

bool mx_hold_ensure(struct mx_hold *h, uint64_t n)
{
	if (!mx_budget_take(h->budget, n))
		return false;
	h->certain += n;
	h->taken += n;
	return true;
}

bool mx_hold_use(struct mx_hold *h, uint64_t n)
{
	h->used = n;
	uint64_t want = n <= h->certain ? h->certain : (n + MX_HOLD_BLOCK - 1) & ~(MX_HOLD_BLOCK - 1);
	if (want > h->taken) {
		if (!mx_budget_take(h->budget, want - h->taken))
			return false;
		h->taken = want;
	} else if (h->taken - want > MX_HOLD_BLOCK) {
		mx_budget_give(h->budget, h->taken - want);
		h->taken = want;
	}
	return true;
}

void mx_hold_settle(struct mx_hold *h)
{
	h->certain = 0;
	(void)mx_hold_use(h, h->used);
}

void mx_hold_end(struct mx_hold *h)
{
	if (h->taken)
		mx_budget_give(h->budget, h->taken);
	h->certain = h->used = h->taken = 0;
}
