/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/calibration.h"

#include <math.h>

#include "device/sampling.h"

/* Weight that the guesses before keep when one more of their class is counted: the last 64 or so
 * decide. */
#define KEEPS (1 - 1.0f / 64)
/* What a guess said of itself counts as so many guesses of its class. */
#define PRIOR 2.0f
/* Step of the agreement's logarithm for a guess that is wrong and said it is certain. From the
 * first value it takes some hundred guesses to where most models are; there it moves by a third,
 * which changes the guesses that are right by a hundredth. */
#define STEP 0.1f
/* Least agreement: no guess follows the random number then. */
#define LEAST_AGREEMENT 1.0f

void mx_calibration_init(struct mx_calibration *c)
{
	*c = (struct mx_calibration){.agreement = MX_GUESS_SAME};
}

static uint32_t class_of(float said)
{
	return said < 1 ? (uint32_t)(said * MX_CALIBRATION_CLASSES) : MX_CALIBRATION_CLASSES - 1;
}

float mx_calibration_odds(const struct mx_calibration *c, bool greedy, float said)
{
	if (!(said >= 0))
		return 0;
	uint32_t k = class_of(said);
	return (c->of[greedy][k].right + PRIOR * said) / (c->of[greedy][k].tried + PRIOR);
}

void mx_calibration_count(struct mx_calibration *c, bool greedy, float said, bool right)
{
	uint32_t k = class_of(said);
	c->of[greedy][k].tried = c->of[greedy][k].tried * KEEPS + 1;
	c->of[greedy][k].right = c->of[greedy][k].right * KEEPS + (float)right;
	if (greedy)
		return;
	float next = c->agreement * expf(STEP * ((float)right - said));
	c->agreement = fminf(fmaxf(next, LEAST_AGREEMENT), MX_GUESS_SAME);
}
