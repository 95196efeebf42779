/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/host.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/paths.h"
#include "daemon/hosted.h"
#include "daemon/request_plan.h"
#include "device/open.h"

/* A model of the host. */
struct entry {
	struct mx_hosted hosted;
	struct mx_host *host;
	bool fresh;    /* it is not listed yet */
	uint64_t gpus; /* of mx_config_gpus */
	pthread_t thread;
	bool thread_started;
	struct entry *next; /* of the retired ones */
};

struct mx_host {
	struct mx_service *service;
	struct mx_registry *mixers;
	struct mx_config_scheduler scheduler; /* of models to be loaded */
	struct mx_config_kv_events kv_events; /* likewise; the strings are the first configuration's */
	const struct mx_config_cluster *cluster_config; /* the first configuration's; NULL: one host */
	struct mx_cluster *cluster;                     /* of several hosts */
	bool tells;                                     /* the changes of prefix caches are told */
	bool cuda;                                      /* the modules of CUDA devices are loaded */
	struct entry *models[MX_SERVICE_MODELS];        /* [n_models] as they are listed */
	size_t n_models;
	pthread_mutex_t lock;  /* of the list of retired ones, which others read */
	struct entry *retired; /* not listed any more, and not freed yet */
};

static bool wants_cuda(const struct mx_config *config)
{
	enum mx_device_kind kind;
	for (size_t i = 0; i < config->n_models; i++)
		if (mx_device_parse(config->models[i].device.items[0], &kind, NULL) &&
		    kind == MX_DEVICE_CUDA)
			return true;
	return false;
}

mx_status mx_host_modules(const struct mx_config *config, struct mx_registry **out,
                          struct mx_err *err)
{
	struct mx_registry *r = NULL;
	mx_status st = mx_registry_create(&r);
	if (st)
		return mx_fail(err, st, "out of memory");
	const char *dirs = mx_paths_of("MIXD_MODULE_PATH", MIXD_MODULE_DIR);
	char dir[4096];
	while (st == MX_OK && mx_paths_next(&dirs, dir, sizeof dir))
		st = mx_registry_load_dir(r, dir, err);
	for (size_t i = 0; st == MX_OK && i < config->modules.n; i++)
		st = mx_registry_load_dir(r, config->modules.items[i], err);
	if (st == MX_OK && wants_cuda(config))
		st = mx_registry_load_cuda(r, err);
	if (st) {
		mx_registry_destroy(r);
		return st;
	}
	*out = r;
	return MX_OK;
}

bool mx_host_tells(const struct mx_config *config)
{
	return config->kv_events.endpoint || config->grpc.listen.n;
}

/* `index`: the model's number, among those of all models. */
static struct entry *new_entry(struct mx_host *h, const struct mx_config_model *settings,
                               size_t index)
{
	struct entry *e = mx_calloc(1, sizeof *e);
	if (!e)
		return NULL;
	e->host = h;
	e->fresh = true;
	e->gpus = mx_config_gpus(settings);
	e->hosted.settings = settings;
	e->hosted.scheduler = h->scheduler;
	e->hosted.kv_events = &h->kv_events;
	e->hosted.cluster_config = h->cluster_config;
	e->hosted.cluster = h->cluster;
	e->hosted.tells = h->tells;
	e->hosted.index = index;
	e->hosted.model = mx_served_create(settings->name);
	if (!e->hosted.model) {
		free(e);
		return NULL;
	}
	return e;
}

/* Frees what an entry loaded, and the entry. The model goes too, unless the
 * service lists it. */
static void free_entry(struct entry *e, bool listed)
{
	if (e->thread_started)
		pthread_join(e->thread, NULL);
	mx_hosted_close(&e->hosted);
	if (!listed)
		mx_served_free(e->hosted.model);
	free(e);
}

/* Lists the models under the names that the configuration gives them. */
static mx_status publish(struct mx_host *h, struct entry *const *entries,
                         const struct mx_config *config)
{
	struct mx_listing list[MX_SERVICE_MODELS];
	for (size_t i = 0; i < config->n_models; i++) {
		const struct mx_strings *aliases = &config->models[i].aliases;
		list[i] = (struct mx_listing){entries[i]->hosted.model, aliases->items, aliases->n};
	}
	mx_status st = mx_service_publish(h->service, list, config->n_models);
	if (st)
		return st;
	for (size_t i = 0; i < config->n_models; i++) {
		h->models[i] = entries[i];
		h->models[i]->fresh = false;
	}
	h->n_models = config->n_models;
	return MX_OK;
}

