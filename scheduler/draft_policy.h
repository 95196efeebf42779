/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decides how many draft tokens each decoding sequence gets in a step (speculation).
 *
 * Drafts never change results, so their number can be chosen for speed. A draft is worth its row if
 * it adds more tokens to the time it takes than the step gives without it. So the lengths are those
 * that make the expected tokens of the step, divided by its expected time, largest:
 *  - the i-th draft of a sequence is kept with probability a^i, where a is how often its drafts
 *    were kept so far; of a sequence without a past, as often as those of all sequences lately
 *    (and these, while few, as often as is assumed before the first);
 *  - the time of a step is measured: that without drafts, and what each draft adds to it, by the
 *    number of sequences.
 * The quotient is made largest by Dinkelbach's method (1967): with the best quotient r found so
 * far, take each draft whose a^i is more than r times its time; that gives a better r.
 *
 * What is not used is not measured. So one step in 64 has no drafts, and sequences that get none
 * are given one now and then, in at most a hundredth of the time: one that had none for 64 steps,
 * or any if none had one for so long (short answers end before they are that old).
 *
 * Pure computation without a clock of its own, for one thread (the engine thread).
 */
#ifndef MX_SCHEDULER_DRAFT_POLICY_H
#define MX_SCHEDULER_DRAFT_POLICY_H

#include <stdbool.h>
#include <stdint.h>

/* 1 .. 16 sequences each have a bucket, then eight have an octave. */
#define MX_DRAFT_BUCKETS 160

struct mx_draft_policy {
	uint32_t most; /* drafts of a sequence */
	struct {
		double step_ns;      /* mean time of a step without drafts, 0 = not measured */
		double draft_ns;     /* mean time that a draft adds */
		bool drafted;        /* draft_ns was measured */
		uint32_t since_step; /* steps since step_ns was measured */
	} bucket[MX_DRAFT_BUCKETS];
	double tried, kept; /* drafts of all sequences lately; recent ones count more */
	uint32_t without;   /* steps since any sequence had a draft */
	double probing_ns;  /* time that may be spent on drafts of sequences that get none */
};

/* How the drafts of one sequence fared. Zeroed at first. */
struct mx_draft_odds {
	double tried, kept; /* likewise */
	uint32_t without;   /* steps since it had one */
};

/* Prepares p for at most `most` drafts of a sequence. */
void mx_draft_policy_init(struct mx_draft_policy *p, uint32_t most);

/* Writes the number of drafts that each of n sequences should get to out[n]. odds[n]: those that
 * can have none are NULL. To be called once a step. */
void mx_draft_policy_lengths(struct mx_draft_policy *p, struct mx_draft_odds *const *odds,
                             uint32_t n, uint32_t *out);

/* Tells the policy that of n_draft >= 1 drafts of a sequence the first n_accepted were kept. */
void mx_draft_policy_count(struct mx_draft_policy *p, struct mx_draft_odds *odds, uint32_t n_draft,
                           uint32_t n_accepted);

/* Tells the policy that a step with that many decoding sequences and drafts, and no prompt tokens,
 * took `ns`. */
void mx_draft_policy_observe(struct mx_draft_policy *p, uint32_t n_decode, uint32_t n_draft,
                             uint64_t ns);

#endif
