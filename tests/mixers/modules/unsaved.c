/* SPDX-License-Identifier: Apache-2.0 */
/* A mixer whose slots cannot be saved: that of tests/out-of-tree with less to offer, and the table
 * of one that was built when it was shorter. */
#define mx_mixer_module_v1 ema_module
#include "tests/out-of-tree/ema/ema.c"
#undef mx_mixer_module_v1

mx_mixer_module_f mx_mixer_module_v1;

static void not_in_the_table(const struct mx_layer_desc *layer, uint32_t n, uint32_t max_len,
                             uint32_t *out_first, uint32_t *out_end)
{
	(void)layer, (void)n, (void)max_len, (void)out_first, (void)out_end;
	abort();
}

const struct mx_mixer_ops *mx_mixer_module_v1(void)
{
	static struct mx_mixer_ops ops;
	ops = *ema_module();
	ops.name = "unsaved";
	ops.struct_size = MX_MIXER_OPS_MIN;
	ops.extent = not_in_the_table;
	ops.caps &= ~(uint32_t)MX_MIXER_SNAPSHOT;
	ops.save = mx_mixer_save_unsupported;
	ops.load = mx_mixer_load_unsupported;
	return &ops;
}
