/* SPDX-License-Identifier: Apache-2.0 */
/* Private to resolve*.c and placement.c. */
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
	bool experts; /* matrices of a mixture of experts */
	bool expands; /* quantised matrices are expanded, and none is rounded */
	bool others;  /* matrices of another rank: they are checked, but not used */
};

/* Appends an entry of `size` bytes to *list and returns it; NULL if out of memory. An array that
 * was too small is not freed: it is in the arena. */
void *mx_resolve_push(struct mx_arena *arena, void **list, size_t *n, size_t *cap, size_t size);

/* ---- resolve_tensors.c: each function finds a tensor of the checkpoint by its full name, checks
 * shape and alignment, and adds a use to the model ---- */

/* Fills *out with the part of the matrix that spec asks for. */
mx_status mx_need_matrix(struct mx_resolver *r, const char *name, const struct mx_weight_spec *spec,
                         struct mx_weight *out);
mx_status mx_need_matrix_2d(struct mx_resolver *r, const char *name, uint32_t rows, uint32_t cols,
                            struct mx_weight *out);
/* The same of a matrix that is never rounded at load. */
mx_status mx_need_exact_2d(struct mx_resolver *r, const char *name, uint32_t rows, uint32_t cols,
                           struct mx_weight *out);
/* As mx_need_matrix, for a table that is stored as it is used even if the plan's matrices are
 * transposed. logits: it is multiplied with, too. */
mx_status mx_need_table(struct mx_resolver *r, const char *name, const struct mx_weight_spec *spec,
                        bool logits, struct mx_weight *out);
/* Fills *out with rows [first, first + n) of a tensor [a, b, cols], counted over both a and b. */
mx_status mx_need_matrix_3d(struct mx_resolver *r, const char *name, const uint64_t shape[3],
                            uint32_t first, uint32_t n, struct mx_weight *out);
/* Fills *out with rows [first, first + n) of matrices shape [a, b, cols] that gpt-oss stores as [a,
 * cols, b], or in MXFP4: see struct mx_plan_experts. pairs: of each matrix the rows of even number
 * come first. */
mx_status mx_need_matrix_oss(struct mx_resolver *r, const char *name, const uint64_t shape[3],
                             bool pairs, uint32_t first, uint32_t n, struct mx_weight *out);
/* Registers *dest: mx_model_convert will point it to that part of the vector. */
mx_status mx_need_vector(struct mx_resolver *r, const char *name, const struct mx_weight_spec *spec,
                         float plus, float **dest);
/* Points *dest to element `first` of a table [rows, cols] that is converted as a whole; pairs: of
 * each row first the even elements, then the odd ones. */
mx_status mx_need_rows(struct mx_resolver *r, const char *name, const uint64_t shape[2], bool pairs,
                       size_t first, float **dest);
/* A vector of n elements; `plus` is added to each when it is converted. */
mx_status mx_need_vector_1d(struct mx_resolver *r, const char *name, uint32_t n, float plus,
                            float **dest);

/* Writes the name of the bias that belongs to a weight: "x.weight" -> "x.bias". */
mx_status mx_bias_name(struct mx_resolver *r, const char *weight, char *out, size_t cap);
/* True if the plan says that the vector is 1 everywhere and not in the checkpoint. */
bool mx_resolve_is_one(const struct mx_resolver *r, const char *name);
/* Finds that bias, of n elements. */
mx_status mx_need_bias(struct mx_resolver *r, const char *weight, uint32_t n, float **dest);
/* Finds the tensors of a norm of the plan's kind; there is none if weight is NULL. */
mx_status mx_resolve_norm(struct mx_resolver *r, const char *weight, struct mx_model_norm *out);

/* ---- made.c: *out has data once mx_model_make has made it. pairs: see struct mx_model_made ----
 */

/* Returns a copy of a tensor. */
mx_status mx_resolve_copied(struct mx_resolver *r, const struct mx_tensor *t,
                            const struct mx_tensor **out);
/* Returns the transpose of a tensor of two dimensions, or of each matrix of one of three. */
mx_status mx_resolve_transposed(struct mx_resolver *r, const struct mx_tensor *t, bool pairs,
                                const struct mx_tensor **out);
