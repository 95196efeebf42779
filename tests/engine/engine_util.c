/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/engine/engine_util.h"
#include "tests/engine/random_checkpoint.h"

static void must(mx_status st, const struct mx_err *err)
{
	if (st != MX_OK)
		fail_msg("%s: %s: %s", mx_status_str(st), err->where, err->text);
}

void make_dir(char dir[64])
{
	const char *tmp = getenv("TMPDIR");
	snprintf(dir, 64, "%s/mixd-test-XXXXXX", tmp && strlen(tmp) < 40 ? tmp : "/tmp");
	assert_non_null(mkdtemp(dir));
}

void make_llama(char dir[64], const struct mx_random_model *m)
{
	struct mx_err err = {0};
	make_dir(dir);
	must(mx_random_model_write(dir, m, &err), &err);
}

void make_checkpoint(char dir[64], const char *config, enum mx_dtype dtype, uint64_t seed)
{
	struct mx_err err = {0};
	struct loaded l;
	make_dir(dir);
	loaded_modules(&l);
	must(random_checkpoint_write(dir, config, l.mixers, dtype, seed, &err), &err);
	loaded_close(&l);
}

static char modules_dir[64];

/* The mixers of the fake device. */
static const char *const fakes[] = {"attention", "gla", "mla"};
enum { N_FAKES = sizeof fakes / sizeof *fakes };

void fake_device_use(void)
{
	static const char *const folders[] = {"mixers/.libs", "tests/fake/.libs"};
	static const char *const kinds[] = {"cpu", "cuda"};
	const char *build = getenv("builddir");
	char from[4096], to[4096], *whole;
	make_dir(modules_dir);
	for (int i = 0; i < 2 * N_FAKES; i++) {
		snprintf(to, sizeof to, "%s/%s-%s.so", modules_dir, fakes[i / 2], kinds[i % 2]);
		snprintf(from, sizeof from, "%s/%s/%s", build ? build : ".", folders[i % 2],
		         strrchr(to, '/') + 1);
		assert_non_null(whole = realpath(from, NULL));
		assert_int_equal(symlink(whole, to), 0);
		free(whole);
	}
	snprintf(from, sizeof from, "%s/tests/fake/.libs", build ? build : ".");
	setenv("MIXD_DEVICE_PATH", from, 1);
	setenv("MIXD_TEST_MODULES", modules_dir, 1);
}

void fake_device_forget(void)
{
	char path[4096];
	for (int i = 0; i < 2 * N_FAKES; i++) {
		snprintf(path, sizeof path, "%s/%s-%s.so", modules_dir, fakes[i / 2],
		         i % 2 ? "cuda" : "cpu");
		unlink(path);
	}
	rmdir(modules_dir);
	unsetenv("MIXD_DEVICE_PATH");
	unsetenv("MIXD_TEST_MODULES");
}

void loaded_modules(struct loaded *out)
{
	const char *build = getenv("builddir"), *instead = getenv("MIXD_TEST_MODULES");
	char modules[4096];
	struct mx_err err = {0};
	*out = (struct loaded){0};
	snprintf(modules, sizeof modules, "%s/mixers/.libs", build ? build : ".");
	if (instead)
		snprintf(modules, sizeof modules, "%s", instead);
	assert_int_equal(mx_registry_create(&out->mixers), MX_OK);
	must(mx_registry_load_dir(out->mixers, modules, &err), &err);
	snprintf(modules, sizeof modules, "%s/tests/mixers/modules/.libs", build ? build : ".");
	must(mx_registry_load_dir(out->mixers, modules, &err), &err);
}

void loaded_open(const char *dir, struct loaded *out)
{
	struct mx_err err = {0};
	loaded_modules(out);
	must(mx_plan_load(dir, &out->plan, &err), &err);
	must(mx_checkpoint_open(dir, &out->checkpoint, &err), &err);
}

struct mx_engine_config loaded_config(void)
{
	return (struct mx_engine_config){
		.name = "test",
		.device = getenv("MIXD_TEST_DEVICE"),
		.deterministic = true,
		.threads = 1,
		.max_sequences = 16,
		.step_tokens = 512,
		.kv_dtype = -1,
		.prefix_cache = true,
		/* on a GPU the workspace of its library counts too */
		.memory = (size_t)(getenv("MIXD_TEST_DEVICE") ? 256 : 64) << 20,
		.snapshot_memory = MX_SNAPSHOT_MEMORY_AUTO,
		.snapshot_every = 48,
	};
}

