/* SPDX-License-Identifier: Apache-2.0 */
/* Inside resolve: what its files share. */
#ifndef MX_ENGINE_RESOLVER_H
#define MX_ENGINE_RESOLVER_H

#include "engine/resolve.h"

/* Norms and biases in f32 are aligned to this, in bytes. */
#define MX_VECTOR_ALIGN 64

struct mx_resolver {
	struct mx_model *model;
	const struct mx_registry *registry;
	const struct mx_device *device;
	const struct mx_model_limits *limits;
	struct mx_err *err;
};

/* Grows *list by one entry of `size` bytes and returns it; NULL if out of memory. The old array
 * stays in the arena. */
void *mx_resolve_push(struct mx_arena *arena, void **list, size_t *n, size_t *cap, size_t size);

/* ---- resolve_tensors.c: each finds a tensor of the checkpoint by its whole name, checks shape and
 * alignment, and notes the use ---- */

/* The part of the matrix that spec asks for. */
mx_status mx_need_matrix(struct mx_resolver *r, const char *name, const struct mx_weight_spec *spec,
                         struct mx_weight *out);
mx_status mx_need_matrix_2d(struct mx_resolver *r, const char *name, uint32_t rows, uint32_t cols,
                            struct mx_weight *out);
/* The part of the vector that spec asks for; *dest is set when it is converted. */
mx_status mx_need_vector(struct mx_resolver *r, const char *name, const struct mx_weight_spec *spec,
                         float **dest);
mx_status mx_need_vector_1d(struct mx_resolver *r, const char *name, uint32_t n, float **dest);

/* ---- resolve_totals.c ---- */

/* When all blocks are resolved: chooses the page size, groups the mixers by module, and gives every
 * mixer its place in pages, slots and snapshots. */
mx_status mx_resolve_totals(struct mx_resolver *r);

/* ---- placement.c ---- */

/* Lists each matrix once, and gives it its place in the device's memory if that is its own. */
mx_status mx_resolve_places(struct mx_resolver *r);

#endif
