/* SPDX-License-Identifier: Apache-2.0 */
/* A mixer whose slots cannot be saved: that of tests/out-of-tree with less to offer. */
#define mx_mixer_module_v1 ema_module
#include "tests/out-of-tree/ema/ema.c"
#undef mx_mixer_module_v1

mx_mixer_module_f mx_mixer_module_v1;

const struct mx_mixer_ops *mx_mixer_module_v1(void)
{
	static struct mx_mixer_ops ops;
	ops = *ema_module();
	ops.name = "unsaved";
	ops.caps &= ~(uint32_t)MX_MIXER_SNAPSHOT;
	ops.save = mx_mixer_save_unsupported;
	ops.load = mx_mixer_load_unsupported;
	return &ops;
}