void loaded_start(const char *dir, const struct mx_engine_config *config, struct loaded *out)
{
	struct mx_engine_config c = config ? *config : loaded_config();
	struct mx_err err = {0};
	loaded_open(dir, out);
	if (c.device)
		must(mx_registry_load_cuda(out->mixers, &err), &err);
	must(
		mx_engine_load(out->plan, out->checkpoint, out->mixers, &c, NULL, NULL, &out->engine, &err),
		&err);
}

void loaded_close(struct loaded *l)
{
	if (l->engine)
		l->engine->ops->destroy(l->engine);
	mx_checkpoint_close(l->checkpoint);
	mx_plan_destroy(l->plan);
	mx_registry_destroy(l->mixers);
	*l = (struct loaded){0};
}

void outcome_free(struct outcome *o)
{
	free(o->tokens);
	free(o->logprobs);
	free(o->vector);
	*o = (struct outcome){0};
}

void assert_same(const struct outcome *a, const struct outcome *b)
{
	assert_int_equal(a->n, b->n);
	assert_memory_equal(a->tokens, b->tokens, a->n * sizeof *a->tokens);
	assert_int_equal(a->n_vector, b->n_vector);
	if (a->n_vector)
		assert_memory_equal(a->vector, b->vector, a->n_vector * sizeof *a->vector);
	for (uint32_t i = 1; i < a->n; i++) {
		if (i < a->n_prompt && (!a->prompt_seen || !b->prompt_seen))
			continue;
		if (memcmp(&a->logprobs[i], &b->logprobs[i], sizeof a->logprobs[i]))
			fail_msg("position %u: %.9g and %.9g", i, (double)a->logprobs[i].logprob,
			         (double)b->logprobs[i].logprob);
	}
}

void make_tokens(int32_t *out, uint32_t n, uint32_t vocab, uint32_t seed)
{
	uint32_t x = seed * 2654435761u + 1;
	for (uint32_t i = 0; i < n; i++) {
		x = x * 1664525u + 1013904223u;
		out[i] = (int32_t)((x >> 8) % vocab);
	}
}

struct job make_job(const int32_t *prompt, uint32_t n, uint32_t total)
{
	return (struct job){
		.prompt = prompt,
		.n_prompt = n,
		.total = total,
		.sampling = {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = 11},
		.logprobs = 5,
		.prompt_logprobs = -1,
	};
}

struct job make_quiet_job(const int32_t *prompt, uint32_t n, uint32_t total)
{
	struct job j = make_job(prompt, n, total);
	j.logprobs = -1;
	return j;
}

struct run {
	struct mx_seq *seq;
	int32_t draft[MX_MAX_DRAFT];
	uint32_t parent[MX_MAX_DRAFT];
	uint32_t random; /* for drafts */
	uint32_t right;  /* drafts of the step that must be kept, if the source is never wrong */
	struct set_constraint constraint;
	bool done;
};

static void begin(struct mx_engine *e, const struct job *j, struct run *r, struct outcome *o)
{
	struct mx_seq_params params = {
		.sampling = j->sampling,
		.max_len = j->total,
		.min_tokens = j->min_tokens,
		.stop = j->stop,
		.n_stop = j->n_stop,
		.logprobs = j->logprobs,
		.prompt_logprobs = j->prompt_logprobs,
		.no_prefix_cache = j->no_prefix_cache,
		.cache_salt = j->salt,
		.pooling = j->pooling,
		.pooled = j->pooled,
		.n_pooled = j->n_pooled,
		.ends = j->ends,
		.n_ends = j->n_ends,
	};
	if (j->constraint) {
		r->constraint = *j->constraint;
		params.constraint = &r->constraint.base;
	}
	*o = (struct outcome){.n_prompt = j->n_prompt};
	o->tokens = calloc(j->total, sizeof *o->tokens);
	o->logprobs = calloc(j->total, sizeof *o->logprobs);
	assert_true(o->tokens && o->logprobs);
	assert_int_equal(e->ops->open(e, j->prompt, j->n_prompt, &params, &r->seq), MX_OK);
	assert_int_equal(e->ops->attach(e, r->seq, &o->cached), MX_OK);
}

