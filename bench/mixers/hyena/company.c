/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares eight sequences at random positions in one batch with one sequence at a time: whole
 * steps (18 layers with projections and feed-forward), in tokens a second. Sequences at different
 * positions have their tiles in different steps; they share the weights, the filter's nearest
 * lags, and the fixed cost of a step. Outputs of the convolutions must be the same bits both ways.
 * The roof of reading weights is the larger of those measured at the start and between the runs.
 * If the weights fit in the caches, the share can exceed 100 %.
 *
 *   bench/mixers/hyena/company [-t threads] [-m gigabytes] [-s seed] [-d channels] [-k log2 of the
 * length]
 *                       [-n steps] [-f bf16]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "bench/mixers/hyena/machine.h"
#include "bench/mixers/hyena/model.h"
#include "bench/mixers/hyena/paged.h"
#include "tests/rng.h"

#define LAYERS    18
#define SEQUENCES 8
#define MIN_LOG   6

struct company {
	struct machine machine;
	struct roofs roofs; /* beside what is measured */
	struct conv_shape shape;
	uint32_t steps;
	uint32_t from[SEQUENCES];
	struct model *model;
	struct conv *conv;
	unsigned char *snapshots; /* [SEQUENCES] at `from` */
	double weight_bytes;
	float *y; /* [SEQUENCES][steps][layers][channels] of the batch */
};

static const uint32_t everyone[SEQUENCES] = {0, 1, 2, 3, 4, 5, 6, 7};

/* ---- state ---- */

static void prepare(struct company *c)
{
	struct rng g = {c->shape.seed + 1};
	size_t bytes = paged_snapshot_bytes(c->conv);
	printf("positions:");
	for (uint32_t i = 0; i < SEQUENCES; i++) {
		c->from[i] = 1 + rng_below(&g, c->shape.len - c->steps - 1);
		printf(" %u", c->from[i]);
		paged_prompt(c->conv, i, c->from[i]);
		paged_save(c->conv, i, c->from[i], c->snapshots + i * bytes);
	}
	printf("\n\n");
	fflush(stdout);
}

/* Sets all sequences to the end of their prompts; sequences which[n] go on. The first step after
 * a load computes the look-ahead sums again: it is run here, before anything is measured. */
static void begin(struct company *c, uint32_t n, const uint32_t *which, const uint32_t *from,
                  bool whole)
{
	size_t bytes = paged_snapshot_bytes(c->conv);
	for (uint32_t i = 0; i < n; i++)
		paged_load(c->conv, which[i], c->from[which[i]], c->snapshots + which[i] * bytes);
	paged_choose(c->conv, n, which, from);
	if (whole)
		model_step(c->model, c->conv, n, 0, true, NULL);
}

/* ---- the same bits ---- */

static float *outputs(const struct company *c, uint32_t sequence, uint32_t t, uint32_t layer)
{
	return c->y + (((size_t)sequence * c->steps + t) * c->shape.layers + layer) * c->shape.channels;
}

/* Runs the convolutions of a batch, with inputs by sequence and step. Writes the outputs to y, or
 * compares them with it. Returns the number of differences. */
static size_t convolve(struct company *c, uint32_t n, const uint32_t *which, bool compare)
{
	const uint32_t width = c->shape.channels;
	float *z = conv_floats((size_t)n * width), *y = conv_floats((size_t)n * width);
	uint32_t from[SEQUENCES];
	size_t differ = 0;
	for (uint32_t i = 0; i < n; i++)
		from[i] = c->from[which[i]];
	begin(c, n, which, from, false);
	for (uint32_t t = 0; t < c->steps; t++) {
		c->conv->ops->begin(c->conv, t);
		for (uint32_t l = 0; l < c->shape.layers; l++) {
			for (uint32_t i = 0; i < n; i++)
				memcpy(z + (size_t)i * width, model_noise(c->model, l, t * SEQUENCES + which[i]),
				       width * sizeof *z);
			c->conv->ops->layer(c->conv, l, t, z, y);
			for (uint32_t i = 0; i < n; i++) {
				float *kept = outputs(c, which[i], t, l);
				if (!compare)
					memcpy(kept, y + (size_t)i * width, width * sizeof *y);
				else
					differ += memcmp(kept, y + (size_t)i * width, width * sizeof *y) != 0;
			}
		}
		c->conv->ops->end(c->conv, t);
	}
	conv_free(z, (size_t)n * width);
	conv_free(y, (size_t)n * width);
	return differ;
}

