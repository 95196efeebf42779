/* SPDX-License-Identifier: Apache-2.0 */
/* See reload.h. */
#include "daemon/reload.h"

#include <string.h>

#include "base/log.h"
#include "daemon/http/access.h"

void mx_reload_log(const struct mx_config *c)
{
	mx_log_set_level((enum mx_log_level)c->log.level);
	mx_log_set_format((enum mx_log_format)c->log.format);
	mx_access_set((enum mx_access)c->log.access);
}

static void reload_aliases(const struct mx_config *fresh, struct mx_service *service)
{
	for (size_t i = 0; i < service->n_models; i++) {
		struct mx_served *model = &service->models[i];
		const struct mx_config_model *found = NULL;
		for (size_t j = 0; j < fresh->n_models; j++)
			if (!strcmp(fresh->models[j].name, model->name))
				found = &fresh->models[j];
		if (!found)
			mx_warning("mixd", "model %s is missing in %s: it is served until a restart",
			           model->name, fresh->file);
		else if (mx_service_set_aliases(service, model, found->aliases.items, found->aliases.n))
			mx_error("mixd", "aliases of %s not changed: out of memory", model->name);
	}
}

void mx_reload(const struct mx_config *running, struct mx_service *service)
{
	struct mx_config *fresh = NULL;
	struct mx_err err = {0};
	if (mx_config_load(running->file, &fresh, &err)) {
		mx_error("mixd", "%s%s%s", err.where, err.where[0] ? ": " : "", err.text);
		mx_error("mixd", "configuration not reloaded: the old one stays in force");
		return;
	}
	mx_reload_log(fresh);
	reload_aliases(fresh, service);
	struct mx_buf waiting = {.limit = 1500};
	mx_config_compare(running, fresh, &waiting);
	if (waiting.len)
		mx_warning("mixd", "reloaded log settings and aliases from %s; for a restart wait: %s%s",
		           fresh->file, mx_buf_str(&waiting), waiting.failed ? ", ..." : "");
	else
		mx_info("mixd", "reloaded log settings and aliases from %s", fresh->file);
	mx_buf_free(&waiting);
	mx_config_free(fresh);
}
