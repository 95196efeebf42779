/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Long convolutions of several layers and sequences, one position at a time. The benchmarks of
 * this folder compare the ways to compute them.
 *
 *     y[t] = sum over s <= t of h[t - s] z[s]      for each layer, sequence, channel
 *
 * A step is begin, then layer 0, 1, ... (whose z is known only when the layer
 * before is done), then end. All sequences are at the same position. Values are
 * kept by groups of LC_LANES channels, a group's positions one after the other.
 */
#ifndef MX_BENCH_HYENA_CONV_H
#define MX_BENCH_HYENA_CONV_H

#include <stddef.h>
#include <stdint.h>

#include "device/device.h"
#include "mixers/hyena/kernels.h"

struct conv_shape {
	uint32_t layers, channels, batch;
	uint32_t len;  /* positions, a power of two */
	uint64_t seed; /* of the filters */
};

struct conv {
	const struct conv_ops *ops;
	struct conv_shape shape;
	uint32_t groups; /* of a layer */
	struct mx_device *device;
};

/* How the cost of a step depends on its position t, for estimates from samples (sample.h). */
enum conv_cost {
	CONV_GROWS,   /* with t */
	CONV_SHRINKS, /* with the positions left */
	CONV_TILES,   /* on the largest power of two that divides t + 1, or t if `late` */
	CONV_SPREAD,  /* on nothing in particular: tiles are spread over steps */
};

struct conv_ops {
	const char *name;
	enum conv_cost cost;
	uint32_t late; /* CONV_TILES: 1 = a tile is done one step after its last input */

	/* Bytes that open takes, with those that it frees before it returns. */
	size_t (*bytes)(const struct conv_ops *ops, const struct conv_shape *s,
	                const struct mx_device *d);

	/* Opens it with memory touched and filters transformed. Ends the program if there is no
	 * memory. */
	struct conv *(*open)(const struct conv_ops *ops, const struct conv_shape *s,
	                     struct mx_device *d);
	void (*close)(struct conv *c);

	/* Runs step t. Positions may be left out: their values are noise, or zero. */
	void (*begin)(struct conv *c, uint32_t t);
	void (*layer)(struct conv *c, uint32_t layer, uint32_t t, const float *z, float *y);
	void (*end)(struct conv *c, uint32_t t); /* z, y [batch, channels] */

	/* From now on no tile reaches beyond `len` positions, as in a run of that length. If the way
	 * supports it, only `groups` of all layers' groups are computed: groups are equal tasks.
	 * Returns the number of groups that are computed. Only ways with tiles have it. */
	uint32_t (*limit)(struct conv *c, uint32_t len, uint32_t groups);

	/* Lets the next run begin at position 0. */
	void (*rewind)(struct conv *c);

	/* The least bytes that all steps of a run of `len` positions read and write, or operations
	 * that they compute; 0 = the other figure is the bound. */
	double (*traffic)(const struct conv *c, uint32_t len);
	double (*operations)(const struct conv *c, uint32_t len);
};

/* Every pair of input and output directly (history.c): a step sums over all inputs before it
 * (lazy), or adds its input to all outputs after it (eager); layer by layer, or all layers at
 * once. */
extern const struct conv_ops conv_lazy_serial, conv_lazy, conv_eager_serial, conv_eager;

/* Flash Inference's tiles (fractal.c): computed directly, by transforms, and each where it is
 * faster. */
extern const struct conv_ops conv_fractal_direct, conv_fractal_transform, conv_fractal;

/* mixd's way (mixers/hyena/longconv.h), in pages and slots (paged.c): tiles with slack, spread
 * over steps, or all tiles of a block at once. */
extern const struct conv_ops conv_spread, conv_at_once;

/* Computes the filter rows first .. first + n - 1 of a group: out[n][LC_LANES]. Filters decay, so
 * that outputs are about as large as inputs. */
void conv_filter(const struct conv_shape *s, uint32_t layer, uint32_t group, uint32_t first,
                 uint32_t n, float *out);

/* Fills out[n] with random numbers in [-1, 1), never very small, which depend on the seed alone. */
void conv_noise(uint64_t seed, size_t n, float *out);

/* Allocates n floats, aligned to 64, not touched. Ends the program if there is no memory. */
float *conv_floats(size_t n);
void conv_free(float *p, size_t n);

/* For open: allocates a zeroed object whose first member is a struct conv. */
struct conv *conv_new(size_t size, const struct conv_ops *ops, const struct conv_shape *s,
                      struct mx_device *d);

_Noreturn void conv_die(const char *what);

#endif