mx_status mx_host_create(const struct mx_config *config, struct mx_registry *mixers,
                         struct mx_service *service, struct mx_cluster *cluster,
                         struct mx_host **out)
{
	struct entry *entries[MX_SERVICE_MODELS] = {NULL};
	struct mx_host *h = mx_calloc(1, sizeof *h);
	if (!h || config->n_models > MX_SERVICE_MODELS) {
		free(h);
		return MX_E_NOMEM;
	}
	pthread_mutex_init(&h->lock, NULL);
	h->service = service;
	h->mixers = mixers;
	h->scheduler = config->scheduler;
	h->kv_events = config->kv_events;
	h->cluster_config = cluster ? &config->cluster : NULL;
	h->cluster = cluster;
	h->tells = mx_host_tells(config);
	h->cuda = wants_cuda(config);
	mx_status st = MX_OK;
	size_t n = 0;
	for (; n < config->n_models && st == MX_OK; n++) {
		entries[n] = new_entry(h, &config->models[n], n);
		if (entries[n])
			entries[n]->hosted.first = n == 0;
		else
			st = MX_E_NOMEM;
	}
	if (st == MX_OK)
		st = publish(h, entries, config);
	if (st == MX_OK) {
		*out = h;
		return MX_OK;
	}
	for (size_t i = 0; i < n; i++)
		if (entries[i])
			free_entry(entries[i], false);
	mx_host_destroy(h);
	return st;
}

static void *loader_main(void *arg)
{
	struct entry *e = arg;
	struct mx_err err = {0};
	if (mx_hosted_load(&e->hosted, e->host->mixers, &err)) {
		char why[800];
		snprintf(why, sizeof why, "%s%s%s", err.where, err.where[0] ? ": " : "", err.text);
		mx_error("model", "%s: %s", e->hosted.model->name, why);
		mx_served_set_failed(e->hosted.model, why);
	}
	return NULL;
}

mx_status mx_host_start(struct mx_host *h, struct mx_err *err)
{
	for (size_t i = 0; i < h->n_models; i++) {
		struct entry *e = h->models[i];
		int rc = pthread_create(&e->thread, NULL, loader_main, e);
		if (rc)
			return mx_fail_at(err, MX_E_NOMEM, e->hosted.model->name, "cannot start loading: %s",
			                  strerror(rc));
		e->thread_started = true;
	}
	return MX_OK;
}

void mx_host_destroy(struct mx_host *h)
{
	if (!h)
		return;
	for (size_t i = 0; i < h->n_models; i++)
		free_entry(h->models[i], true);
	while (h->retired) {
		struct entry *e = h->retired;
		h->retired = e->next;
		free_entry(e, false);
	}
	pthread_mutex_destroy(&h->lock);
	free(h);
}

/* ---- change ---- */

static double mib(uint64_t bytes)
{
	return (double)bytes / 0x1p20;
}

/* Says in which model the error is. */
static mx_status fail_in(const struct entry *e, const struct mx_config *config, mx_status st,
                         struct mx_err *err)
{
	const struct mx_err in = *err;
	char where[sizeof err->where];
	snprintf(where, sizeof where, "%.170s:%u", config->file, e->hosted.settings->line);
	return mx_fail_at(err, st, where, "models[%.120s]: %s%s%s", e->hosted.model->name, in.where,
	                  in.where[0] ? ": " : "", in.text);
}

/* Memory of one GPU that the new models want. */
struct own_memory {
	char device[64];
	uint64_t wanted, free;
};

/* Adds to the memory that is wanted of a device; fails if it has less. */
static mx_status add_device(struct own_memory *all, size_t *n, const char *device, uint64_t wanted,
                            uint64_t free, struct mx_err *err)
{
	struct own_memory *o = all;
	while (o < all + *n && strcmp(o->device, device))
		o++;
	if (o == all + *n) {
		*o = (struct own_memory){.free = free};
		memcpy(o->device, device, sizeof o->device);
		++*n;
	}
	o->wanted += wanted;
	if (o->wanted <= o->free)
		return MX_OK;
	return mx_fail_at(err, MX_E_RANGE, "memory",
	                  "the new models need %.1f MiB of %s together, which has "
	                  "%.1f MiB free beside "
	                  "those that are loaded: lower memory",
	                  mib(o->wanted), o->device, mib(o->free));
}

/* Adds a plan to the memory that is wanted of its devices. */
static mx_status add_own(struct own_memory *all, size_t *n, const struct mx_memory_plan *p,
                         struct mx_err *err)
{
	if (p->ranks < 2)
		return add_device(all, n, p->device, p->device_total, p->device_free, err);
	mx_status st = MX_OK;
	for (uint32_t i = 0; i < p->ranks && st == MX_OK; i++)
		st =
			add_device(all, n, p->shares[i].device, p->device_total, p->shares[i].device_free, err);
	return st;
}

/* Returns the memory of the host that the loaded models take: those that are
 * listed, and those that finish their requests. */
