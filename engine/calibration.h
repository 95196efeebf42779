/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a draft model's guesses (struct mx_guess) are worth, learnt from those that were checked.
 *
 * How often a guess is right is counted by what it said of itself, in classes of its probability:
 * a small model's likeliest token is right far more often than it thinks. The agreement of the
 * models is moved until sampled guesses are right as often as they say on average. It begins where
 * a draft model that is the model itself has it.
 *
 * One for all sequences of a draft model; engine thread only.
 */
#ifndef MX_ENGINE_CALIBRATION_H
#define MX_ENGINE_CALIBRATION_H

#include <stdbool.h>
#include <stdint.h>

#define MX_CALIBRATION_CLASSES 16

struct mx_calibration {
	float agreement; /* see struct mx_guess */
	/* guesses lately by what they said, recent ones count more: of sampled sequences, of greedy */
	struct {
		float tried, right;
	} of[2][MX_CALIBRATION_CLASSES];
};

void mx_calibration_init(struct mx_calibration *c);

/* Returns how probably a guess is right that said so; 0 if said < 0. */
float mx_calibration_odds(const struct mx_calibration *c, bool greedy, float said);

/* Counts a guess that was checked. 0 <= said <= 1. */
void mx_calibration_count(struct mx_calibration *c, bool greedy, float said, bool right);

#endif