static void take_result(struct mx_engine *e, const struct job *j, struct run *r,
                        const struct mx_step_item *item, const struct mx_step_result *res,
                        struct outcome *o)
{
	assert_true(res->status == MX_OK || (j->constraint && j->constraint->fail_at));
	uint32_t n, computed;
	const struct mx_seq_tokens *tokens = e->ops->tokens(r->seq, &n, &computed);
	for (uint32_t k = 0; k < res->prompt_n; k++) {
		assert_int_equal(res->prompt_first + k, o->prompt_seen + 1); /* in order, each once */
		assert_int_equal(res->prompt[k].token, j->prompt[res->prompt_first + k]);
		o->logprobs[res->prompt_first + k] = res->prompt[k];
		o->prompt_seen++;
	}
	if (j->certain && j->propose && !res->deferred)
		assert_int_equal(res->n_accepted, r->right);
	for (uint32_t k = 0; k < res->n_accepted; k++) {
		uint32_t at = n - 1 - res->n_accepted + k;
		int32_t draft = r->draft[res->path[k]];
		assert_int_equal(mx_seq_token(tokens, at), draft);
		assert_int_equal(item->parent ? item->parent[res->path[k]] : k - 1, /* MX_NO_DRAFT is -1 */
		                 k ? res->path[k - 1] : MX_NO_DRAFT);
		for (size_t i = 0; i < j->n_ends; i++)
			assert_int_not_equal(draft, j->ends[i]);
		if (j->logprobs >= 0) {
			assert_int_equal(res->accepted[k].token, draft);
			o->logprobs[at] = res->accepted[k];
		}
	}
	o->accepted += res->n_accepted;
	o->drafted += res->deferred ? 0 : item->n_draft;
	if (res->sampled) {
		assert_int_equal(mx_seq_token(tokens, n - 1), res->token);
		if (j->logprobs >= 0) {
			assert_int_equal(res->logprob.token, res->token);
			o->logprobs[n - 1] = res->logprob;
		}
	}
	o->ended = res->ended;
	o->status = res->status;
	o->cause = res->cause;
	r->done = (n == j->total && (j->total > j->n_prompt || computed == n)) || res->ended ||
	          res->status != MX_OK;
	assert_true((res->vector != NULL) == (r->done && j->pooling != MX_POOLING_NONE));
	if (res->vector) {
		o->n_vector = res->n_vector;
		o->vector = calloc(res->n_vector, sizeof *o->vector);
		assert_non_null(o->vector);
		memcpy(o->vector, res->vector, res->n_vector * sizeof *o->vector);
	}
	if (r->done) {
		mx_seq_tokens_copy(tokens, 0, n, o->tokens);
		o->n = n;
		e->ops->close(e, r->seq);
		r->seq = NULL;
	}
}

static uint32_t draw(struct run *r, uint32_t n)
{
	r->random = r->random * 1664525u + 1013904223u;
	return (r->random >> 8) % n;
}

/* Makes the item's drafts a random tree. A path of it has the guesses of its positions, most of
 * them unchanged. */
static void make_tree(const struct mx_engine_info *info, const struct job *j, struct run *r,
                      uint32_t len, struct mx_step_item *item)
{
	uint32_t last = MX_NO_DRAFT, depth = 0, bushy = 1 + draw(r, 3);
	item->parent = r->parent;
	for (uint32_t i = 0; i < item->n_draft; i++) {
		uint32_t back = draw(r, 2) ? 1 + draw(r, bushy) : 1;
		r->parent[i] = i >= back ? i - back : MX_NO_DRAFT;
		r->draft[i] = (int32_t)draw(r, info->vocab);
		if (r->parent[i] != last || !draw(r, 8))
			continue;
		r->draft[i] = j->guess[len + depth++];
		last = i;
	}
}

/* Adds drafts to an item that decodes a sequence of len tokens; `room`: rows that are left. Drafts
 * of the engine's source are only counted here. */
static void add_drafts(struct mx_engine *e, const struct mx_engine_info *info, const struct job *j,
                       struct run *r, uint32_t len, uint32_t room, struct mx_step_item *item)
{
	uint32_t left = j->total - len - 1, n = draw(r, info->max_draft + 1);
	n = n < left ? n : left;
	n = n < room ? n : room;
	n = e->ops->chunk(e, r->seq, 1 + n) - 1;
	for (uint32_t i = 0; i < n && j->guess; i++)
		r->draft[i] = draw(r, 6) ? j->guess[len + i] : (int32_t)draw(r, info->vocab);
	item->draft = r->draft;
	item->n_draft = n;
	if (info->trees && j->guess && draw(r, 4))
		make_tree(info, j, r, len, item);
}

