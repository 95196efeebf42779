/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/open_model.h"

#include "base/paths.h"
#include "device/open.h"

static mx_status load_modules(struct mx_registry *r, struct mx_err *err)
{
	const char *dirs = mx_paths_of("MIXD_MODULE_PATH", MIXD_MODULE_DIR);
	char dir[4096];
	mx_status st = MX_OK;
	while (st == MX_OK && mx_paths_next(&dirs, dir, sizeof dir))
		st = mx_registry_load_dir(r, dir, err);
	return st;
}

mx_status opened_model_open(const char *dir, struct opened_model *out, struct mx_err *err)
{
	struct opened_model m = {0};
	mx_status st = mx_registry_create(&m.mixers);
	if (st == MX_OK)
		st = load_modules(m.mixers, err);
	if (st == MX_OK)
		st = mx_plan_load(dir, &m.plan, err);
	if (st == MX_OK)
		st = mx_checkpoint_open(dir, &m.checkpoint, err);
	if (st != MX_OK) {
		opened_model_close(&m);
		return st;
	}
	*out = m;
	return MX_OK;
}

mx_status opened_model_load(struct opened_model *m, const struct mx_engine_config *config,
                            struct mx_err *err)
{
	enum mx_device_kind kind;
	mx_status st = MX_OK;
	if (config->device && mx_device_parse(config->device, &kind, NULL) && kind == MX_DEVICE_CUDA)
		st = mx_registry_load_cuda(m->mixers, err);
	if (st != MX_OK)
		return st;
	return mx_engine_load(m->plan, m->checkpoint, m->mixers, config, NULL, NULL, &m->engine, err);
}

void opened_model_close(struct opened_model *m)
{
	if (m->engine)
		m->engine->ops->destroy(m->engine);
	mx_checkpoint_close(m->checkpoint);
	mx_plan_destroy(m->plan);
	mx_registry_destroy(m->mixers);
	*m = (struct opened_model){0};
}
