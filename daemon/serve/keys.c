/* SPDX-License-Identifier: Apache-2.0 */
/* See keys.h. */
#include "daemon/serve/keys.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "base/mem.h"
#include "daemon/serve/limits.h"

/* By which limit requests were refused. */
enum limit { BY_REQUESTS, BY_TOKENS, BY_CONCURRENT, N_LIMITS };

struct mx_principal {
	struct mx_keys *keys;
	char name[MX_KEYS_MAX_NAME + 1];
	uint32_t number; /* 1, 2 ... in the order in which names came */
	struct mx_principal *next;
	_Atomic uint64_t output; /* tokens of all its requests */

	/* Under the table's lock. */
	bool listed; /* its key is in the file that is in force */
	uint8_t hash[MX_KEYS_HASH_SIZE];
	char *models; /* names, each ended by a NUL, and an empty one */
	bool all_models, private_cache, router;
	int32_t priority;
	uint32_t weight;
	uint64_t concurrent;
	struct mx_bucket requests, tokens;
	uint64_t charged; /* of `output`: tokens that the bucket has heard of */
	uint64_t n_requests, n_prompt, n_running, n_limited[N_LIMITS];
};

struct mx_keys {
	pthread_mutex_t lock;
	_Atomic bool wanted;
	struct mx_principal *all; /* the newest first; those that are not listed too */
	uint32_t n_all;
	_Atomic uint64_t n_refused; /* requests without a key, or with an unknown one */
};

mx_status mx_keys_create(struct mx_keys **out)
{
	struct mx_keys *k = mx_calloc(1, sizeof(*k));
	if (!k)
		return MX_E_NOMEM;
	pthread_mutex_init(&k->lock, NULL);
	*out = k;
	return MX_OK;
}

static void free_list(struct mx_principal *p)
{
	while (p) {
		struct mx_principal *next = p->next;
		free(p->models);
		free(p);
		p = next;
	}
}

void mx_keys_destroy(struct mx_keys *k)
{
	if (!k)
		return;
	free_list(k->all);
	pthread_mutex_destroy(&k->lock);
	free(k);
}

/* ---- the file's settings ---- */

static char *join(const struct mx_key_settings *s)
{
	size_t bytes = 1;
	for (size_t i = 0; i < s->n_models; i++)
		bytes += strlen(s->models[i]) + 1;
	char *text = mx_calloc(bytes, 1), *at = text;
	for (size_t i = 0; text && i < s->n_models; i++)
		at = stpcpy(at, s->models[i]) + 1;
	return text;
}

static struct mx_principal *find_name(struct mx_principal *list, const char *name)
{
	while (list && strcmp(list->name, name) != 0)
		list = list->next;
	return list;
}

/* What mx_keys_set needs memory for: a principal for each new name, and all lists of models. */
struct prepared {
	struct mx_principal *fresh;
	uint32_t n_fresh;
	char **models; /* [n] */
};

static mx_status prepare(struct mx_keys *k, const struct mx_key_settings *list, size_t n,
                         struct prepared *p)
{
	p->models = mx_calloc(n ? n : 1, sizeof(*p->models));
	if (!p->models)
		return MX_E_NOMEM;
	for (size_t i = 0; i < n; i++) {
		p->models[i] = join(&list[i]);
		if (!p->models[i])
			return MX_E_NOMEM;
		if (find_name(k->all, list[i].name))
			continue;
		if (k->n_all + p->n_fresh == MX_KEYS_MAX_EVER)
			return MX_E_LIMIT;
		struct mx_principal *one = mx_calloc(1, sizeof(*one));
		if (!one)
			return MX_E_NOMEM;
		snprintf(one->name, sizeof(one->name), "%s", list[i].name);
		one->keys = k;
		one->number = k->n_all + ++p->n_fresh;
		one->next = p->fresh;
		p->fresh = one;
	}
	return MX_OK;
}

static void apply(struct mx_principal *p, const struct mx_key_settings *s, char *models,
                  uint64_t now)
{
	p->listed = true;
	memcpy(p->hash, s->hash, sizeof(p->hash));
	free(p->models);
	p->models = models;
	p->all_models = s->all_models;
	p->private_cache = s->private_cache;
	p->router = s->router;
	p->priority = s->priority;
	p->weight = s->weight;
	p->concurrent = s->concurrent;
	mx_bucket_set(&p->requests, s->requests_per_minute, now);
	mx_bucket_set(&p->tokens, s->tokens_per_minute, now);
}

