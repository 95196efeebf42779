/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of the hyena mixer. The reference is the whole layer in double precision: filters by their
 * formulas (Poli et al. 2023, and StripedHyena's), convolutions as plain sums. */
#include <complex.h>
#include <math.h>
#include <stdlib.h>

#include "mixer_cases.h"

struct dims {
	uint32_t width, heads, taps;
	bool bias;
};

static struct mx_params params_of(const struct mixer_case *c)
{
	return (struct mx_params){c->params, c->n_params};
}

static struct dims dims_of(const struct mixer_case *c)
{
	const struct mx_params p = params_of(c);
	return (struct dims){
		.width = c->width,
		.heads = (uint32_t)mx_param_int(&p, "heads", 1),
		.taps = (uint32_t)mx_param_int(&p, "short_filter", 3),
		.bias = mx_param_int(&p, "bias", 1),
	};
}

/* Returns the column of the projection with part 0, 1 or 2 (x0, x1, v) of channel ch. */
static uint32_t column(const struct dims *d, int part, uint32_t ch)
{
	uint32_t dim = d->width / d->heads;
	return ch / dim * 3 * dim + (uint32_t)part * dim + ch % dim;
}

/* Returns the short filter's output at token t for a column of in[n, 3 width]. */
static double short_filter(const struct dims *d, const float *weight, const float *bias,
                           const float *in, uint32_t t, uint32_t col)
{
	double sum = bias[col];
	for (uint32_t i = 0; i < d->taps; i++) {
		int64_t from = (int64_t)t + i - d->taps + 1;
		if (from >= 0)
			sum += (double)weight[col * d->taps + i] * in[from * 3 * d->width + col];
	}
	return sum;
}

/* Computes the layer with the filter h[n, width] and the skip D; w: the weights that both kinds
 * have. */
static void layer(const struct mixer_case *c, uint32_t n, const float *x, const float *const *w,
                  const double *h, const float *skip, float *out)
{
	const struct dims d = dims_of(c);
	const uint32_t width = d.width;
	float *in = calloc((size_t)n * 3 * width, 4), *y = calloc((size_t)n * width, 4);
	double *z = calloc(n, sizeof *z);

	if (!in || !y || !z)
		abort();
	mixer_product(n, 3 * width, width, w[0], d.bias ? w[4] : NULL, x, in);
	for (uint32_t ch = 0; ch < width; ch++)
		for (uint32_t t = 0; t < n; t++) {
			z[t] = short_filter(&d, w[2], w[3], in, t, column(&d, 1, ch)) *
			       short_filter(&d, w[2], w[3], in, t, column(&d, 2, ch));
			double sum = skip[ch] * z[t];
			for (uint32_t s = 0; s <= t; s++)
				sum += h[(size_t)(t - s) * width + ch] * z[s];
			y[(size_t)t * width + ch] =
				(float)(sum * short_filter(&d, w[2], w[3], in, t, column(&d, 0, ch)));
		}
	mixer_product(n, width, width, w[1], d.bias ? w[5] : NULL, y, out);
	free(in);
	free(y);
	free(z);
}

/* to[rows] = W x + b */
static void affine(uint32_t rows, uint32_t cols, const float *w, const float *b, const double *x,
                   double *to)
{
	for (uint32_t r = 0; r < rows; r++) {
		to[r] = b ? b[r] : 0;
		for (uint32_t c = 0; c < cols; c++)
			to[r] += (double)w[(size_t)r * cols + c] * x[c];
	}
}

static void implicit_reference(const struct mixer_case *c, uint32_t n, const float *x,
                               const float *const *w, float *out)
{
	const struct mx_params p = params_of(c);
	const uint32_t width = c->width, order = (uint32_t)mx_param_int(&p, "filter_order", 0),
				   emb = (uint32_t)mx_param_int(&p, "emb_dim", 0),
				   inner = (uint32_t)mx_param_int(&p, "inner_mlps", 2);
	const double last = (double)mx_param_int(&p, "filter_len", 0) - 1,
				 shift = mx_param_float(&p, "shift", 0.05);
	const float *const *of_filter = w + 6;
	const float *skip = of_filter[0], *z = of_filter[1], *t = of_filter[2], *freq = of_filter[3];
	const float *deltas = mx_param_int(&p, "modulate", 1) ? of_filter[4] : NULL;
	const float *const *linears = of_filter + (deltas ? 5 : 4);
	double *h = calloc((size_t)n * width, sizeof *h);
	double a[256], b[256];

	if (!h || order > 256 || emb > 256)
		abort();
	for (uint32_t row = 0; row < n; row++) {
		for (uint32_t i = 0; i < emb; i++)
			a[i] = z[row * emb + i];
		for (uint32_t l = 0; l <= inner; l++) {
			affine(order, l ? order : emb, linears[2 * l], linears[2 * l + 1], a, b);
			for (uint32_t i = 0; i < order; i++)
				a[i] = sin(freq[i] * b[i]);
		}
		affine(width, order, linears[2 * inner + 2], NULL, a, h + (size_t)row * width);
		for (uint32_t ch = 0; deltas && ch < width; ch++)
			h[(size_t)row * width + ch] *=
				exp(-(t ? (double)t[row] : row / last) * fabs((double)deltas[ch])) + shift;
	}
	layer(c, n, x, w, h, skip, out);
	free(h);
}

static void modal_reference(const struct mixer_case *c, uint32_t n, const float *x,
                            const float *const *w, float *out)
{
	const struct mx_params p = params_of(c);
	const uint32_t width = c->width, size = (uint32_t)mx_param_int(&p, "state_size", 0);
	const float *const *of_filter = w + 6;
	const float *poles = of_filter[1], *residues = of_filter[2];
	double *h = calloc((size_t)n * width, sizeof *h);

	if (!h)
		abort();
	for (uint32_t ch = 0; ch < width; ch++)
		for (uint32_t s = 0; s < size; s++) {
			const float *pole = poles + (ch * size + s) * 2,
						*residue = residues + (ch * size + s) * 2;
			double complex term = residue[0] + residue[1] * I;
			for (uint32_t t = 0; t < n; t++, term *= pole[0] + pole[1] * I)
				h[(size_t)t * width + ch] += creal(term);
		}
	layer(c, n, x, w, h, of_filter[0], out);
	free(h);
}

/* A network whose sines go through a few periods, and lags that decay at all rates. */
static const struct mixer_weight smooth[] = {{"short_filter.weight", 0, 0.4f},
                                             {"filter_fn.pos_emb.z", 0, 1},
                                             {"filter_fn.pos_emb.t", 0.5f, 0.25f},
                                             {"filter_fn.modulation.deltas", 0, 4},
                                             {"filter_fn.implicit_filter.0.weight", 0, 0.5f},
                                             {"filter_fn.implicit_filter.2.weight", 0, 0.2f},
                                             {"filter_fn.implicit_filter.4.weight", 0, 0.2f},
                                             {"filter_fn.implicit_filter.6.weight", 0, 0.2f},
                                             {NULL, 0, 0}};
/* One sine, and no biases. */
static const struct mixer_weight plain[] = {{"short_filter.weight", 0, 0.4f},
                                            {"filter_fn.pos_emb.z", 0, 1},
                                            {"filter_fn.pos_emb.t", 0.5f, 0.25f},
                                            {"filter_fn.modulation.deltas", 0, 4},
                                            {"filter_fn.implicit_filter.0.weight", 0, 0.5f},
                                            {"filter_fn.implicit_filter.2.weight", 0, 0.2f},
                                            ABSENT("in_proj.bias"),
                                            ABSENT("out_proj.bias"),
                                            {NULL, 0, 0}};
/* Arguments of sines in the hundreds; equal steps of t. */
static const struct mixer_weight wild[] = {{"short_filter.weight", 0, 0.4f},
                                           {"filter_fn.pos_emb.z", 0, 1},
                                           ABSENT("filter_fn.pos_emb.t"),
                                           {"filter_fn.modulation.deltas", 0, 4},
                                           {"filter_fn.implicit_filter.1.freq", 14, 2},
                                           {"filter_fn.implicit_filter.0.weight", 0, 2},
                                           {"filter_fn.implicit_filter.2.weight", 0, 1},
                                           {"filter_fn.implicit_filter.4.weight", 0, 1},
                                           {"filter_fn.implicit_filter.6.weight", 0, 0.2f},
                                           {"filter_fn.implicit_filter.8.weight", 0, 0.2f},
                                           {"filter_fn.implicit_filter.10.weight", 0, 0.2f},
                                           {NULL, 0, 0}};
/* Poles within the unit circle: half gone in 5 tokens, or in 30. */
static const struct mixer_weight quick[] = {
	{"filter.short_filter_weight", 0, 0.4f}, {"filter.poles", 0.62f, 0.03f}, {NULL, 0, 0}};
static const struct mixer_weight slow[] = {
	{"filter.short_filter_weight", 0, 0.4f}, {"filter.poles", 0.69f, 0.004f}, {NULL, 0, 0}};
static const struct mixer_weight slow_plain[] = {{"filter.short_filter_weight", 0, 0.4f},
                                                 {"filter.poles", 0.69f, 0.004f},
                                                 ABSENT("projections.bias"),
                                                 ABSENT("out_filter_dense.bias"),
                                                 {NULL, 0, 0}};

#define OFF(key)                                                                                   \
	{                                                                                              \
		.name = key, .type = MX_PARAM_BOOL                                                         \
	}
#define IMPLICIT(label, width, tokens, type, tolerance, weights, len, emb, order, ...)             \
	{                                                                                              \
		label, width, tokens, type, MX_F32,                                                        \
			PARAMS(INT("filter_len", len), INT("emb_dim", emb), INT("filter_order", order),        \
		           __VA_ARGS__),                                                                   \
			weights, tolerance, implicit_reference, 0                                              \
	}
#define MODAL(label, width, tokens, type, tolerance, weights, ...)                                 \
	{                                                                                              \
		label, width, tokens, type, MX_F32, PARAMS(STRING("filter", "modal"), __VA_ARGS__),        \
			weights, tolerance, modal_reference, 0                                                 \
	}

static const struct mixer_case implicit_cases[] = {
	IMPLICIT("width 64, f32", 64, 600, MX_F32, EXACT, smooth, 600, 5, 16, INT("inner_mlps", 2)),
	IMPLICIT("width 48, bf16", 48, 300, MX_BF16, ROUNDED, smooth, 1024, 5, 16, FLOAT("shift", 0)),
	IMPLICIT("width 40, wild, f32", 40, 700, MX_F32, EXACT, wild, 700, 33, 64, FLOAT("shift", 0.1)),
	IMPLICIT("width 7, one sine, eight taps, f32", 7, 300, MX_F32, EXACT, plain, 301, 1, 3,
             INT("inner_mlps", 0), INT("short_filter", 8), OFF("bias")),
	IMPLICIT("width 33, no decay, one tap, f32", 33, 300, MX_F32, EXACT, wild, 65536, 3, 8,
             INT("inner_mlps", 4), INT("short_filter", 1), OFF("modulate")),
};

static const struct mixer_case modal_cases[] = {
	MODAL("modal, width 64, f32", 64, 300, MX_F32, EXACT, quick, INT("state_size", 2)),
	MODAL("modal, 4 heads, bf16", 64, 300, MX_BF16, ROUNDED, slow, INT("state_size", 8),
          INT("heads", 4)),
	MODAL("modal, odd sizes, f32", 45, 600, MX_F32, EXACT, slow_plain, INT("state_size", 3),
          INT("heads", 5), OFF("bias"), INT("short_filter", 4)),
};

static const struct mixer_wrong implicit_wrongs[] = {
	{INT("order", 3), "unknown parameter 'order'"},
	{INT("state_size", 2), "unknown parameter 'state_size'"},
	{STRING("filter", "explicit"), "filter must be"},
	{INT("filter", 1), "filter must be"},
	{INT("filter_len", 63), "a context of 600 tokens, but a filter of 63"},
	{INT("filter_len", 1 << 25), "filter_len"},
	{FLOAT("filter_len", 64.5), "filter_len must be a whole number"},
	{INT("emb_dim", 0), "emb_dim"},
	{INT("emb_dim", 100000), "emb_dim"},
	{INT("filter_order", 0), "filter_order"},
	{INT("filter_order", 100000), "filter_order"},
	{INT("inner_mlps", -1), "inner_mlps"},
	{INT("inner_mlps", 9), "inner_mlps"},
	{INT("short_filter", 0), "short_filter"},
	{INT("short_filter", 9), "short_filter"},
	{STRING("shift", "none"), "shift must be a number"},
	{INT("modulate", 1), "modulate must be true or false"},
	{STRING("bias", "no"), "bias must be true or false"},
};

static const struct mixer_wrong modal_wrongs[] = {
	{INT("filter_len", 64), "unknown parameter 'filter_len'"},
	{STRING("filter", "implicit"), "unknown parameter 'state_size'"},
	{INT("state_size", 0), "state_size"},
	{INT("state_size", 65), "state_size"},
	{INT("heads", 0), "heads"},
	{INT("heads", 3), "heads 3 does not divide the width 64"},
	{INT("heads", 128), "heads"},
	{BOOL("short_filter"), "short_filter must be a whole number"},
};

const struct mixer_set mixer_set_hyena = {"hyena", SET(implicit_cases), SET(implicit_wrongs), 16};
const struct mixer_set mixer_set_hyena_modal = {"hyena", SET(modal_cases), SET(modal_wrongs), 0};
