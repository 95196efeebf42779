/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Budgets of memory that clients make the daemon hold: a limit that all owners
 * share, and what each owner has of it. Any thread may take and give back; nobody
 * ever waits.
 */
#ifndef MX_DAEMON_SERVE_BUDGET_H
#define MX_DAEMON_SERVE_BUDGET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct mx_budget {
	uint64_t limit; /* bytes; constant while it is in use */
	_Atomic uint64_t used;
};

/* Takes n bytes. False if that many are not free, and then takes none. */
bool mx_budget_take(struct mx_budget *b, uint64_t n);
void mx_budget_give(struct mx_budget *b, uint64_t n);
/* Returns the bytes that are taken. */
uint64_t mx_budget_used(const struct mx_budget *b);

/* What one owner has of a budget. The owner locks. */
struct mx_hold {
	struct mx_budget *budget;
	uint64_t certain; /* bytes that it keeps, used or not */
	uint64_t used;    /* bytes that it uses */
	uint64_t taken;   /* bytes of the budget that it has */
};

/* Bytes by which a hold grows beyond what is certain. */
#define MX_HOLD_BLOCK ((uint64_t)16 << 10)

/* Takes n more bytes, which are kept until mx_hold_settle. False if they are not free. */
bool mx_hold_ensure(struct mx_hold *h, uint64_t n);
/* The owner uses n bytes now. Takes more of the budget if needed, by blocks, and gives back what
 * is more than a block too much. False if the budget has no more: the owner must end. */
bool mx_hold_use(struct mx_hold *h, uint64_t n);
/* Nothing is certain any more: gives back all that is not used. */
void mx_hold_settle(struct mx_hold *h);
/* Gives all back. */
void mx_hold_end(struct mx_hold *h);

#endif