mx_status mx_keys_set(struct mx_keys *k, const struct mx_key_settings *list, size_t n, bool wanted)
{
	struct prepared p = {0};
	pthread_mutex_lock(&k->lock);
	mx_status st = prepare(k, list, n, &p);
	if (st == MX_OK) {
		struct mx_principal **end = &p.fresh;
		while (*end)
			end = &(*end)->next;
		*end = k->all;
		k->all = p.fresh;
		k->n_all += p.n_fresh;
		for (struct mx_principal *one = k->all; one; one = one->next)
			one->listed = false;
		for (size_t i = 0; i < n; i++)
			apply(find_name(k->all, list[i].name), &list[i], p.models[i], mx_now_ns());
		atomic_store(&k->wanted, wanted);
	} else {
		for (size_t i = 0; i < n && p.models; i++)
			free(p.models[i]);
		free_list(p.fresh);
	}
	pthread_mutex_unlock(&k->lock);
	free(p.models);
	return st;
}

void mx_keys_visit_models(struct mx_keys *k,
                          void (*fn)(void *arg, const char *principal, const char *model),
                          void *arg)
{
	pthread_mutex_lock(&k->lock);
	for (const struct mx_principal *p = k->all; p; p = p->next)
		for (const char *m = p->models; p->listed && !p->all_models && *m; m += strlen(m) + 1)
			fn(arg, p->name, m);
	pthread_mutex_unlock(&k->lock);
}

bool mx_keys_wanted(const struct mx_keys *k)
{
	return k && atomic_load(&k->wanted);
}

/* ---- who asks ---- */

static mx_status refuse(struct mx_keys *k, const char *code, const char *text,
                        struct mx_api_error *err)
{
	atomic_fetch_add(&k->n_refused, 1);
	return mx_api_fail(err, MX_FAULT_UNAUTHENTICATED, code, NULL, "%s", text);
}

/* Returns the key of "Bearer KEY"; NULL if it has another form. */
static const char *bearer(const char *value)
{
	static const char scheme[] = "Bearer";
	const size_t n = sizeof(scheme) - 1;
	if (strncasecmp(value, scheme, n) != 0 || value[n] != ' ')
		return NULL;
	value += n;
	while (*value == ' ')
		value++;
	return *value ? value : NULL;
}

mx_status mx_keys_authenticate(struct mx_keys *k, const char *authorization,
                               struct mx_principal **out, struct mx_api_error *err)
{
	return mx_keys_authenticate_key(k, authorization ? bearer(authorization) : NULL, out, err);
}

mx_status mx_keys_authenticate_key(struct mx_keys *k, const char *key, struct mx_principal **out,
                                   struct mx_api_error *err)
{
	*out = NULL;
	if (!mx_keys_wanted(k))
		return MX_OK;
	uint8_t hash[MX_KEYS_HASH_SIZE];
	if (!key)
		return refuse(k, "missing_api_key",
		              "this server wants a key: send it as 'Authorization: Bearer KEY'", err);
	size_t n = strnlen(key, MX_KEYS_MAX_KEY + 1);
	if (n > MX_KEYS_MAX_KEY || mx_key_hash(key, n, hash) != MX_OK)
		return refuse(k, "invalid_api_key", "the key is not known here", err);
	struct mx_principal *found = NULL;
	pthread_mutex_lock(&k->lock);
	for (struct mx_principal *p = k->all; p; p = p->next) /* all: the time tells nothing */
		if (mx_key_same(p->hash, hash) && p->listed)
			found = p;
	pthread_mutex_unlock(&k->lock);
	if (!found)
		return refuse(k, "invalid_api_key", "the key is not known here", err);
	*out = found;
	return MX_OK;
}

bool mx_key_same(const uint8_t *a, const uint8_t *b)
{
	uint8_t differs = 0;
	for (size_t i = 0; i < MX_KEYS_HASH_SIZE; i++)
		differs |= (uint8_t)(a[i] ^ b[i]);
	return differs == 0;
}

const char *mx_principal_name(const struct mx_principal *p)
{
	return p ? p->name : NULL;
}

