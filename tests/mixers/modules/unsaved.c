/* SPDX-License-Identifier: Apache-2.0 */
/* The moving average without save and load: a mixer whose slots cannot be saved. */
#define mx_mixer_module_v2 ema_module
#include "tests/mixers/modules/ema.c"
#undef mx_mixer_module_v2

mx_mixer_module_f mx_mixer_module_v2;

const struct mx_mixer_ops *mx_mixer_module_v2(void)
{
	static struct mx_mixer_ops ops;
	ops = *ema_module();
	ops.name = "unsaved";
	ops.caps &= ~(uint32_t)MX_MIXER_SNAPSHOT;
	ops.save = mx_mixer_save_unsupported;
	ops.load = mx_mixer_load_unsupported;
	return &ops;
}