/* Copies a proposal for a sequence of len tokens, and changes one of its drafts now and then. */
static void take_proposal(const struct mx_engine_info *info, const struct job *j, struct run *r,
                          uint32_t len, struct mx_step_item *item)
{
	for (uint32_t i = 0; i < item->n_draft; i++)
		r->draft[i] = j->guess && !item->parent && draw(r, 6) ? j->guess[len + i] : item->draft[i];
	r->right = j->certain && draw(r, 2) ? draw(r, item->n_draft + 1) : item->n_draft;
	if (r->right < item->n_draft)
		r->draft[r->right] = (int32_t)(((uint32_t)r->draft[r->right] + 1) % info->vocab);
	item->draft = r->draft;
}

/* Asks the engine's source for drafts, and reserves what it takes to check them. */
static void propose(struct mx_engine *e, const struct mx_engine_info *info, const struct job *jobs,
                    struct run *runs, const uint32_t *which, struct mx_step_item *items, uint32_t n)
{
	uint32_t len, computed;
	for (uint32_t i = 0; i < n; i++)
		if (!jobs[which[i]].propose && items[i].n_draft)
			return;
	e->ops->propose(e, items, n);
	for (uint32_t i = 0; i < n; i++) {
		e->ops->tokens(items[i].seq, &len, &computed);
		assert_int_equal(e->ops->reserve(e, items[i].seq, computed + items[i].n + items[i].n_draft),
		                 MX_OK);
		take_proposal(info, &jobs[which[i]], &runs[which[i]], len, &items[i]);
	}
}

void run_jobs(struct mx_engine *e, const struct job *jobs, uint32_t n, uint32_t chunk,
              struct outcome *out)
{
	struct run *runs = calloc(n, sizeof *runs);
	struct mx_step_item *items = calloc(n, sizeof *items);
	struct mx_step_result *results = calloc(n, sizeof *results);
	uint32_t *which = calloc(n, sizeof *which), left = n;
	struct mx_engine_info info;
	assert_true(runs && items && results && which);
	e->ops->info(e, &info);
	for (uint32_t step = 0; left; step++) {
		uint32_t count = 0, rows = 0;
		for (uint32_t i = 0; i < n; i++) {
			uint32_t len, computed;
			if (runs[i].done || step < jobs[i].start)
				continue;
			if (!runs[i].seq) {
				runs[i].random = i + n;
				begin(e, &jobs[i], &runs[i], &out[i]);
			} else if (jobs[i].preempt && step % jobs[i].preempt == 0) {
				e->ops->release(e, runs[i].seq);
				assert_int_equal(e->ops->attach(e, runs[i].seq, &computed), MX_OK);
			}
			e->ops->tokens(runs[i].seq, &len, &computed);
			uint32_t k = len - computed < chunk ? len - computed : chunk;
			if (k > info.step_tokens - rows)
				k = info.step_tokens - rows;
			if (!k)
				continue;
			k = e->ops->chunk(e, runs[i].seq, k);
			struct mx_step_item *item = &items[count];
			*item = (struct mx_step_item){.seq = runs[i].seq, .n = k};
			item->sample = computed + k == len && jobs[i].total > jobs[i].n_prompt;
			if ((jobs[i].guess || jobs[i].propose) && item->sample && k == 1)
				add_drafts(e, &info, &jobs[i], &runs[i], len, info.step_tokens - rows - 1, item);
			assert_int_equal(e->ops->reserve(e, runs[i].seq, computed + k + item->n_draft), MX_OK);
			which[count++] = i;
			rows += k + item->n_draft;
		}
		struct mx_step_times times;
		if (!count)
			continue;
		propose(e, &info, jobs, runs, which, items, count);
		assert_int_equal(e->ops->step(e, items, count, results, &times), MX_OK);
		for (uint32_t c = 0; c < count; c++) {
			take_result(e, &jobs[which[c]], &runs[which[c]], &items[c], &results[c],
			            &out[which[c]]);
			left -= runs[which[c]].done;
		}
		e->ops->save_snapshots(e);
	}
	free(runs);
	free(items);
	free(results);
	free(which);
}

struct outcome run_job(struct mx_engine *e, struct job job, uint32_t chunk)
{
	struct outcome out;
	run_jobs(e, &job, 1, chunk, &out);
	return out;
}
