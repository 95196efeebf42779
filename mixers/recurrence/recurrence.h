/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the recurrent mixers share: the linear recurrence in chunks, the short
 * convolution before it and the norm after it. Not a mixer; a library that is
 * linked into each module that needs it.
 *
 * The recurrence, per head with a state S [k_dim, v_dim], one token:
 *
 *     S <- diag(a) S         decay: none, one factor a head, or one for each k
 *     u  = v                 or, with a gain, u = beta v; with the delta rule, beta (v - S^T k)
 *     S <- S + k u^T
 *     o  = S^T q             and, if there is a skip, + d v
 *
 * With removal (RWKV-7), what S has at one key is taken out at another, and k and v are added:
 *
 *     p  = -S^T z            of S before the decay
 *     S <- diag(a) S + b p^T + k v^T
 *
 * In chunks: borders lie at multiples of MX_RECUR_CHUNK of the absolute position.
 * The slot holds S as of a border and, in a ring indexed by position, k, u and
 * a of the tokens since. An output is always the sum of two parts, in one order:
 * the contribution of the tokens of its chunk up to its own, each with the product
 * of the factors in between, and the contribution of S, with the product of all
 * factors since the border. Factors are at most 1 and are only multiplied, so
 * strong decay underflows to 0 and nothing overflows: there is no quotient and
 * no difference of sums of logarithms. At a border the chunk is folded into S:
 *
 *     chunk   what the tokens of the chunk add to S
 *     decay   S times the product of the chunk's factors
 *     merge   outputs from S and the chunk's tokens
 *
 * One token or many in a step: the arithmetic per row is the same, hence the
 * bit-equalities of mixers/mixer.h. A step of one token reads S and does not
 * write it.
 *
 * Draft spans and rollback need nothing more. S never includes tokens that might
 * be taken back (a draft that crosses a border works on a copy), the ring's
 * entries after the committed position are overwritten, and the position of the
 * next span tells how many tokens were kept. The next forward replays the rest.
 * (Activation replay: Wu et al. 2024, "Snakes and Ladders"; the state that is
 * written once a chunk: ReplaySSM, 2026.)
 *
 * A tree of drafts is computed path by path (mixers/tree.h). Its token i has the ring's entry of
 * position pos + i, whatever its position; the chunk that a kernel gets has pointers to the tokens
 * of one path, so kernels know of no trees. commit moves the path that is kept together.
 *
 * Threads: as mixers/mixer.h.
 */
#ifndef MX_MIXERS_RECURRENCE_RECURRENCE_H
#define MX_MIXERS_RECURRENCE_RECURRENCE_H

#include "mixers/mixer.h"

#define MX_RECUR_CHUNK 16

enum mx_recur_decay {
	MX_RECUR_NO_DECAY,
	MX_RECUR_SCALAR,  /* a [a_heads] */
	MX_RECUR_VECTOR,  /* a [a_heads, k_dim] */
	MX_RECUR_CHANNEL, /* no k and q: S [v_dim] of each head, S = a S + v, o = S, a [heads, v_dim] */
};

/* q, k, v and a may have fewer heads than there are states: each of their numbers n divides
 * `heads`, and head h uses head h / (heads / n) of them. */
struct mx_recur_spec {
	uint32_t heads;
	uint32_t q_heads, k_heads, v_heads, a_heads;
	uint32_t k_dim, v_dim;
	enum mx_recur_decay decay;
	bool delta;
	bool gain;    /* only without delta, and with MX_RECUR_NO_DECAY or MX_RECUR_SCALAR */
	bool removal; /* only without delta, and with MX_RECUR_VECTOR */
	uint32_t max_draft;
};

/* Rows of a step, f32; strides in elements. q is already scaled. Unused arrays are NULL. */
struct mx_recur_in {
	const float *q, *k, *v; /* [n_rows, heads * dim] */
	const float *a;         /* factors in [0, 1] */
	const float *beta;      /* [n_rows, heads]; delta and gain */
	const float *skip;  /* [heads] d; NULL = none; not with delta, removal or MX_RECUR_CHANNEL */
	const float *z, *b; /* [n_rows, k_heads * k_dim], strides as of k; removal */
	size_t ldq, ldk, ldv, lda, ldbeta;
};

/* The kernels of one instruction-set level. */
struct mx_recur_kernels;
const struct mx_recur_kernels *mx_recur_kernels_find(enum mx_isa isa);
const char *mx_recur_kernels_name(const struct mx_recur_kernels *k);

/* Bytes of the recurrence's part of a slot and of a snapshot, multiples of 64. A slot that is all
 * zero is an empty state. */
