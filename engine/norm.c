/* SPDX-License-Identifier: Apache-2.0 */
/* Norms of hidden states. */
#include "engine/model_engine.h"

mx_status mx_norm_run(struct mx_model_engine *e, const struct mx_model_norm *norm, void *x,
                      const void *r, size_t rows, void *y)
{
	const struct mx_plan *p = e->model.plan;
	struct mx_device *d = e->device;
	if (p->norm != MX_NORM_RMS)
		return d->ops->layernorm(d, x, r, norm->weight, norm->bias, p->norm_eps, rows, p->width, y);
	if (r)
		return d->ops->add_rmsnorm(d, x, r, norm->weight, p->norm_eps, rows, p->width, y);
	return d->ops->rmsnorm(d, x, norm->weight, p->norm_eps, rows, p->width, y);
}
