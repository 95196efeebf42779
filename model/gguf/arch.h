/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a GGUF file's general.architecture means in the terms of Hugging Face: the model_type, the
 * keys of its config.json and the names of its tensors. Private to model/gguf/.
 *
 * The names and what the converter does to tensors: gguf-py/gguf/constants.py and tensor_mapping.py
 * and the folder conversion/ of llama.cpp.
 */
#ifndef MX_MODEL_GGUF_ARCH_H
#define MX_MODEL_GGUF_ARCH_H

#include <jansson.h>

#include "model/gguf/gguf.h"

/* How a tensor differs from the one of Hugging Face that its name stands for. */
enum mx_gguf_form {
	MX_GGUF_SAME,
	MX_GGUF_CONV,          /* [channels, taps] for [channels, 1, taps] */
	MX_GGUF_FLAT,          /* [1, n], [n, 1] or [groups, n / groups] for [n] */
	MX_GGUF_ROW,           /* [n] or [1, n] for [1, n] */
	MX_GGUF_MINUS_EXP,     /* flat, and -exp(x) for x */
	MX_GGUF_MINUS_EXP_ALL, /* -exp(x) for x, of the same shape */
	MX_GGUF_LIST,          /* [experts, ..]: the name has %u for the number of the expert */
	MX_GGUF_LIST_TWO, /* of each expert the rows of two matrices; the name has %s for gate or up */
	MX_GGUF_QKV,      /* rows of q, k and v behind each other; the name has %s for q, k or v */
	MX_GGUF_KV_B,     /* k_b of latent attention, which attn_v_b and it make kv_b of */
	MX_GGUF_V_B,      /* attn_v_b, which goes with it */
	MX_GGUF_SQUEEZED, /* with dimensions of 1 */
	MX_GGUF_HEADS,    /* [n] for [n / wkv.head_size, wkv.head_size] */
	MX_GGUF_LATER,    /* of no use in layer 0 */
	MX_GGUF_MINUS_EXP_HEADS, /* of any shape, and -exp(x) for x, for [1, 1, n, 1] */
	MX_GGUF_DROPPED,         /* config.json says it */
};

/* How the order of a tensor's rows differs from that of Hugging Face (row_order.h). */
enum mx_gguf_rows {
	MX_GGUF_ROWS_SAME,
	MX_GGUF_ROWS_PAIRS_Q, /* of a head neighbours are what rope turns, of attention.head_count */
	MX_GGUF_ROWS_PAIRS_K, /* likewise of attention.head_count_kv */
	/* Of the heads of values of a delta net those that share a key head are no neighbours: the
	 * first of each key head, then the second of each. */
	MX_GGUF_ROWS_HEADS,  /* a row a head */
	MX_GGUF_ROWS_VALUES, /* the rows of a head's values */
	MX_GGUF_ROWS_QKV,    /* likewise behind those of q and k */
	/* Of each key head the rows of beta, then those of alpha, for beta of all heads first. */
	MX_GGUF_ROWS_BA,
	MX_GGUF_ROWS_BY_PART, /* q of all heads, k, v, for q, k and v of each head */
};

/* A name behind "blk.N.", and the one behind the layer's number. Both are without ".weight" or
 * ".bias", which stay, but where `whole`. */
struct mx_gguf_rename {
	const char *from, *to;
	enum mx_gguf_form form;
	enum mx_gguf_rows rows;
	bool whole;
};

/* The state of making a config.json. The first error stays in `status`. */
struct mx_gguf_maker {
	const struct mx_gguf *g;
	const struct mx_gguf_arch *arch;
	json_t *out;
	int64_t layers; /* block_count less the layers that predict further tokens */
	mx_status status;
	struct mx_err *err;
};

struct mx_gguf_arch {
	const char *name, *model_type;
	/* Further values of model_type, separated by blanks, whose checkpoints become such files. */
	const char *also;
	/* Names outside the layers, and what comes before a layer's number. */
	const char *embed, *final_norm, *lm_head, *layers;
	const struct mx_gguf_rename *const *renames; /* tables that end with from NULL; then NULL */
	const struct mx_gguf_rename *outside;        /* further names outside the layers, or NULL */
	/* Of the layer that predicts a further token, behind the last one: what comes before its own
	 * number, and names that are whole. NULL = such layers are not read. */
	const char *head_layers;
	const struct mx_gguf_rename *head;
	void (*config)(struct mx_gguf_maker *m); /* adds the keys of this architecture */
	bool pairs;                              /* q and k are MX_GGUF_PAIRS_Q, _K */
	bool norms_hold_one;                     /* norms hold 1 + w where Hugging Face's have w */
	bool hybrid;    /* numbers of heads and widths that are 0 belong to layers of another kind */
	bool own_heads; /* config() reads the heads of keys, whose numbers may differ between layers */
	bool latent;    /* config() reads the sizes of heads */
};

/* What most checkpoints call the tensors outside the layers. */
#define MX_GGUF_MODEL                                                                              \
	.embed = "model.embed_tokens", .final_norm = "model.norm", .lm_head = "lm_head",               \
	.layers = "model.layers."

/* Groups of architectures, which end with name NULL. arch_*.c */
extern const struct mx_gguf_arch mx_gguf_attention_archs[], mx_gguf_dense_archs[],
	mx_gguf_expert_archs[], mx_gguf_gemma4_archs[], mx_gguf_hybrid_archs[], mx_gguf_mamba_archs[],
	mx_gguf_deepseek_archs[], mx_gguf_gpt_archs[], mx_gguf_rwkv_archs[];

