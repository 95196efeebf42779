/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps of the pushdown automaton. It is not deterministic: a place in a text is a set of
 * configurations, each a state and a stack. Stacks share their lower parts: a stack is a number of
 * a frame, which names the state to return to and the frame below; equal stacks have one number.
 *
 * The sets that are handed on are kernels, the states directly behind a byte; calls and returns are
 * followed when the next byte is known.
 */
#ifndef MX_GRAMMAR_STEP_H
#define MX_GRAMMAR_STEP_H

#include "grammar/automaton.h"

struct mx_frame {
	uint32_t state, below;
};

struct mx_frames {
	struct mx_frame *at; /* frame 0 is the bottom */
	uint32_t n, cap;
	uint32_t *table; /* hash of frames */
	uint32_t table_size;
};

struct mx_config {
	uint32_t state, stack;
};

struct mx_configs {
	struct mx_config *at;
	uint32_t n, cap;
};

struct mx_stepper {
	const struct mx_grammar *grammar;
	struct mx_frames frames;
	struct mx_configs closure; /* scratch */
	uint32_t max_configs, max_frames;
	size_t work; /* elementary steps that are left; MX_E_LIMIT without */
	mx_status status;
};

/* Makes a stepper at the start of no text, with at most so many configurations and frames at a
 * time, and `work` elementary steps. The grammar outlives it. */
mx_status mx_stepper_init(struct mx_stepper *s, const struct mx_grammar *g, uint32_t max_configs,
                          uint32_t max_frames, size_t work);
void mx_stepper_free(struct mx_stepper *s);
/* Makes *out another one at the same place; mx_stepper_free frees it. */
mx_status mx_stepper_copy(const struct mx_stepper *s, struct mx_stepper *out);

/* Appends to *out the kernel behind `byte`. in: n configurations, which may lie in out->at. What
 * out held before stays. On failure s->status is set and nothing is appended. */
void mx_step(struct mx_stepper *s, const struct mx_config *in, uint32_t n, uint8_t byte,
             struct mx_configs *out);
/* Whether a rule at the bottom may end at these configurations: the text, if the bottom is that of
 * the whole grammar. */
bool mx_may_return(const struct mx_stepper *s, const struct mx_config *in, uint32_t n);
/* Drops the frames that none of these n configurations uses, and numbers the others anew. */
void mx_frames_collect(struct mx_stepper *s, struct mx_config *configs, uint32_t n);

/* Appends a configuration. False if out of memory. */
bool mx_configs_add(struct mx_configs *c, struct mx_config config);

#endif
