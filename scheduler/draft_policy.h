/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decides how many draft tokens each decoding sequence gets in a step (speculation).
 *
 * Drafts never change results, so their number can be chosen for speed. The lengths are those that
 * make the expected tokens of the step, divided by its expected time, largest:
 *  - the i-th draft of a sequence is kept with probability a^i, where a is how often its drafts
 *    were kept so far; of a sequence without a past, as often as those of all sequences lately
 *    (and these, while few, as often as is assumed before the first);
 *  - the time of a step is measured, with what it took to propose the drafts: by the number of
 *    sequences and of drafts for each. It is no line: where a product needs one more pass over the
 *    weights for one more row, it jumps. Between measured numbers it is taken for one, and no
 *    step has more than twice the largest of them.
 * Drafts are added in the order of their probability, those of about the same at a time; of all
 * these numbers of drafts the best is taken.
 *
 * On a host with other work some steps take ten times as long as most. So a time moves by little
 * towards a sample that is far from it. One that was measured a few times only is the least of
 * these: other work on the host makes steps slower, and what seems not to pay is seldom measured
 * again.
 *
 * A source may tell how likely each of its drafts is (a draft model does). Then, with one sequence,
 * as many are asked for as there may be, down to those that would not pay by the time of a step,
 * and those are used that make tokens by time largest. Whether that gains more than proposing takes
 * is measured: the tokens and the time of such steps against those of steps without drafts. Where
 * it does not pay, it is tried again in a hundredth of the time, as if drafts added half of what
 * they do.
 *
 * What is not used is not measured. So one step in 64 has no drafts; half is believed of what a
 * number of drafts added that was not used for long; and sequences that get none are given one now
 * and then, in at most a hundredth of the time: one that had none for 64 steps, or any if none had
 * one for so long (short answers end before they are that old).
 *
 * Pure computation without a clock of its own, for one thread (the engine thread).
 */
#ifndef MX_SCHEDULER_DRAFT_POLICY_H
#define MX_SCHEDULER_DRAFT_POLICY_H

#include <stdbool.h>
#include <stdint.h>

/* 1 .. 16 sequences each have a bucket, then eight have an octave. */
#define MX_DRAFT_BUCKETS 160
/* Most drafts of a sequence. */
#define MX_DRAFT_MOST 8

/* Times of steps with about the same number of sequences. */
struct mx_draft_costs {
	/* [k] of steps with more than k - 1, at most k drafts a sequence; [0]: without drafts */
	struct {
		float drafts; /* mean number of drafts a sequence */
		/* mean time; 0 = unknown: [0] ns, else as part of a step without drafts, since other work
		 * on the host slows both down */
		float time;
		uint32_t seen;    /* value of `steps` when it was measured last */
		uint32_t samples; /* measured so often; counts the first ones only */
	} at[MX_DRAFT_MOST + 1];
	uint32_t steps; /* measured steps */
	/* Of steps for which a source that tells odds was asked for drafts, whether they had any or
	 * not: means of the tokens of a sequence, and of the time with that of proposing, as part of a
	 * step without drafts. */
	struct {
		float tokens, cost;
		float proposing; /* its part of cost */
		uint32_t samples;
		float saved; /* time for probing while that does not pay, likewise */
		bool probing;
	} asked;
};

struct mx_draft_policy {
	uint32_t most; /* drafts of a sequence */
	struct mx_draft_costs bucket[MX_DRAFT_BUCKETS];
	bool told;          /* the source tells the odds of its drafts */
	bool asking;        /* it was asked for drafts in the step that was planned last */
	bool probing;       /* it was, though that does not pay */
	double tried, kept; /* drafts of all sequences lately; recent ones count more */
	uint32_t without;   /* steps since any sequence had a draft */
	double probing_ns;  /* time that may be spent on drafts of sequences that get none */
	double expected_ns; /* of the step that was planned last, if it has such drafts; else 0 */
};

/* How the drafts of one sequence fared. Zeroed at first. */
struct mx_draft_odds {
	double tried, kept; /* likewise */
	uint32_t without;   /* steps since it had one */
};

/* What a source says of the drafts of a sequence: [n] probability that each is kept if those in
 * front of it are. */
struct mx_draft_told {
	const float *odds;
	uint32_t n;
};

/* Prepares p for at most `most` <= MX_DRAFT_MOST drafts of a sequence. */
void mx_draft_policy_init(struct mx_draft_policy *p, uint32_t most);

/* Writes the number of drafts that each of n sequences should get to out[n]. odds[n]: those that
 * can have none are NULL. Returns the probability below which no draft would pay, as in struct
 * mx_step_item. To be called once a step. */
float mx_draft_policy_lengths(struct mx_draft_policy *p, struct mx_draft_odds *const *odds,
                              uint32_t n, uint32_t *out);

/* Writes how many of the drafts that were proposed each of n sequences should get to out[n]. To be
 * called between lengths and observe if the source tells their odds. */
void mx_draft_policy_cut(struct mx_draft_policy *p, const struct mx_draft_told *told, uint32_t n,
                         uint32_t *out);

/* Tells the policy that of n_draft >= 1 drafts of a sequence the first n_accepted were kept. */
void mx_draft_policy_count(struct mx_draft_policy *p, struct mx_draft_odds *odds, uint32_t n_draft,
                           uint32_t n_accepted);

/* Tells the policy that a step with that many decoding sequences and drafts, of which n_kept were
 * kept, and no prompt tokens, took `ns`, after `proposing_ns` for its drafts (which may have come
 * to none). */
void mx_draft_policy_observe(struct mx_draft_policy *p, uint32_t n_decode, uint32_t n_draft,
                             uint32_t n_kept, uint64_t ns, uint64_t proposing_ns);

#endif