/* Returns a copy of rows and columns of a matrix [rows, cols]. Of a matrix in one of GGUF's formats
 * the columns must be whole blocks: MX_E_UNSUPPORTED. */
mx_status mx_resolve_part(struct mx_resolver *r, const struct mx_tensor *t, uint64_t n_cols,
                          const struct mx_weight_slice *rows, const struct mx_weight_slice *cols,
                          const struct mx_tensor **out);
/* Returns the matrix with its rows in the checkpoint's order (t->order). */
mx_status mx_resolve_ordered(struct mx_resolver *r, const struct mx_tensor *t,
                             const struct mx_tensor **out);
/* ---- packed.c ---- */

/* What a matrix is used for, and so whether limits->weight_bits counts. */
enum mx_quantise {
	MX_QUANTISE_NEVER,  /* its elements are read: a quantised one is expanded */
	MX_QUANTISE_STORED, /* as the checkpoint has it */
	MX_QUANTISE,        /* products */
	MX_QUANTISE_8,      /* the logits: with 8 bits at least */
};

/* Returns the bits to which a plain matrix is rounded at load; 0 = it is not. */
int mx_resolve_bits(const struct mx_resolver *r, enum mx_quantise how, uint64_t rows,
                    uint64_t cols);
/* Finds or adds rows of a matrix that is packed; or expanded, if `plain` or if it cannot be packed.
 * bits: those of mx_resolve_bits, for sources of plain elements. */
mx_status mx_resolve_packed(struct mx_resolver *r, const struct mx_quant_matrix *from,
                            const struct mx_weight_slice *part, int bits, bool plain,
                            struct mx_model_packed **out);

/* Finds or adds rows of a matrix that is stored in two parts (t->values); expanded. */
mx_status mx_resolve_joined(struct mx_resolver *r, const struct mx_tensor *t,
                            const struct mx_weight_slice *part, struct mx_model_packed **out);

/* ---- resolve_quant.c ---- */

/* Finds the tensors that stand for a quantised matrix [rows, cols] of that name. MX_E_NOTFOUND if
 * the checkpoint has none: then it may have a plain one. */
mx_status mx_resolve_quantised(struct mx_resolver *r, const char *name, uint64_t rows,
                               uint64_t cols, struct mx_quant_matrix *out);

/* ---- resolve_names.c ---- */

/* Finds the embedding, and with it the root of the checkpoint's names (NULL = there are no roots).
 */
mx_status mx_resolve_embed(const struct mx_plan *p, const struct mx_checkpoint *checkpoint,
                           const char **out_root, const struct mx_tensor **out, struct mx_err *err);
/* Chooses the root of the checkpoint's names; called before all others. */
mx_status mx_resolve_root(struct mx_resolver *r);
/* Finds a tensor by its name in the plan and notes that it is used. */
mx_status mx_resolve_find(struct mx_resolver *r, const char *name, const struct mx_tensor **out,
                          struct mx_err *err);
/* The same of a tensor of another dtype, as mx_checkpoint_find_raw names it. */
mx_status mx_resolve_find_raw(struct mx_resolver *r, const char *name, const char *dtype,
                              const struct mx_tensor **out, struct mx_err *err);
/* Fails if the checkpoint has tensors that nobody asked for and that the plan does not skip. */
mx_status mx_resolve_unused(struct mx_resolver *r);

/* ---- resolve_experts.c ---- */

/* Finds the tensors of a mixture of experts, except the shared expert's. */
mx_status mx_resolve_experts(struct mx_resolver *r, const struct mx_plan_experts *p,
                             struct mx_model_experts *out);

/* ---- resolve_totals.c ---- */

/* Called when all blocks are resolved. Chooses the page size, groups the mixers by module, and
 * gives each mixer its offsets in pages, slots and snapshots. */
mx_status mx_resolve_totals(struct mx_resolver *r);

/* ---- placement.c ---- */

/* Lists each matrix once, with its offset in the device's memory if the device has its own. */
mx_status mx_resolve_places(struct mx_resolver *r);

#endif
