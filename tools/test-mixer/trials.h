/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The equalities that every mixer promises (mixers/mixer.h), tried on one case. The texts of the
 * case are computed in one piece first and compared with the reference if there is one. Then every
 * row of every other run must be the same bits: whatever the cuts, the batch, the threads, the
 * pages and the limits; after drafts were taken back, after preemption; saved and loaded, or
 * forked, and then continued with another text.
 */
#ifndef MX_TOOLS_TEST_MIXER_TRIALS_H
#define MX_TOOLS_TEST_MIXER_TRIALS_H

#include "tools/test-mixer/rig.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define RUN_SLOWLY 1 /* everything takes some ten times as long */
#else
#define RUN_SLOWLY 0
#endif

/* Runs every trial of one case. The options' max_draft and threads are set per trial: `threads` is
 * the largest number that is tried, 0 = 3. */
void trials_run(const struct rig_options *o, const struct mixer_set *set,
                const struct mixer_case *c);

/* Checks what a table says without a layer: destroy takes NULL, and probe refuses a device of a
 * kind that the mixer does not run on, with a message. */
void trials_table(const struct mx_mixer_ops *ops);

/* Checks that probe refuses each wrong parameter of the set with the words that belong to it. */
void trials_wrongs(const struct rig_options *o, const struct mixer_set *set);

/* ---- texts, for programs that want the outputs of a case ---- */

#define N_TEXTS 3

/* Texts: 0 is the long one, 1 begins with the same `common` tokens, 2 is short. */
struct texts {
	struct text t[N_TEXTS];
	uint32_t common;
};

/* Draws the texts and computes each in one piece. */
void texts_make(struct rig *r, struct texts *x);
void texts_free(struct texts *x);

#endif
