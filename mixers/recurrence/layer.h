/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The description of a recurrent layer: its streams, what happens to each before the recurrence,
 * and what follows it. A variant of linear attention, or Mamba-2, is one such record, which the
 * mixer's parameter code fills; kernels of other devices read nothing else.
 *
 *     z_s  = W_s x (+ b_s), or W2_s W1_s x         for each stream s
 *     z_s  = act(conv(z_s))                        where there is a convolution, an activation
 *     q, k = norm(features(z)), turned and scaled
 *     a    = decay map of its stream, or of the head alone
 *     y    = recurrence (recurrence.h)
 *     out  = W_o [norm and gate of y] (+ b_o)
 */
#ifndef MX_MIXERS_RECURRENCE_LAYER_H
#define MX_MIXERS_RECURRENCE_LAYER_H

#include "mixers/recurrence/recurrence.h"

enum mx_recur_stream {
	MX_RECUR_Q,
	MX_RECUR_K,
	MX_RECUR_V,
	MX_RECUR_A,
	MX_RECUR_BETA,
	MX_RECUR_GATE,
	MX_RECUR_STREAMS
};

/* The feature map of q and k, before the recurrence. */
enum mx_recur_feature {
	MX_RECUR_FEATURE_IDENTITY,
	MX_RECUR_FEATURE_RELU,
	MX_RECUR_FEATURE_SIGMOID,
	MX_RECUR_FEATURE_SILU,
	MX_RECUR_FEATURE_ELU,      /* elu(x) + 1 */
	MX_RECUR_FEATURE_PRODUCT,  /* L1 x * L2 x */
	MX_RECUR_FEATURE_T2R,      /* relu(L x) */
	MX_RECUR_FEATURE_HEDGEHOG, /* softmax(2 L x, -2 L x) */
	MX_RECUR_FEATURE_DPFP,     /* products of (relu x, relu -x) with its rotations by 1 .. 4 */
};

/* Returns the elements that a head of `dim` is mapped to. */
static inline uint32_t mx_recur_feature_dim(enum mx_recur_feature f, uint32_t dim)
{
	return f == MX_RECUR_FEATURE_HEDGEHOG ? 2 * dim : f == MX_RECUR_FEATURE_DPFP ? 8 * dim : dim;
}

/* Returns the number of trained products of a map, 0 to 2. */
static inline int mx_recur_feature_layers(enum mx_recur_feature f)
{
	return f == MX_RECUR_FEATURE_PRODUCT                                 ? 2
	       : f == MX_RECUR_FEATURE_T2R || f == MX_RECUR_FEATURE_HEDGEHOG ? 1
	                                                                     : 0;
}

/* Norm that divides each head of q and k. */
enum mx_recur_qk_norm {
	MX_RECUR_QK_NONE,
	MX_RECUR_QK_L2,  /* sqrt(sum x^2 + 1e-6) */
	MX_RECUR_QK_L1,  /* max(sum |x|, 1e-6) */
	MX_RECUR_QK_SUM, /* sum x + 1e-4 */
};

/* How the factors a come from stream A, which holds z. pre, mul and add are vectors of the layer's
 * tables, with an element for each of stream A's; one that is not there is left out. */
enum mx_recur_decay_map {
	MX_RECUR_A_ONE,        /* there is no decay */
	MX_RECUR_A_FIXED,      /* a number for each head, whatever the token */
	MX_RECUR_A_LOGSIGMOID, /* exp(max(mul log sigmoid(z), min)) */
	MX_RECUR_A_SOFTPLUS,   /* exp(mul softplus(z)) */
	MX_RECUR_A_BOUND,      /* exp(mul sigmoid(pre z)) */
	MX_RECUR_A_SIGMOID,    /* mul sigmoid(z) + add */
	MX_RECUR_A_STEP,       /* exp(mul beta): Mamba's; no stream A */
};

enum mx_recur_beta_map {
	MX_RECUR_BETA_FIXED,   /* beta_scale; no stream BETA */
	MX_RECUR_BETA_SIGMOID, /* beta_scale sigmoid(z) */
	MX_RECUR_BETA_STEP,    /* softplus(beta_scale z), within step_min and step_max */
};

struct mx_recur_stream_desc {
	uint32_t n;    /* elements a row; 0 = the layer has no such stream */
	uint32_t ld;   /* elements between rows, on CPUs */
	uint32_t rank; /* of a product through a low rank; 0 = one product */
	bool conv;
	bool silu;
};

struct mx_recur_layer {
	struct mx_recur_spec core;
	/* Sizes of a head as projected. With some feature maps those in `core` are larger. */
	uint32_t k_dim, v_dim;
	struct mx_recur_stream_desc streams[MX_RECUR_STREAMS];
	uint32_t taps; /* of the convolutions; 0 = there are none */
	enum mx_recur_feature feature;
	enum mx_recur_qk_norm norm_q, norm_k;
	bool rope; /* q and k are turned by their position, see mx_recur_tables.inv_freq */
	float q_scale;
	enum mx_recur_decay_map decay;
	float decay_min; /* MX_RECUR_A_LOGSIGMOID; -INFINITY = none */
	enum mx_recur_beta_map beta;
	float beta_scale, step_min, step_max;
	bool k_is_rest;    /* there is no stream K: k = 1 - a */
	bool v_times_rest; /* v is multiplied by 1 - a */
	bool normalize;    /* v has one more element, 1; outputs are divided by its output + 1e-10 */
	bool norm;         /* there is a norm; else only the gate */
	struct mx_recur_norm out; /* without its pointers; dim and groups without the added element */
	/* A norm that several ranks share: this one has a part, out.dim elements (out.groups = 1), of
	 * one of share_groups groups of share_dim elements. share_groups 0 = it has whole groups. */
	uint32_t share_group, share_groups, share_dim;
	float gate_scale; /* of stream GATE, before the gate's function */
	/* If not 0: of the heads that share a key head, so many, the output's product reads the first
	 * of each key head, then the second of each. */
	uint32_t by_turns;
};

/* Vectors that depend on parameters and weights only, in host memory; NULL = not there. */
struct mx_recur_tables {
	float *inv_freq;        /* [k_dim / 2] with rope */
	float *fixed_a;         /* [heads] MX_RECUR_A_FIXED */
	float *pre, *mul, *add; /* [elements of stream A]; mul [heads] with MX_RECUR_A_STEP */
};

#endif