static uint64_t loaded_bytes(const struct mx_host *h)
{
	uint64_t sum = 0;
	for (size_t i = 0; i < h->n_models; i++)
		sum += h->models[i]->hosted.model->info.host_bytes;
	for (const struct entry *e = h->retired; e; e = e->next)
		sum += e->hosted.model->info.host_bytes;
	return sum;
}

/* Plans the new models among the entries; fails if they do not fit beside what
 * is loaded. */
static mx_status check_memory(struct mx_host *h, struct entry *const *entries,
                              const struct mx_config *config, struct mx_err *err)
{
	struct own_memory own[MX_SERVICE_MODELS];
	size_t n_own = 0;
	uint64_t loaded = loaded_bytes(h), wanted = 0, requests = mx_request_plan_bytes(config);
	uint64_t host = mx_host_memory();
	for (size_t i = 0; i < config->n_models; i++) {
		struct mx_memory_plan p;
		if (!entries[i]->fresh)
			continue;
		mx_status st = mx_hosted_plan(&entries[i]->hosted, h->mixers, &p, err);
		if (st == MX_OK && p.own_memory)
			st = add_own(own, &n_own, &p, err);
		wanted += st == MX_OK ? p.total - p.weights_mapped : 0;
		if (st == MX_OK && loaded + wanted + requests > host)
			st = mx_fail_at(err, MX_E_RANGE, "memory",
			                "the new models need %.1f MiB beside %.1f MiB of the loaded ones and "
			                "%.1f MiB of requests, and this host (or its cgroup) has %.1f MiB: "
			                "lower memory",
			                mib(wanted), mib(loaded), mib(requests), mib(host));
		if (st)
			return fail_in(entries[i], config, st, err);
	}
	return MX_OK;
}

static struct entry *find(const struct mx_host *h, const char *name)
{
	for (size_t i = 0; i < h->n_models; i++)
		if (!strcmp(h->models[i]->hosted.model->name, name))
			return h->models[i];
	return NULL;
}

static bool contains(struct entry *const *entries, size_t n, const struct entry *e)
{
	for (size_t i = 0; i < n; i++)
		if (entries[i] == e)
			return true;
	return false;
}

static void note(struct mx_buf *list, const char *name)
{
	mx_buf_printf(list, "%s%s", list->len ? ", " : "", name);
}

/* Returns the lowest number that is not in use: neither by a model that stays in `to`, nor by one
 * of the n new entries. The ports of a model's events follow from it. */
static size_t free_index(const struct mx_host *h, const struct mx_config *to,
                         struct entry *const *entries, size_t n)
{
	size_t index = 0;
	bool taken;
	do {
		taken = false;
		for (size_t i = 0; i < h->n_models; i++)
			taken |= h->models[i]->hosted.index == index &&
			         mx_config_find(to, h->models[i]->hosted.model->name);
		for (size_t i = 0; i < n; i++)
			taken |= entries[i]->hosted.index == index;
		index += taken;
	} while (taken);
	return index;
}

/* Makes the new list: a model whose settings and folder are the same keeps its entry. */
static mx_status make_entries(struct mx_host *h, const struct mx_config *from,
                              const struct mx_config *to, struct entry **entries, size_t *n,
                              struct mx_host_change *change)
{
	for (*n = 0; *n < to->n_models; ++*n) {
		const struct mx_config_model *m = &to->models[*n], *old = mx_config_find(from, m->name);
		struct entry *e = find(h, m->name);
		if (e && old && mx_config_same_model(old, m) && mx_hosted_is_at(&e->hosted, m)) {
			entries[*n] = e;
			continue;
		}
		note(e ? &change->replaced : &change->added, m->name);
		entries[*n] = new_entry(h, m, e ? e->hosted.index : free_index(h, to, entries, *n));
		if (!entries[*n])
			return MX_E_NOMEM;
	}
	for (size_t i = 0; i < h->n_models; i++)
		if (!mx_config_find(to, h->models[i]->hosted.model->name))
			note(&change->removed, h->models[i]->hosted.model->name);
	return MX_OK;
}

/* Fails if a new model would share one of its several GPUs with an old one that has several, and
 * may have requests still (mx_config_gpus). */