size_t mx_recur_slot_bytes(const struct mx_recur_spec *s);
size_t mx_recur_snapshot_bytes(const struct mx_recur_spec *s);
/* Bytes of forward's workspace, a multiple of 64. */
size_t mx_recur_scratch_bytes(const struct mx_recur_spec *s, unsigned threads);

/* Computes y[n_rows, heads * v_dim] (stride ldy) of all rows of the step and updates the slots. The
 * slot of span i is at slot_base + spans[i].slot * slot_stride. Slots and scratch are aligned
 * to 64. */
void mx_recur_forward(const struct mx_recur_kernels *k, struct mx_device *d,
                      const struct mx_recur_spec *s, const struct mx_step *step,
                      unsigned char *slot_base, size_t slot_stride, const struct mx_recur_in *in,
                      void *scratch, float *y, size_t ldy);

/* mx_mixer_ops.save and load for this part of a slot; `pos` as there. A slot that was loaded one
 * token before the end can be saved again after a token has been computed. */
void mx_recur_save(const struct mx_recur_spec *s, const void *slot, uint32_t pos, void *out);
void mx_recur_load(const struct mx_recur_spec *s, void *slot, uint32_t pos, const void *in);

/* mx_mixer_ops.commit for this part of a slot, for a tree of drafts whose first token had position
 * `pos`: moves the kept tokens together in the rings. */
void mx_recur_commit(const struct mx_recur_spec *s, void *slot, uint32_t pos,
                     const struct mx_kept *kept);

/* ---- the short depthwise causal convolution ---- */

struct mx_conv_spec {
	uint32_t channels;
	uint32_t width; /* taps, 1 .. 8; the last one is for the token itself */
	bool silu;      /* activation after it */
	uint32_t max_draft;
};

/* Bytes of the convolution's part of a slot and of a snapshot, multiples of 64. The slot holds the
 * raw inputs of the last tokens in a ring. */
size_t mx_conv_slot_bytes(const struct mx_conv_spec *s);
size_t mx_conv_snapshot_bytes(const struct mx_conv_spec *s);

/* Computes y[n_rows, channels] from raw x[n_rows, channels]; x and y may be the same memory if
 * their strides are equal. Inputs before the first token are 0. weight f32 [channels, width], bias
 * f32 [channels] or NULL. */
void mx_conv_forward(const struct mx_recur_kernels *k, struct mx_device *d,
                     const struct mx_conv_spec *s, const struct mx_step *step,
                     unsigned char *slot_base, size_t slot_stride, const float *weight,
                     const float *bias, const float *x, size_t ldx, float *y, size_t ldy);

void mx_conv_save(const struct mx_conv_spec *s, const void *slot, uint32_t pos, void *out);
void mx_conv_load(const struct mx_conv_spec *s, void *slot, uint32_t pos, const void *in);
void mx_conv_commit(const struct mx_conv_spec *s, void *slot, uint32_t pos,
                    const struct mx_kept *kept);

/* ---- the selective scan: a state vector for each channel (Mamba, version 1) ----
 *
 *     h[n] <- exp(dt a[n]) h[n] + dt b[n] x        each channel has its own h, a, dt and x
 *     y     = sum of c[n] h[n] + skip x            b and c are the same for all channels
 *
 * A slot holds h as of a token before the last one, and the inputs of the tokens since in a ring
 * indexed by position: one, or a draft's. So a step of one token writes h once, nothing is undone
 * when tokens are taken back, and a state saved at position p can be loaded at p - 1. Tokens are
 * computed one after the other, whatever the spans. */
struct mx_select_spec {
	uint32_t channels;
	uint32_t states; /* of a channel, at most MX_SELECT_STATES */
	uint32_t max_draft;
};

#define MX_SELECT_STATES 128

/* Rows of a step, f32; strides in elements. */
struct mx_select_in {
	const float *dt, *x; /* [n_rows, channels] */
	const float *b, *c;  /* [n_rows, states] */
	const float *a;      /* as mx_select_pack makes it */
	const float *skip;   /* [channels] */
	size_t ld, ldb;      /* of dt and x; of b and c */
};

/* Elements of mx_select_in.a, and its contents from a[channels, states]. */
size_t mx_select_packed(const struct mx_select_spec *s);
void mx_select_pack(const struct mx_select_spec *s, const float *a, float *to);

/* As mx_conv_*, for the scan's part of a slot. y may be in->x. */
size_t mx_select_slot_bytes(const struct mx_select_spec *s);
size_t mx_select_snapshot_bytes(const struct mx_select_spec *s);
void mx_select_forward(const struct mx_recur_kernels *k, struct mx_device *d,
                       const struct mx_select_spec *s, const struct mx_step *step,
                       unsigned char *slot_base, size_t slot_stride, const struct mx_select_in *in,
                       float *y, size_t ldy);
