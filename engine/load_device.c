/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the device of a model. */
#include <stdio.h>

#include "device/open.h"
#include "engine/load_parts.h"
#include "engine/resolver.h"

static const char *device_name(const struct mx_engine_config *config)
{
	return config->device ? config->device : "cpu";
}

/* True if weights may be quantised on a device with memory of its own. */
static bool is_quantised(const struct mx_plan *plan, const struct mx_checkpoint *checkpoint,
                         const struct mx_engine_config *config)
{
	bool found = config->weight_bits || plan->quant.method != MX_PLAN_UNQUANTISED;
	for (size_t i = 0; i < mx_checkpoint_count(checkpoint) && !found; i++)
		found = mx_checkpoint_at(checkpoint, i)->dtype == MX_QUANT;
	return found;
}

static void fill_options(const struct mx_plan *plan, const struct mx_checkpoint *checkpoint,
                         const struct mx_engine_config *config, enum mx_dtype act, uint32_t width,
                         struct mx_device_options *out)
{
	const struct mx_device_info cuda = {.own_memory = true, .records = true};
	struct mx_step_limits l;
	mx_step_limits_of(plan, config, &cuda, &l);
	*out = (struct mx_device_options){
		.threads = config->threads,
		.max_rows = config->step_tokens,
		.max_width = width,
		.beside = config->beside,
		.cuda = {.act_dtype = act,
	             .max_samples = l.draws,
	             .vocab = plan->vocab,
	             .deterministic = config->deterministic,
	             .quantised = is_quantised(plan, checkpoint, config)},
	};
}

mx_status mx_load_own_bytes(const struct mx_model *m, const struct mx_engine_config *config,
                            const struct mx_device *device, size_t *out, struct mx_err *err)
{
	struct mx_device_options options;
	fill_options(m->plan, m->checkpoint, config, device->info.act_dtype, m->max_cols, &options);
	options.threads = device->info.threads;
	return mx_device_own_bytes(device_name(config), &options, out, err);
}

/* Returns the columns of the widest matrix of the checkpoint, used or not. */
static uint32_t widest(const struct mx_checkpoint *checkpoint)
{
	uint64_t most = 1;
	for (size_t i = 0; i < mx_checkpoint_count(checkpoint); i++) {
		const struct mx_tensor *t = mx_checkpoint_at(checkpoint, i);
		if (t->ndim == 2 && t->shape[1] > most)
			most = t->shape[1];
	}
	return most < UINT32_MAX ? (uint32_t)most : UINT32_MAX;
}

mx_status mx_load_open_device(const struct mx_plan *plan, const struct mx_checkpoint *checkpoint,
                              const struct mx_engine_config *config, struct mx_device **out,
                              struct mx_err *err)
{
	const struct mx_tensor *embed;
	struct mx_device_options options;
	enum mx_device_kind kind;
	const char *root;
	mx_status st = mx_resolve_embed(plan, checkpoint, &root, &embed, err);
	if (st != MX_OK)
		return st;
	if (!mx_device_parse(device_name(config), &kind, NULL))
		return mx_fail_at(err, MX_E_INVALID, "device", "no device \"%.60s\"", config->device);
	fill_options(plan, checkpoint, config, embed->dtype == MX_F32 ? MX_F32 : MX_BF16,
	             widest(checkpoint), &options);
	if (kind == MX_DEVICE_CPU) {
		options.max_rows = 1;
		options.max_width = 64;
	}
	st = mx_device_open(device_name(config), &options, out, err);
	if (st != MX_OK && err && !err->where[0])
		snprintf(err->where, sizeof err->where, "device");
	return st;
}

mx_status mx_load_reopen_cpu(const struct mx_model *m, const struct mx_engine_config *config,
                             struct mx_device **device, struct mx_err *err)
{
	struct mx_device_options options;
	fill_options(m->plan, m->checkpoint, config, MX_F32, m->max_cols, &options);
	options.threads = (*device)->info.threads;
	(*device)->ops->destroy(*device);
	*device = NULL;
	return mx_device_open(device_name(config), &options, device, err);
}
