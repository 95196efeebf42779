/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention on CPUs, whose steps last as long as a test wants: in place of the real module, whose
 * table this one hands on. While the file that MIXD_TEST_PACE names exists, each step, and each
 * model's loading, takes the milliseconds that it holds, so that a test may look at a request that
 * runs for as long as the look takes.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "mixers/mixer.h"

static const struct mx_mixer_ops *real_ops;
static struct mx_mixer_ops ops;

static mx_status create(const struct mx_mixer_init *init, struct mx_mixer **out, struct mx_err *err)
{
	mx_status st = real_ops->create(init, out, err);
	if (st == MX_OK)
		((struct mx_mixer_base *)*out)->ops = &ops;
	return st;
}

static void pace(void)
{
	const char *path = getenv("MIXD_TEST_PACE");
	FILE *f = path ? fopen(path, "r") : NULL;
	long ms;
	if (f && fscanf(f, "%ld", &ms) == 1)
		nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
	if (f)
		fclose(f);
}

/* Once a model. */
static mx_status prepare(struct mx_mixer *const *layers, uint32_t n_layers, struct mx_err *err)
{
	pace();
	return real_ops->prepare(layers, n_layers, err);
}

/* Once a step, for all layers. */
static mx_status commit(struct mx_mixer *const *layers, uint32_t n_layers,
                        const struct mx_step *step, const struct mx_kept *kept)
{
	pace();
	return real_ops->commit(layers, n_layers, step, kept);
}

mx_mixer_module_f mx_mixer_module_v2;

const struct mx_mixer_ops *mx_mixer_module_v2(void)
{
	const char *build = getenv("builddir");
	char path[4096];
	snprintf(path, sizeof path, "%s/mixers/.libs/attention-cpu.so", build ? build : ".");
	void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL), *symbol;
	if (!handle || !(symbol = dlsym(handle, MX_MIXER_MODULE_SYMBOL)))
		return NULL;
	mx_mixer_module_f *module;
	memcpy(&module, &symbol, sizeof module);
	real_ops = module();
	ops = *real_ops;
	ops.create = create;
	ops.prepare = prepare;
	ops.commit = commit;
	return &ops;
}