void mx_select_save(const struct mx_select_spec *s, const void *slot, uint32_t pos, void *out);
void mx_select_load(const struct mx_select_spec *s, void *slot, uint32_t pos, const void *in);
void mx_select_commit(const struct mx_select_spec *s, void *slot, uint32_t pos,
                      const struct mx_kept *kept);

/* ---- save, load and commit of a mixer's layers ---- */

/* Copies slot `slot` of one layer to its snapshot, or back; as mx_mixer_ops.save and load. */
typedef void mx_recur_save_f(const struct mx_mixer *m, uint32_t slot, uint32_t pos, void *out);
typedef void mx_recur_load_f(const struct mx_mixer *m, uint32_t slot, uint32_t pos, const void *in);

/* Run `save` or `load` for each layer on the threads of `d`, a layer a task: a snapshot may be
 * more than a hundred MiB. Return MX_OK. */
mx_status mx_recur_save_layers(struct mx_device *d, struct mx_mixer *const *layers,
                               uint32_t n_layers, uint32_t slot, uint32_t pos, void *const *out,
                               mx_recur_save_f *save);
mx_status mx_recur_load_layers(struct mx_device *d, struct mx_mixer *const *layers,
                               uint32_t n_layers, uint32_t slot, uint32_t pos,
                               const void *const *in, mx_recur_load_f *load);

/* Moves the kept tokens of a tree together in slot `slot` of one layer. */
typedef void mx_recur_commit_f(const struct mx_mixer *m, uint32_t slot, uint32_t pos,
                               const struct mx_kept *kept);

/* mx_mixer_ops.commit: runs `commit` for each layer and each tree whose kept tokens are to be
 * moved. Nothing else is to be done: the next span's position tells which tokens of a chain were
 * kept. */
mx_status mx_recur_commit_layers(struct mx_device *d, struct mx_mixer *const *layers,
                                 uint32_t n_layers, const struct mx_step *step,
                                 const struct mx_kept *kept, mx_recur_commit_f *commit);

/* ---- functions of rows ---- */

enum mx_recur_gate { MX_RECUR_GATE_NONE, MX_RECUR_GATE_SILU, MX_RECUR_GATE_SIGMOID };

/* RMS norm of groups of `dim` elements with an output gate g, in place on y[n_rows, groups * dim]:
 * gate_first ? norm(y * g(gate)) : norm(y) * g(gate). weight f32 [dim], or [groups * dim] if
 * weight_per_group; NULL = 1. bias f32 of the weight's shape; NULL = 0. gate may be NULL with
 * MX_RECUR_GATE_NONE. */
struct mx_recur_norm {
	uint32_t groups, dim;
	const float *weight, *bias;
	bool weight_per_group;
	bool center; /* a group's mean is subtracted first: a group norm */
	float eps;
	enum mx_recur_gate gate;
	bool gate_first;
};
void mx_recur_norm(const struct mx_recur_kernels *k, struct mx_device *d,
                   const struct mx_recur_norm *n, size_t n_rows, const float *gate, size_t ld_gate,
                   float *y, size_t ldy);

/* The same norm of groups that several ranks share: a rank has a part of one of them, of n->dim
 * elements (n->groups = 1, not n->center), and the squares are summed over the ranks. sums
 * [n_rows, groups] is workspace. Returns the communicator's errors. */
struct mx_recur_norm_share {
	struct mx_comm *comm;
	uint32_t group, groups; /* the rank's group, of how many */
	uint32_t dim;           /* elements of a whole group */
};
mx_status mx_recur_norm_shared(const struct mx_recur_kernels *k, struct mx_device *d,
                               const struct mx_recur_norm *n,
                               const struct mx_recur_norm_share *share, size_t n_rows,
                               const float *gate, size_t ld_gate, float *y, size_t ldy,
                               float *sums);

/* x <- x * scale / sqrt(sum x^2 + eps), each of `heads` groups of `dim`, in place. */
void mx_recur_l2norm(const struct mx_recur_kernels *k, struct mx_device *d, size_t n_rows,
                     uint32_t heads, uint32_t dim, float eps, float scale, float *x, size_t ldx);

/* Elementwise functions, in place on x[n_rows, n]. An element's result does not depend on its
 * place. */
enum mx_recur_map {
	MX_RECUR_SIGMOID,
	MX_RECUR_SILU,
	MX_RECUR_SOFTPLUS, /* x > 20 gives x */
	MX_RECUR_EXP,
	MX_RECUR_LOGSIGMOID,
	MX_RECUR_TANH,
};
void mx_recur_map(const struct mx_recur_kernels *k, struct mx_device *d, enum mx_recur_map f,
                  size_t n_rows, size_t n, float *x, size_t ldx);

#endif