static void check_bits(struct company *c)
{
	size_t differ = 0;
	convolve(c, SEQUENCES, everyone, false);
	for (uint32_t i = 0; i < SEQUENCES; i++)
		differ += convolve(c, 1, &i, true);
	if (differ)
		conv_die("a sequence's outputs depend on its company");
	printf(
		"Outputs of %u sequences, %u steps, %u layers: the same bits in the batch and alone.\n\n",
		SEQUENCES, c->steps, c->shape.layers);
}

/* ---- time ---- */

static struct model_time run(struct company *c, uint32_t n, const uint32_t *which,
                             const uint32_t *from)
{
	struct model_time sum = {0, 0};
	begin(c, n, which, from, true);
	for (uint32_t t = 1; t < c->steps; t++) {
		struct model_time step = model_step(c->model, c->conv, n, t, true, NULL);
		sum.all += step.all;
		sum.conv += step.conv;
	}
	return sum;
}

static void print_row(const struct company *c, const char *name, uint32_t n, struct model_time t,
                      double alone)
{
	double steps = (double)SEQUENCES * (c->steps - 1) / n, rate = 1e9 * n * steps / (double)t.all;
	double read = c->weight_bytes * steps / (double)t.all;
	printf("| %s | %.3f | %.3f | %.1f GB/s, %.0f %% | %.1f | %.2f |\n", name,
	       (double)t.all * 1e-6 / steps, (double)t.conv * 1e-6 / steps, read,
	       read / c->roofs.read * 100, rate, alone ? rate / alone : 1);
}

static void measure(struct company *c)
{
	struct model_time alone = {0, 0}, batch, together;
	uint32_t same[SEQUENCES];
	for (uint32_t i = 0; i < SEQUENCES; i++) {
		struct model_time t = run(c, 1, &i, &c->from[i]);
		alone.all += t.all;
		alone.conv += t.conv;
		same[i] = c->from[0];
	}
	machine_roofs(&c->machine, &c->roofs);
	batch = run(c, SEQUENCES, everyone, c->from);
	together = run(c, SEQUENCES, everyone, same); /* on wrong values, in the same time */
	double rate = 1e9 * SEQUENCES * (c->steps - 1) / (double)alone.all;
	printf("| | ms a step | in the convolutions | weights read | tokens/s | ratio |\n"
	       "| --- | --- | --- | --- | --- | --- |\n");
	print_row(c, "one at a time", 1, alone, 0);
	print_row(c, "eight at random positions", SEQUENCES, batch, rate);
	print_row(c, "eight at one position", SEQUENCES, together, rate);
	printf("\n");
}

static const char usage[] =
	"bench/mixers/hyena/company [-t threads] [-m gigabytes] [-s seed] [-d channels]\n"
	"       [-k log2 of the length] [-n steps] [-f f32|bf16]";

int main(int argc, char **argv)
{
	struct options given = {.log = 14, .min_log = MIN_LOG, .channels = 256, .seed = 1};
	struct company c = {.steps = 256};
	for (int o; (o = getopt(argc, argv, OPTIONS_COMMON "n:")) != -1;) {
		switch (o) {
		case 'n': c.steps = options_number(o, 2, 1u << OPTIONS_MAX_LOG); break;
		default: options_take(&given, o, usage);
		}
	}
	if (optind < argc)
		options_usage(usage);
	options_check('n', c.steps, 2, (1u << given.log) - 2);
	c.shape = (struct conv_shape){LAYERS, given.channels, SEQUENCES, 1u << given.log, given.seed};
	c.weight_bytes = (double)model_bytes(&c.shape, given.weights);
	machine_open(&given, given.channels, SEQUENCES, &c.machine);
	if (machine_fits(&c.machine, &conv_spread, c.shape, given.log, (size_t)c.weight_bytes) <
	    given.log)
		conv_die("not enough memory: choose a shorter length");
	printf("## Eight sequences of up to %u positions, D = %u, M = %u, weights %s, %u steps\n\n",
	       c.shape.len, c.shape.channels, LAYERS, given.weights == MX_F32 ? "f32" : "bf16",
	       c.steps);
	c.model = model_open(&c.shape, given.weights, c.machine.device);
	c.conv = conv_spread.open(&conv_spread, &c.shape, c.machine.device);
	size_t floats = (size_t)SEQUENCES * c.steps * LAYERS * c.shape.channels;
	c.snapshots = mx_calloc(SEQUENCES, paged_snapshot_bytes(c.conv));
	c.y = conv_floats(floats);
	if (!c.snapshots)
		conv_die("out of memory");
	prepare(&c);
	check_bits(&c);
	c.roofs = c.machine.roofs;
	measure(&c);
	free(c.snapshots);
	conv_free(c.y, floats);
	c.conv->ops->close(c.conv);
	model_close(c.model);
	machine_close(&c.machine);
	return 0;
}
