/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of CPU operators share: random numbers, memory that nobody may write behind, and a
 * device of every instruction-set level of this machine.
 */
#ifndef MX_TESTS_DEVICE_OPS_RIG_H
#define MX_TESTS_DEVICE_OPS_RIG_H

#include <stddef.h>
#include <stdint.h>

#include "device/cpu/kernels.h"

enum { MAX_ROWS = 512, MAX_WIDTH = 4096 }; /* of the devices */
enum { OPS_LEVELS = MX_ISA_AMX_BF16 + 2 }; /* the reference and each level */

/* Device 0 is the reference, device 1 + level that level (NULL if the machine lacks it); `tables`
 * their kernels. with_threads: the best level on 1, 2, 3 threads. */
extern struct mx_device *devices[OPS_LEVELS], *with_threads[4];
extern struct mx_kernels tables[OPS_LEVELS];

#define FOR_LEVELS(i) for (int i = 1; i <= (int)mx_cpu_isa_max() + 1; i++)

/* Of a cmocka group: creates the devices, and seeds the random numbers with MIXD_TEST_SEED or the
 * time; prints the seed. */
int ops_setup(void **state);
int ops_teardown(void **state);

uint32_t rng(void);
/* Uniform in [-1, 1], never near the subnormals. */
float uniform(void);
void fill_floats(float *p, size_t n);

/* Memory whose end, `data` + bytes, is that of the page in front of one that nobody may touch. */
struct guarded {
	void *map, *data;
	size_t map_bytes;
};

/* Filled with 0xff (NaN in every dtype). unguard() frees it. */
struct guarded guard(size_t bytes);
/* The same for activations, which are aligned to 64: the caller checks the bytes behind the n. */
struct guarded guard_floats(size_t n);
void unguard(struct guarded *g);

/* A matrix of normal numbers in the dtype (f16: subnormal ones too); *w refers to its memory. */
struct guarded random_weight(enum mx_dtype dtype, uint32_t rows, uint32_t cols,
                             struct mx_weight *w);
/* Element i of it. */
float weight_at(const struct mx_weight *w, size_t i);

#endif
