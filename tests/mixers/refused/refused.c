/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Modules that the registry must refuse; each is this file with one of the macros:
 *   VERSION_1     exports the symbol of version 1 of the contract
 *   WRONG_ABI     has a table of another version
 *   SMALL_TABLE   was built with a shorter table
 *   EMPTY_ENTRY   leaves one entry empty
 *   NO_DEVICE     runs on no kind of device
 *   NO_SYMBOL     is no mixer module
 */
#include "mixers/mixer.h"

static mx_status probe(const struct mx_layer_desc *layer, const struct mx_device *device,
                       struct mx_err *err)
{
	(void)layer, (void)device;
	return mx_mixer_fail(err, MX_E_UNSUPPORTED, "refused");
}

static mx_status weights(const struct mx_layer_desc *layer, struct mx_weight_spec *specs,
                         size_t *out_n)
{
	(void)layer, (void)specs;
	*out_n = 0;
	return MX_OK;
}

static mx_status state(const struct mx_layer_desc *layer, const struct mx_device *device,
                       struct mx_state_spec *out)
{
	(void)layer, (void)device, (void)out;
	return MX_OK;
}

static mx_status create(const struct mx_mixer_init *init, struct mx_mixer **out, struct mx_err *err)
{
	(void)init, (void)out;
	return mx_mixer_fail(err, MX_E_UNSUPPORTED, "refused");
}

static void destroy(struct mx_mixer *m)
{
	(void)m;
}

static mx_status forward(struct mx_mixer *m, const struct mx_step *step, const void *x, void *y)
{
	(void)m, (void)step, (void)x, (void)y;
	return MX_E_UNSUPPORTED;
}

static void describe(const struct mx_mixer *m, char *text, size_t cap)
{
	(void)m;
	snprintf(text, cap, "refused");
}

static const struct mx_mixer_ops ops = {
	.abi = MX_MIXER_ABI,
	.struct_size = sizeof(struct mx_mixer_ops),
	.name = "refused",
	.summary = "a module that must not be loaded",
	.caps = MX_MIXER_CPU,
	.probe = probe,
	.weights = weights,
	.state = state,
	.extent = mx_mixer_extent_all,
	.create = create,
	.prepare = mx_mixer_prepare_nothing,
	.destroy = destroy,
	.forward = forward,
	.commit = mx_mixer_commit_nothing,
	.settle = mx_mixer_settle_nothing,
	.fork = mx_mixer_fork_unsupported,
	.save = mx_mixer_save_unsupported,
	.load = mx_mixer_load_unsupported,
	.resume = mx_mixer_resume_nothing,
	.describe = describe,
};

#if defined(VERSION_1)
#define MODULE mx_mixer_module_v1
#elif defined(NO_SYMBOL)
#define MODULE mx_no_module
#else
#define MODULE mx_mixer_module_v2
#endif

mx_mixer_module_f MODULE;

const struct mx_mixer_ops *MODULE(void)
{
	static struct mx_mixer_ops table;
	table = ops;
#if defined(WRONG_ABI)
	table.abi = MX_MIXER_ABI + 1;
#elif defined(SMALL_TABLE)
	table.struct_size -= sizeof(table.describe);
#elif defined(EMPTY_ENTRY)
	table.resume = NULL;
#elif defined(NO_DEVICE)
	table.caps = MX_MIXER_DRAFT;
#endif
	return &table;
}
