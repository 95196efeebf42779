/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/weights.h"

#include "engine/finite.h"

/* Returns true if a tensor has values that are not finite, and prints where. */
static bool is_bad(const char *model, const struct mx_tensor *t, FILE *out)
{
	size_t index, bad = mx_tensor_not_finite(t, 0, mx_tensor_count(t), &index);
	if (bad)
		fprintf(out, "%s: %s: tensor %s: %zu of %zu values not finite, the first at element %zu\n",
		        model, t->file, t->name, bad, mx_tensor_count(t), index);
	return bad;
}

/* Returns the number of tensors of a checkpoint with values that are not finite. */
static size_t check(const char *model, const struct mx_checkpoint *c, FILE *out)
{
	size_t n_bad = 0;
	for (size_t i = 0; i < mx_checkpoint_count(c); i++) {
		const struct mx_tensor *t = mx_checkpoint_at(c, i);
		n_bad += is_bad(model, t, out);
		if (t->values)
			n_bad += is_bad(model, t->values, out);
	}
	return n_bad;
}

mx_status mx_weights_check(const struct mx_config *config, FILE *out, struct mx_err *err)
{
	size_t n_bad = 0;
	for (size_t i = 0; i < config->n_models; i++) {
		const struct mx_config_model *m = &config->models[i];
		struct mx_checkpoint *c = NULL;
		mx_status st = mx_checkpoint_open(m->path, &c, err);
		if (st != MX_OK)
			return st;
		size_t bad = check(m->name, c, out);
		if (!bad)
			fprintf(out, "%s: the values of all %zu tensors are finite\n", m->name,
			        mx_checkpoint_count(c));
		n_bad += bad;
		mx_checkpoint_close(c);
	}
	if (!n_bad)
		return MX_OK;
	return mx_fail(err, MX_E_FORMAT, "%zu tensor%s values that are not finite", n_bad,
	               n_bad == 1 ? " holds" : "s hold");
}
