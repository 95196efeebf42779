/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/files_check.h"

#include <string.h>

#include "base/log.h"
#include "daemon/cluster.h"
#include "daemon/http/tls.h"
#include "daemon/keys_file.h"
#include "daemon/kv_events/publisher.h"
#include "daemon/serve/tls_check.h"

static bool is_name(const struct mx_config_model *m, const char *name)
{
	bool is = !strcmp(m->name, name);
	for (size_t i = 0; i < m->aliases.n; i++)
		is = is || !strcmp(m->aliases.items[i], name);
	return is;
}

static void warn_of_stray(void *config, const char *principal, const char *model)
{
	const struct mx_config *c = config;
	for (size_t i = 0; i < c->n_models; i++)
		if (is_name(&c->models[i], model))
			return;
	mx_warning("mixd", "%s: %s: models: there is no model '%s'", c->keys, principal, model);
}

static mx_status check_keys(const struct mx_config *c, struct mx_err *err)
{
	struct mx_keys *keys;
	if (mx_keys_create(&keys))
		return mx_fail_at(err, MX_E_NOMEM, c->keys, "out of memory");
	mx_status st = mx_keys_file_load(c->keys, keys, err);
	if (st == MX_OK)
		mx_keys_visit_models(keys, warn_of_stray, (void *)(uintptr_t)c);
	mx_keys_destroy(keys);
	return st;
}

static mx_status check_tls(const struct mx_config_tls *c, const char *who, struct mx_err *err)
{
	const struct mx_tls_paths paths = {c->cert, c->key, c->client_ca};
	return mx_tls_check(&paths, who, err);
}

/* Fails if TLS or a module is asked for that was not built. */
static mx_status check_built(const struct mx_config *c, struct mx_err *err)
{
	const struct mx_tls_paths paths = {c->http.tls.cert, c->http.tls.key, c->http.tls.client_ca};
	const struct mx_kv_publisher_table *publisher;
	struct mx_tls *tls = NULL;
	mx_status st = MX_OK;
	if (paths.cert)
		st = mx_tls_create(&paths, (int)c->http.tls.min_version, &tls, err);
	mx_tls_destroy(tls);
	if (st == MX_OK && c->kv_events.endpoint)
		st = mx_kv_publisher_load(&publisher, err);
	return st;
}

mx_status mx_files_check(const struct mx_config *c, struct mx_err *err)
{
	mx_status st = c->keys ? check_keys(c, err) : MX_OK;
	if (st == MX_OK)
		st = check_tls(&c->http.tls, "http", err);
	if (st == MX_OK && c->grpc.listen.n)
		st = check_tls(&c->grpc.tls, "grpc", err);
	if (st == MX_OK)
		st = mx_cluster_check(c, err);
	if (st == MX_OK)
		st = check_built(c, err);
	return st;
}