/* Returns the architecture of a file, or fails with a text that names it. arch.c */
mx_status mx_gguf_arch_of(const struct mx_gguf *g, const struct mx_gguf_arch **out,
                          struct mx_err *err);

/* Makes config.json. The caller owns *out (json_decref). config.c */
mx_status mx_gguf_config(const struct mx_gguf *g, json_t **out, struct mx_err *err);
/* Makes tokenizer.json, or tokenizer_config.json; the caller frees *out. tokenizer.c */
mx_status mx_gguf_make_tokenizer(const struct mx_gguf *g, bool config, char **out, size_t *out_len,
                                 struct mx_err *err);

/* Makes the vocabulary of RWKV's tokenizer; likewise. MX_E_NOTFOUND for other tokenizers. world.c
 */
mx_status mx_gguf_make_world(const struct mx_gguf *g, char **out, size_t *out_len,
                             struct mx_err *err);

/* ---- keys.c: each function does nothing once an error was met. Keys of the file are below the
 * architecture: "attention.head_count". ---- */

/* Returns the integer of a key, `def` if it is absent. */
int64_t mx_gguf_get_int(struct mx_gguf_maker *m, const char *key, int64_t def);
/* The same; its absence is an error. */
int64_t mx_gguf_need_int(struct mx_gguf_maker *m, const char *key);
double mx_gguf_get_float(struct mx_gguf_maker *m, const char *key, double def);
bool mx_gguf_get_bool(struct mx_gguf_maker *m, const char *key, bool def);
bool mx_gguf_has(const struct mx_gguf_maker *m, const char *key);
/* True if the key is there and an array. */
bool mx_gguf_has_list(const struct mx_gguf_maker *m, const char *key);
/* Returns the value of an array, or the same number for each layer; fails if it has fewer than
 * m->layers elements. */
int64_t mx_gguf_of_layer(struct mx_gguf_maker *m, const char *key, int64_t layer, int64_t def);
/* Returns the first element of an array that is not 0 (0 if there is none), or the number. */
int64_t mx_gguf_first_of(struct mx_gguf_maker *m, const char *key, int64_t def);
/* True if the file has this tensor. */
bool mx_gguf_has_tensor(const struct mx_gguf_maker *m, const char *name);

void mx_gguf_set_int(struct mx_gguf_maker *m, const char *key, int64_t v);
void mx_gguf_set_float(struct mx_gguf_maker *m, const char *key, double v);
void mx_gguf_set_bool(struct mx_gguf_maker *m, const char *key, bool v);
void mx_gguf_set_string(struct mx_gguf_maker *m, const char *key, const char *v);
/* Takes the value, even if NULL. */
void mx_gguf_set(struct mx_gguf_maker *m, const char *key, json_t *v);
/* Copies a number if it is there. */
void mx_gguf_copy_int(struct mx_gguf_maker *m, const char *from, const char *to);
void mx_gguf_copy_float(struct mx_gguf_maker *m, const char *from, const char *to);
/* Records an error. */
void mx_gguf_refuse(struct mx_gguf_maker *m, mx_status status, const char *fmt, ...)
	MX_PRINTF(3, 4);

/* ---- arch_shared.c: names and keys that several architectures have ---- */

/* Names of attention, of a dense feed-forward, of the norm before it, of Gemma's norms around it,
 * and of experts. */
extern const struct mx_gguf_rename mx_gguf_attention_names[], mx_gguf_feed_forward_names[],
	mx_gguf_norm_names[], mx_gguf_gemma_norms[], mx_gguf_expert_names[];
/* Names of what experts have as DeepSeek's beside those: the correction, shared experts. */
extern const struct mx_gguf_rename mx_gguf_deepseek_names[];
/* Names outside the layers that mx_gguf_longrope reads. */
extern const struct mx_gguf_rename mx_gguf_longrope_names[];

/* True if some layer has this tensor: "attn_q.bias". */
bool mx_gguf_a_layer_has(const struct mx_gguf_maker *m, const char *rest);
/* Sets attention_bias and mlp_bias by the tensors that there are. */
void mx_gguf_biases(struct mx_gguf_maker *m);
/* Sets the numbers and widths of experts and of a shared one. */
void mx_gguf_experts(struct mx_gguf_maker *m);
/* Sets the keys of experts as DeepSeek's config has them. */
void mx_gguf_deepseek_experts(struct mx_gguf_maker *m);
/* Sets layer_types: all layers have a window but each `pattern`-th, unless the file says it. */
void mx_gguf_window_layers(struct mx_gguf_maker *m, int64_t pattern);
/* Sets `key` to a list: words[0] for layers that have the tensor `marks`, words[1] for others. */
void mx_gguf_layers_by_tensor(struct mx_gguf_maker *m, const char *key, const char *marks,
                              const char *const words[2]);
/* Returns ssm.inner_size over the number of heads. */
int64_t mx_gguf_ssm_head_dim(struct mx_gguf_maker *m);
/* Sets Granite's biases and multipliers. */
void mx_gguf_granite(struct mx_gguf_maker *m);
/* Sets the rope scaling of files that have rope_factors_long and rope_factors_short. */
void mx_gguf_longrope(struct mx_gguf_maker *m);

#endif