static mx_status check_gpus(struct mx_host *h, struct entry *const *entries, size_t n,
                            struct mx_err *err)
{
	const struct entry *fault = NULL, *with = NULL;
	pthread_mutex_lock(&h->lock);
	for (size_t i = 0; i < n && !fault; i++) {
		if (!entries[i]->fresh)
			continue;
		for (size_t k = 0; k < h->n_models && !fault; k++)
			if (h->models[k]->gpus & entries[i]->gpus)
				fault = entries[i], with = h->models[k];
		for (const struct entry *e = h->retired; e && !fault; e = e->next)
			if (e->gpus & entries[i]->gpus)
				fault = entries[i], with = e;
	}
	pthread_mutex_unlock(&h->lock);
	if (!fault)
		return MX_OK;
	return mx_fail_at(
		err, MX_E_UNSUPPORTED, fault->hosted.model->name,
		"it shares GPUs with the loaded %.60s, and both have several: each could wait "
		"for the other until both are lost; remove that one first, by a reload of its "
		"own, or restart",
		with->hosted.model->name);
}

static mx_status load_fresh(struct mx_host *h, struct entry *const *entries,
                            const struct mx_config *config, struct mx_err *err)
{
	mx_status st = check_memory(h, entries, config, err);
	for (size_t i = 0; i < config->n_models && st == MX_OK; i++) {
		if (!entries[i]->fresh)
			continue;
		mx_info("model", "%s: loading beside what is served", entries[i]->hosted.model->name);
		st = mx_hosted_load(&entries[i]->hosted, h->mixers, err);
		if (st)
			fail_in(entries[i], config, st, err);
	}
	return st;
}

/* Takes the entries that are not listed any more out of the host. */
static void retire(struct mx_host *h, struct entry *const *old, size_t n_old)
{
	pthread_mutex_lock(&h->lock);
	for (size_t i = 0; i < n_old; i++) {
		if (contains(h->models, h->n_models, old[i]))
			continue;
		old[i]->next = h->retired;
		h->retired = old[i];
	}
	pthread_mutex_unlock(&h->lock);
	/* their addresses are for those that follow them */
	for (struct entry *e = h->retired; e; e = e->next)
		mx_hosted_unpublish(&e->hosted);
}

mx_status mx_host_change(struct mx_host *h, const struct mx_config *from,
                         const struct mx_config *to, struct mx_host_change *change,
                         struct mx_err *err)
{
	struct entry *entries[MX_SERVICE_MODELS] = {NULL}, *old[MX_SERVICE_MODELS];
	size_t n = 0, n_old = h->n_models;
	memcpy(old, h->models, n_old * sizeof *old);
	mx_status st = MX_OK;
	if (wants_cuda(to) && !h->cuda && (st = mx_registry_load_cuda(h->mixers, err)) == MX_OK)
		h->cuda = true;
	h->scheduler.queue = to->scheduler.queue;
	if (st == MX_OK && make_entries(h, from, to, entries, &n, change))
		st = mx_fail(err, MX_E_NOMEM, "out of memory");
	if (st == MX_OK && h->cluster && (change->added.len || change->replaced.len))
		st = mx_fail_at(err, MX_E_UNSUPPORTED, "models",
		                "several hosts have loaded the model: another one needs a restart");
	if (st == MX_OK)
		st = check_gpus(h, entries, n, err);
	if (st == MX_OK)
		st = load_fresh(h, entries, to, err);
	if (st == MX_OK && publish(h, entries, to))
		st = mx_fail(err, MX_E_NOMEM, "out of memory");
	if (st) {
		for (size_t i = 0; i < n; i++)
			if (entries[i]->fresh)
				free_entry(entries[i], false);
		return st;
	}
	retire(h, old, n_old);
	return MX_OK;
}

void mx_host_change_free(struct mx_host_change *c)
{
	mx_buf_free(&c->added);
	mx_buf_free(&c->removed);
	mx_buf_free(&c->replaced);
}

size_t mx_host_reap(struct mx_host *h)
{
	size_t left = 0;
	struct entry *gone = NULL;
	pthread_mutex_lock(&h->lock);
	for (struct entry **at = &h->retired; *at;) {
		struct entry *e = *at;
		struct mx_sched *sched = e->hosted.sched;
		if (mx_served_is_held(e->hosted.model) || (sched && !mx_sched_idle(sched))) {
			at = &e->next;
			left++;
			continue;
		}
		*at = e->next;
		e->next = gone;
		gone = e;
	}
	pthread_mutex_unlock(&h->lock);
	while (gone) {
		struct entry *e = gone;
		gone = e->next;
		mx_info("model", "%s: the old one has finished its requests and is gone",
		        e->hosted.model->name);
		free_entry(e, false);
	}
	return left;
}

size_t mx_host_retired(struct mx_host *h, struct mx_retired *out, size_t cap)
{
	size_t n = 0;
	pthread_mutex_lock(&h->lock);
	for (const struct entry *e = h->retired; e && n < cap; e = e->next) {
		const struct mx_served *m = e->hosted.model;
		memcpy(out[n].name, m->name, sizeof out[n].name);
		out[n++].held = atomic_load(&m->held);
	}
	pthread_mutex_unlock(&h->lock);
	return n;
}
