/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mixtures of experts: how the experts of a row are chosen, and what the operator `experts` of
 * device.h computes. Installed for mixers, since device.h includes it.
 */
#ifndef MX_DEVICE_EXPERTS_H
#define MX_DEVICE_EXPERTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mx_quant;

/* Activations of feed-forwards. */
enum mx_act {
	MX_ACT_SILU,      /* x / (1 + exp(-x)) */
	MX_ACT_GELU_TANH, /* x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) */
	MX_ACT_GELU,      /* x / 2 * (1 + erf(x / sqrt(2))) */
	MX_ACT_RELU2,     /* max(x, 0)^2 */
};

enum mx_router_scores { MX_ROUTER_SOFTMAX, MX_ROUTER_SIGMOID };

/* How a token's experts are chosen from the scores that the router's logits give them, and what
 * their outputs are multiplied by. */
struct mx_router_rule {
	enum mx_router_scores scores;
	uint32_t chosen; /* experts of a token: those with the highest score, plus correction if any */
	/* The experts are `groups` runs of equal length, and only those of the kept_groups best ones
	 * can be chosen. A group counts by the sum of its two best experts, or by its best one. 0 or 1
	 * = no groups. */
	uint32_t groups, kept_groups;
	bool by_best;
	bool normalize; /* divide the scores of a token's experts by their sum + sum_epsilon */
	float sum_epsilon;
	float scale; /* then multiply them by this */
};

#define MX_ROUTER_MAX_GROUPS 64

/* Most experts of a mixture, and of a row, on devices with memory of their own. */
#define MX_EXPERTS_MAX        1024
#define MX_EXPERTS_MAX_CHOSEN 32

/* An expert chosen by a row, or a row that chose an expert, with the factor of its output. */
struct mx_expert_link {
	uint32_t index;
	float weight;
};

/* The matrices of one expert in the device's memory: row-major, of the activation dtype, or packed
 * panels. */
struct mx_expert_weights {
	const void *gate;                             /* [width, cols]; NULL if not gated */
	const void *up;                               /* [width, cols] */
	const void *down;                             /* [cols, width] */
	const float *gate_bias, *up_bias, *down_bias; /* NULL = none */
};

/* A mixture of experts of one shape. */
struct mx_experts {
	struct mx_router_rule rule;
	uint32_t n;     /* experts */
	uint32_t cols;  /* elements of a row of x and of y */
	uint32_t width; /* intermediate size of one expert */
	enum mx_act act;
	bool gated; /* an expert is down(act(gate x) * up x), else down(act(up x)) */
	/* If limit is not 0: the feed-forward's product is gate sigmoid(alpha gate) (up + 1) of gate
	 * cut at limit and up at +- limit (gpt-oss). */
	float alpha, limit;
	const float *correction; /* [n] added to the scores for the choice only; NULL = none */
	const float *scales; /* [n] factors of the experts' outputs beside their scores; NULL = none */
	const struct mx_expert_weights *weights; /* [n]; up NULL = of another rank, and left out */
	/* How the experts' matrices are packed: gate and up, and down. NULL = they are plain. Needs
	 * info.packs_experts. */
	const struct mx_quant *up_quant, *down_quant;
};

/* One call of the operator, n rows. All pointers are the device's memory. */
struct mx_experts_call {
	const float *logits; /* [n, experts] of the router */
	const void *x;       /* [n, cols] */
	void *y;             /* [n, cols] */
	bool add;            /* y is the shared expert's output, which the sum is added to */
	const float *share;  /* [n] y is multiplied by the sigmoid of this first; NULL = it is not */
	void *work;          /* mx_experts_work bytes, aligned as info.align says */
	size_t n;
};

/* Rows that are computed together: longer calls are divided, so that their workspace is bounded. */
#define MX_EXPERTS_ROWS 4096

/* Returns the bytes of workspace for calls of at most n rows, whose elements have `size` bytes: the
 * links of rows and of experts, the list of tiles, and of each link the feed-forward's product and
 * the output. */
static inline size_t mx_experts_work(size_t n, uint32_t experts, uint32_t chosen, uint32_t cols,
                                     uint32_t width, size_t size)
{
	const size_t links = (n < MX_EXPERTS_ROWS ? n : MX_EXPERTS_ROWS) * chosen, align = 256;
	const size_t lists = links * (sizeof(struct mx_expert_link) + 4) + (links + experts + 2) * 64;
	return (lists + links * width * size + links * cols * size) / align * align + 6 * align;
}

#endif