bool mx_principal_may_use(struct mx_principal *p, const char *asked, const char *model)
{
	if (!p)
		return true;
	pthread_mutex_lock(&p->keys->lock);
	bool may = p->all_models;
	for (const char *at = p->models; !may && *at; at += strlen(at) + 1)
		may = !strcmp(at, asked) || !strcmp(at, model);
	pthread_mutex_unlock(&p->keys->lock);
	return may;
}

bool mx_principal_is_router(struct mx_principal *p)
{
	if (!p)
		return true;
	pthread_mutex_lock(&p->keys->lock);
	bool is = p->listed && p->router;
	pthread_mutex_unlock(&p->keys->lock);
	return is;
}

struct mx_principal_share mx_principal_share(struct mx_principal *p)
{
	struct mx_principal_share share = {0};
	if (!p)
		return share;
	pthread_mutex_lock(&p->keys->lock);
	share = (struct mx_principal_share){p->number, p->weight, p->priority, p->private_cache};
	pthread_mutex_unlock(&p->keys->lock);
	return share;
}

/* ---- how much ---- */

/* Charges what has come since the last time. Under the lock. */
static void settle(struct mx_principal *p, uint64_t now)
{
	uint64_t output = atomic_load(&p->output);
	mx_bucket_charge(&p->tokens, (double)(output - p->charged), now);
	p->charged = output;
}

/* Refuses a request for as long as `wait`. Under the lock. */
static mx_status limit(struct mx_principal *p, enum limit by, uint64_t wait, const char *what,
                       uint64_t most, struct mx_api_error *err)
{
	p->n_limited[by]++;
	unsigned seconds = (unsigned)((wait + MX_NS_PER_S - 1) / MX_NS_PER_S);
	mx_status st = mx_api_fail(err, MX_FAULT_RATE_LIMITED, "rate_limit_exceeded", NULL,
	                           "%s has reached its limit of %llu %s: try again in %u s", p->name,
	                           (unsigned long long)most, what, seconds ? seconds : 1);
	err->retry_s = seconds ? seconds : 1;
	return st;
}

mx_status mx_principal_enter(struct mx_principal *p, struct mx_api_error *err)
{
	if (!p)
		return MX_OK;
	mx_status st = MX_OK;
	uint64_t now = mx_now_ns();
	pthread_mutex_lock(&p->keys->lock);
	settle(p, now);
	if (p->concurrent && p->n_running >= p->concurrent)
		st = limit(p, BY_CONCURRENT, 0, "requests at a time", p->concurrent, err);
	else if (p->tokens.per_minute && mx_bucket_left(&p->tokens, now) == 0)
		st = limit(p, BY_TOKENS, mx_bucket_wait_ns(&p->tokens, 1, now), "tokens a minute",
		           p->tokens.per_minute, err);
	else if (!mx_bucket_take(&p->requests, 1, now))
		st = limit(p, BY_REQUESTS, mx_bucket_wait_ns(&p->requests, 1, now), "requests a minute",
		           p->requests.per_minute, err);
	p->n_running += st == MX_OK;
	p->n_requests += st == MX_OK;
	pthread_mutex_unlock(&p->keys->lock);
	return st;
}

void mx_principal_leave(struct mx_principal *p)
{
	if (!p)
		return;
	pthread_mutex_lock(&p->keys->lock);
	p->n_running--;
	pthread_mutex_unlock(&p->keys->lock);
}

mx_status mx_principal_take_prompt(struct mx_principal *p, uint64_t n, struct mx_api_error *err)
{
	if (!p)
		return MX_OK;
	mx_status st = MX_OK;
	uint64_t now = mx_now_ns();
	pthread_mutex_lock(&p->keys->lock);
	settle(p, now);
	uint64_t most = p->tokens.per_minute;
	if (most && n > most)
		st = mx_api_fail(err, MX_FAULT_INVALID, "rate_limit_exceeded", NULL,
		                 "the prompt has %llu tokens, and %s may take %llu a minute: it can never "
		                 "be served",
		                 (unsigned long long)n, p->name, (unsigned long long)most);
	else if (!mx_bucket_take(&p->tokens, n, now))
		st = limit(p, BY_TOKENS, mx_bucket_wait_ns(&p->tokens, n, now), "tokens a minute", most,
		           err);
	if (st == MX_OK)
		p->n_prompt += n;
	pthread_mutex_unlock(&p->keys->lock);
	return st;
}

