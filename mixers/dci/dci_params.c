/* SPDX-License-Identifier: Apache-2.0 */
/* dci's own parameters, beside those of attention. */
#include "mixers/dci/dci.h"

#include <math.h>

static const char *const known[] = {ATTN_PARAM_NAMES, "top_k", "visits",     "alpha", "first",
                                    "recent",         "seed",  "directions", "rest"};

/* Reads a whole number in 1 .. max, or "auto". */
static mx_status read_count(const struct mx_params *in, const char *name, uint32_t max,
                            uint32_t *out, struct mx_err *err)
{
	const struct mx_param *p = mx_param_find(in, name);
	*out = DCI_AUTO;
	if (!p || (p->type == MX_PARAM_STRING && !strcmp(p->s, "auto")))
		return MX_OK;
	if (p->type == MX_PARAM_STRING)
		return mx_mixer_fail(err, MX_E_INVALID, "dci: %s must be a whole number or auto", name);
	return mx_param_read_u32(in, "dci", name, DCI_AUTO, 1, max, out, err);
}

/* Refuses what attention may be and dci is not. */
static mx_status check_heads(const struct attn_params *p, struct mx_err *err)
{
	if (p->window)
		return mx_mixer_fail(err, MX_E_UNSUPPORTED,
		                     "dci: the layer has a sliding window of %u tokens: there is nothing "
		                     "to search for",
		                     p->window);
	if (p->skip_first)
		return mx_mixer_fail(err, MX_E_UNSUPPORTED, "dci: skip_first is attention's");
	if (p->shared_kv)
		return mx_mixer_fail(err, MX_E_UNSUPPORTED,
		                     "dci: the layer reads the keys of an earlier one");
	if (p->dtype != MX_F32 && p->dtype != MX_BF16)
		return mx_mixer_fail(err, MX_E_UNSUPPORTED, "dci: keys and values in %s",
		                     mx_dtype_name(p->dtype));
	return MX_OK;
}

mx_status dci_params_read(const struct mx_layer_desc *layer, struct dci_params *out,
                          struct mx_err *err)
{
	const struct mx_params *in = &layer->params;
	struct dci_params p = {0};
	uint32_t seed = 0, bits = 0;

	mx_status st = mx_params_known(in, known, sizeof known / sizeof *known, "dci", err);
	if (st == MX_OK)
		st = attn_params_read(layer, &p.heads, err);
	if (st == MX_OK)
		st = check_heads(&p.heads, err);
	if (st != MX_OK)
		return st;
	p.rotated = 16;
	while (p.rotated < p.heads.head_dim)
		p.rotated *= 2;
	uint32_t most = DCI_MAX_DIRECTIONS, usual = p.rotated < 128 ? 128 : p.rotated;
	st = read_count(in, "top_k", DCI_MAX_VISITS, &p.top_k, err);
	if (st == MX_OK)
		st = read_count(in, "visits", DCI_MAX_VISITS, &p.visits, err);
	if (st == MX_OK)
		st = mx_param_read_number(in, "dci", "alpha", 0.01, 0, 1, &p.alpha, err);
	if (st == MX_OK)
		st = mx_param_read_u32(in, "dci", "first", DCI_RUN, 0, DCI_MAX_EXACT, &p.first, err);
	if (st == MX_OK)
		st = mx_param_read_u32(in, "dci", "recent", 256, 1, DCI_MAX_EXACT, &p.recent, err);
	if (st == MX_OK)
		st = mx_param_read_u32(in, "dci", "directions", usual, p.rotated, most, &bits, err);
	if (st == MX_OK)
		st = mx_param_read_bool(in, "dci", "rest", true, &p.rest, err);
	if (st == MX_OK)
		st = mx_param_read_u32(in, "dci", "seed", 0, 0, UINT32_MAX, &seed, err);
	if (st != MX_OK)
		return st;
	if (bits % p.rotated)
		return mx_mixer_fail(err, MX_E_RANGE, "dci: directions must be a multiple of %u, not %u",
		                     p.rotated, bits);
	if (p.top_k != DCI_AUTO && p.visits != DCI_AUTO && p.top_k > p.visits)
		return mx_mixer_fail(err, MX_E_RANGE, "dci: top_k %u is above visits %u", p.top_k,
		                     p.visits);
	p.directions = bits;
	p.seed = seed;
	p.first = (p.first + DCI_RUN - 1) / DCI_RUN * DCI_RUN;
	*out = p;
	return MX_OK;
}

uint32_t dci_top_k(const struct dci_params *p, uint32_t n)
{
	uint32_t k = p->top_k;
	if (k == DCI_AUTO) {
		double share = floor(p->alpha * n);
		k = share > 50 ? 50 : share < 30 ? 30 : (uint32_t)share;
	}
	return k < n ? k : n;
}

uint32_t dci_visits(const struct dci_params *p, uint32_t n)
{
	uint32_t k = dci_top_k(p, n), v = p->visits;
	if (v == DCI_AUTO) {
		v = n / 32;
		v = v < 128 ? 128 : v > 256 ? 256 : v;
	}
	v = v < k ? k : v;
	v = v < DCI_MAX_VISITS ? v : DCI_MAX_VISITS;
	return v < n ? v : n;
}

void dci_layout_of(const struct dci_params *p, struct dci_layout *out)
{
	uint32_t dim = (p->heads.head_dim + 31) / 32 * 32;
	struct dci_layout l = {.dim = dim, .dtype = p->heads.dtype};
	l.row = dim * mx_dtype_size(l.dtype);
	l.factors = (size_t)p->directions / 8 * DCI_RUN;
	l.centre = l.factors + DCI_RUN * sizeof(float);
	l.spread = l.centre + 2 * l.row;
	l.index = p->rest ? l.spread + DCI_LINE : l.centre + l.row;
	/* a multiple of DCI_RUN, as are its parts */
	l.token = l.index / DCI_RUN + 2 * l.row;
	*out = l;
}