void mx_principal_return_prompt(struct mx_principal *p, uint64_t n)
{
	if (!p)
		return;
	pthread_mutex_lock(&p->keys->lock);
	mx_bucket_charge(&p->tokens, -(double)n, mx_now_ns());
	p->n_prompt -= n;
	pthread_mutex_unlock(&p->keys->lock);
}

void mx_principal_charge_output(struct mx_principal *p, uint64_t n)
{
	if (p)
		atomic_fetch_add_explicit(&p->output, n, memory_order_relaxed);
}

static struct mx_left left_of(const struct mx_bucket *b, uint64_t now)
{
	return (struct mx_left){.limit = b->per_minute,
	                        .left = mx_bucket_left(b, now),
	                        .reset_s = (double)mx_bucket_wait_ns(b, b->per_minute, now) * 1e-9};
}

void mx_principal_left(struct mx_principal *p, struct mx_left *requests, struct mx_left *tokens)
{
	*requests = *tokens = (struct mx_left){0};
	if (!p)
		return;
	uint64_t now = mx_now_ns();
	pthread_mutex_lock(&p->keys->lock);
	settle(p, now);
	*requests = left_of(&p->requests, now);
	*tokens = left_of(&p->tokens, now);
	pthread_mutex_unlock(&p->keys->lock);
}

/* ---- figures ---- */

/* Writes a sample of each listed principal, whose value is at `offset`. Under the lock. */
static void write_family(struct mx_keys *k, struct mx_metrics_writer *w, const char *name,
                         enum mx_metric_type type, const char *help, size_t offset)
{
	mx_metrics_family(w, name, type, help);
	for (const struct mx_principal *p = k->all; p; p = p->next) {
		char labels[MX_KEYS_MAX_NAME + 16];
		uint64_t v;
		snprintf(labels, sizeof(labels), "principal=\"%s\"", p->name);
		memcpy(&v, (const char *)p + offset, sizeof(v));
		if (p->listed)
			mx_metrics_sample(w, labels, (double)v);
	}
}

static void write_output(struct mx_keys *k, struct mx_metrics_writer *w)
{
	mx_metrics_family(w, "mixd_principal_output_tokens", MX_METRIC_COUNTER,
	                  "Tokens that were generated for a principal.");
	for (const struct mx_principal *p = k->all; p; p = p->next) {
		char labels[MX_KEYS_MAX_NAME + 16];
		snprintf(labels, sizeof(labels), "principal=\"%s\"", p->name);
		if (p->listed)
			mx_metrics_sample(w, labels, (double)atomic_load(&p->output));
	}
}

static void write_limited(struct mx_keys *k, struct mx_metrics_writer *w)
{
	static const char *const names[N_LIMITS] = {"requests", "tokens", "concurrent"};
	mx_metrics_family(w, "mixd_principal_limited", MX_METRIC_COUNTER,
	                  "Requests of a principal that a limit refused.");
	for (const struct mx_principal *p = k->all; p; p = p->next)
		for (unsigned i = 0; p->listed && i < N_LIMITS; i++) {
			char labels[MX_KEYS_MAX_NAME + 48];
			snprintf(labels, sizeof(labels), "principal=\"%s\",limit=\"%s\"", p->name, names[i]);
			mx_metrics_sample(w, labels, (double)p->n_limited[i]);
		}
}

void mx_keys_write_metrics(struct mx_keys *k, struct mx_metrics_writer *w)
{
	if (!mx_keys_wanted(k))
		return;
#define P(f) offsetof(struct mx_principal, f)
	mx_metrics_family(w, "mixd_unauthenticated_requests", MX_METRIC_COUNTER,
	                  "Requests without a key, or with an unknown one.");
	mx_metrics_sample(w, "", (double)atomic_load(&k->n_refused));
	pthread_mutex_lock(&k->lock);
	write_family(k, w, "mixd_principal_requests", MX_METRIC_COUNTER,
	             "Requests of a principal that no limit refused.", P(n_requests));
	write_family(k, w, "mixd_principal_prompt_tokens", MX_METRIC_COUNTER,
	             "Tokens of a principal's prompts.", P(n_prompt));
	write_output(k, w);
	write_limited(k, w);
	write_family(k, w, "mixd_principal_running_requests", MX_METRIC_GAUGE,
	             "Requests of a principal that are being served.", P(n_running));
	pthread_mutex_unlock(&k->lock);
#undef P
}
