/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/draft.h"
#include "engine/pages.h"
#include "engine/snapshots.h"

#define ALIGN 64

/* Size of the logits buffer: so large that the overhead of starting a product does not matter, and
 * small beside the weights of any model whose vocabulary fills it. */
#define LOGITS_BYTES ((size_t)32 << 20)
/* Least rows of the logits buffer. With fewer, small decode steps would read lm_head twice. */
#define LOGITS_ROWS 16

#define MAX_PAGES ((size_t)UINT32_MAX / 2)

/* Bytes of a thread's stack and of the allocator's arena for it; measured, rounded up. */
#define THREAD_BYTES ((size_t)64 << 10)

/* Most rows of a recorded step. Larger steps are rare, and each recording takes memory and time. */
#define RECORDED_ROWS 512

/* The same with drafts on a device with memory of its own, which samples all their rows at once. */
#define DRAFT_LOGITS_BYTES ((size_t)256 << 20)
/* Counts of tokens for the rows behind drafts that one step draws: 768 KiB. */
#define AHEAD_COUNTS (1u << 16)
/* Most bytes of the logits that such a device keeps for log-probabilities beside those that it
 * draws from, in recorded steps. */
#define KEPT_LOGITS_BYTES ((size_t)128 << 20)

uint32_t mx_step_drafted(const struct mx_engine_config *config)
{
	uint32_t most = config->speculation ? config->draft_tokens : config->tentative;
	return most ? 1 + most : 0;
}

void mx_step_limits_of(const struct mx_plan *plan, const struct mx_engine_config *config,
                       const struct mx_device_info *info, struct mx_step_limits *out)
{
	*out = (struct mx_step_limits){.rows = config->step_tokens,
	                               .context = config->max_context ? config->max_context
	                                                              : plan->max_context,
	                               .slots = config->max_sequences};
	out->sequences =
		config->max_sequences < config->step_tokens ? config->max_sequences : config->step_tokens;
	out->ld_logits = mx_round_up(plan->vocab, ALIGN / sizeof(float));
	size_t fit = LOGITS_BYTES / (out->ld_logits * sizeof(float));
	size_t rows = fit > LOGITS_ROWS ? fit : LOGITS_ROWS;
	if (config->speculation && info->own_memory) {
		size_t most = DRAFT_LOGITS_BYTES / (out->ld_logits * sizeof(float));
		size_t all = (size_t)out->sequences * mx_step_drafted(config);
		most = most < all ? most : all;
		rows = most > rows ? most : rows;
	}
	out->drafted = mx_step_drafted(config);
	out->gathers = !config->speculation;
	out->ahead = config->speculation && info->own_memory ? AHEAD_COUNTS : 0;
	if (info->records && !config->unrecorded)
		out->recorded = out->sequences < RECORDED_ROWS ? out->sequences : RECORDED_ROWS;
	if (rows < out->recorded)
		rows = out->recorded;
	/* Twice, because a row that is sampled and reported takes two. */
	if (rows > 2 * (size_t)out->rows)
		rows = 2 * (size_t)out->rows;
	size_t kept = KEPT_LOGITS_BYTES / (out->ld_logits * sizeof(float));
	out->draws = (uint32_t)rows;
	out->logits = out->draws + (uint32_t)(kept < out->recorded ? kept : out->recorded);
}

size_t mx_step_tables_bytes(const struct mx_step_limits *l)
{
	struct mx_tables t;
	return mx_tables_layout(l->rows, (size_t)l->sequences + 1, l->rows, NULL, &t);
}

uint32_t mx_list_pages(const struct mx_model *m, const struct mx_step_limits *l)
{
	return (l->context - 1) / m->page_tokens + 1;
}

/* Bytes of hidden states that the host reads at a time; at least a row. */
#define POOLING_BYTES ((size_t)1 << 20)

size_t mx_pooling_bytes(const struct mx_plan *plan, const struct mx_step_limits *l,
                        const struct mx_device_info *info, size_t *out_rows)
{
	size_t row = plan->width * mx_dtype_size(info->act_dtype), n = POOLING_BYTES / row;
	*out_rows = n < 1 ? 1 : n < l->rows ? n : l->rows;
	return mx_round_up(*out_rows * row, sizeof(float)) + plan->width * sizeof(float);
}

struct layout {
	unsigned char *base;
	size_t at, align;
};

static void *take(struct layout *l, size_t n, size_t size)
{
	void *p = l->base ? l->base + l->at : NULL;
	l->at += mx_round_up(n * size, l->align);
	return p;
}

size_t mx_head_moves_layout(const struct mx_step_limits *l, unsigned char *base,
                            struct mx_head_moves *out)
{
	struct layout a = {.base = base, .align = ALIGN};
	out->follow = take(&a, 2 * (size_t)l->rows, sizeof *out->follow);
	out->draft = take(&a, l->sequences, sizeof *out->draft);
	out->join = take(&a, 2 * (size_t)l->rows, sizeof *out->join);
	return a.at;
}

static void lay_out_experts(const struct mx_model *m, size_t rows,
                            const struct mx_device_info *info, struct layout *a,
                            struct mx_experts_scratch *x)
{
	const size_t size = mx_dtype_size(info->act_dtype);
	x->probs = take(a, rows * m->max_experts, sizeof *x->probs);
	x->latent = take(a, rows * m->max_latent, size);
	x->sum = take(a, rows * m->max_latent, size);
	if (info->own_memory) {
		x->share = take(a, rows, sizeof *x->share);
		x->work = take(a,
		               mx_experts_work(rows, m->max_experts, m->max_chosen, m->max_expert_cols,
		                               m->max_expert_width, size),
		               1);
		return;
	}
	x->choices = take(a, rows * m->max_chosen, sizeof *x->choices);
	x->rows = take(a, rows * m->max_chosen, sizeof *x->rows);
	x->begin = take(a, (size_t)m->max_experts + 1, sizeof *x->begin);
	size_t widest = m->plan->width > m->max_latent ? m->plan->width : m->max_latent;
	x->x = take(a, rows * widest, sizeof *x->x);
	x->y = take(a, rows * widest, sizeof *x->y);
}

/* Lays out the buffers that the device computes with. */
static void lay_out_device(const struct mx_model *m, const struct mx_step_limits *l,
                           const struct mx_device_info *info, struct layout *a,
                           struct mx_scratch *s)
{
	size_t rows = l->rows, hidden = rows * m->plan->width, mlp = rows * m->max_mlp;
	size_t size = mx_dtype_size(info->act_dtype);
	bool host = !info->own_memory;
	s->h = take(a, hidden, size);
	s->x = take(a, hidden, size);
	s->y = take(a, hidden, size);
	if (m->parallel_mixers)
		s->y2 = take(a, hidden, size);
	if (m->input_scales)
		s->scaled = take(a, hidden, size);
	if (m->asides) {
		s->embedded = take(a, hidden, sizeof *s->embedded);
		s->aside = take(a, hidden, sizeof *s->aside);
	}
	if (m->asides || m->head.on)
		s->beside = take(a, 2 * hidden, size);
	if (m->head.on) {
		unsigned char *moves = take(a, mx_head_moves_layout(l, NULL, &s->moves), 1);
		mx_head_moves_layout(l, moves, &s->moves);
	}
	if (m->max_rank)
		s->low = take(a, rows * m->max_rank, sizeof *s->low);
	if (m->inputs.width)
		s->inputs = take(a, rows * m->inputs.embed.cols, sizeof *s->inputs);
	if (m->max_experts)
		lay_out_experts(m, rows, info, a, &s->experts);
	s->gate = take(a, host ? mlp : 2 * mlp, size);
	if (host)
		s->up = take(a, mlp, size);
	s->logits = take(a, l->logits * l->ld_logits, sizeof *s->logits);
	s->mixer = take(a, m->mixer_scratch, 1);
	for (uint32_t g = 0; g < m->n_groups; g++)
		if (m->groups[g].settle_bytes)
			s->settle[g] = take(a, m->groups[g].settle_bytes, 1);
	s->block = take(
		a, host ? mx_tables_layout(rows, 0, rows, NULL, &s->tables) : mx_step_tables_bytes(l), 1);
	mx_tables_layout(rows, 0, rows, host ? s->block : NULL, &s->tables);
	if (!host)
		s->page_table = take(a, (size_t)l->slots * mx_list_pages(m, l), sizeof *s->page_table);
}

static void lay_out_host(const struct mx_step_limits *l, struct layout *a, struct mx_scratch *s)
{
	size_t rows = l->rows;
	s->wants = take(a, 2 * rows, sizeof *s->wants);
	s->spans = take(a, l->sequences, sizeof *s->spans);
	s->kept = take(a, l->sequences, sizeof *s->kept);
	s->parents = take(a, rows, sizeof *s->parents);
	s->paths = take(a, l->sequences, sizeof *s->paths);
	s->order = take(a, l->sequences, sizeof *s->order);
	s->samples = take(a, l->logits, sizeof *s->samples);
	s->tokens = take(a, l->logits, sizeof *s->tokens);
	s->n_top = take(a, l->logits, sizeof *s->n_top);
	s->probs = take(a, l->logits, sizeof *s->probs);
	s->copied = take(a, l->logits, sizeof *s->copied);
	s->ahead = take(a, l->ahead, sizeof *s->ahead);
	s->prompt = take(a, rows, sizeof *s->prompt);
}

void mx_scratch_layout(const struct mx_model *m, const struct mx_step_limits *l,
                       const struct mx_device_info *info, unsigned char *device,
                       unsigned char *host, struct mx_scratch *out,
                       struct mx_scratch_bytes *out_bytes)
{
	struct layout d = {.base = device, .align = info->align}, h = {.base = host, .align = ALIGN};
	struct mx_scratch s = {0};
	lay_out_device(m, l, info, &d, &s);
	lay_out_host(l, &h, &s);
	*out = s;
	*out_bytes = (struct mx_scratch_bytes){d.at, h.at};
}

/* ---- the host ---- */

/* Returns the number at the beginning of a file; SIZE_MAX if it is "max" or there is no file. */
static size_t read_limit(const char *path)
{
	FILE *f = fopen(path, "re");
	if (!f)
		return SIZE_MAX;
	unsigned long long v;
	size_t out = fscanf(f, "%llu", &v) == 1 && v < SIZE_MAX ? (size_t)v : SIZE_MAX;
	fclose(f);
	return out;
}

size_t mx_host_memory(void)
{
	long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
	size_t bytes = pages > 0 && size > 0 ? (size_t)pages * (size_t)size : SIZE_MAX;
	/* Inside a container the cgroup file system's root is the container's own group; a unit's
	 * MemoryMax= is in the group that /proc/self/cgroup names ("0::/path", version 2). */
	char line[4096], path[4200];
	size_t limit = read_limit("/sys/fs/cgroup/memory.max");
	bytes = limit < bytes ? limit : bytes;
	FILE *f = fopen("/proc/self/cgroup", "re");
	while (f && fgets(line, sizeof line, f)) {
		char group[4096];
		if (sscanf(line, "0::%4095[^\n]", group) != 1)
			continue;
		snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.max", group);
		limit = read_limit(path);
		bytes = limit < bytes ? limit : bytes;
	}
	if (f)
		fclose(f);
	return bytes;
}

/* ---- the plan ---- */

/* Fails because memory `has` less than one sequence `needs`. `snapshots` = the part of `needs` that
 * config's snapshot_memory asks for. */
static mx_status too_little(const struct mx_engine_config *config, const struct mx_memory_plan *p,
                            uint32_t max_context, size_t has, size_t needs, size_t snapshots,
                            struct mx_err *err)
{
	const char *of = p->own_memory ? " (nine tenths of what the device has free)"
	                               : " (half of what the weights leave of the host's)";
	char saved[80] = "";
	if (snapshots)
		snprintf(saved, sizeof saved, ", %.1f MiB of it for saved states",
		         (double)snapshots / (1 << 20));
	return mx_fail_at(err, MX_E_RANGE, "memory",
	                  "one sequence of %u tokens needs %.1f MiB %s the weights%s, and memory is "
	                  "%.1f MiB%s%s: lower max_context%s or raise memory",
	                  max_context, (double)needs / (1 << 20), p->own_memory ? "with" : "beside",
	                  saved, (double)has / (1 << 20), config->memory ? "" : of,
	                  mx_load_n_ranks(config) > 1 ? ", of each rank" : "",
	                  snapshots ? " or snapshot_memory" : "");
}

/* Fills the sizes that do not depend on the number of slots, snapshots and pages. */
static void fixed_parts(const struct mx_model *m, const struct mx_engine_config *config,
                        const struct mx_device *device, size_t device_scratch,
                        struct mx_memory_plan *p)
{
	const struct mx_device_info *info = &device->info;
	struct mx_step_limits limits;
	struct mx_scratch scratch;
	struct mx_scratch_bytes bytes;
	mx_step_limits_of(m->plan, config, info, &limits);
	mx_scratch_layout(m, &limits, info, NULL, NULL, &scratch, &bytes);
	p->weights_private = mx_round_up(m->private_bytes, info->align);
	p->instances = m->instance_bytes + m->create_bytes;
	p->slot_bytes = m->slot_bytes;
	p->snapshot_bytes = m->slot_bytes ? m->snapshot_bytes + m->page_bytes : 0;
	p->other = m->arena.used + info->threads * THREAD_BYTES + config->outside;
	if (config->speculation == MX_SPECULATION_NGRAM)
		p->other += limits.sequences * mx_draft_ngram_bytes(limits.context);
	p->own_memory = info->own_memory;
	if (p->own_memory) {
		snprintf(p->device, sizeof p->device, "%s", info->name);
		p->device_free = info->memory + device_scratch;
		p->weights_device = m->weight_bytes;
		p->scratch = bytes.device + device_scratch;
		size_t rows;
		p->other += bytes.host + mx_step_tables_bytes(&limits) +
		            mx_pooling_bytes(m->plan, &limits, info, &rows);
		struct mx_head_moves moves;
		if (m->head.on)
			p->other += mx_head_moves_layout(&limits, NULL, &moves);
	} else {
		p->weights_mapped = m->mapped_bytes;
		p->weights_made = mx_model_copied_bytes(m);
		p->scratch = bytes.device + bytes.host + device_scratch;
	}
	p->page_tokens = m->page_tokens;
	p->page_bytes = m->page_bytes;
	if (m->head.on)
		p->head_page = m->page_bytes - m->blocks[m->n_own].mixers[0].page_offset;
	p->n_mixers = m->n_groups;
	for (uint32_t g = 0; g < m->n_groups; g++)
		p->mixers[g] = m->groups[g].use;
}

/* How the memory of pages, slots and snapshots is counted. */
struct room {
	const struct mx_model *m;
	bool cache;      /* pages are shared: their tables are larger */
	bool events;     /* changes of the prefix cache are told: one table more */
	bool own_memory; /* it is the device's own memory: tables are not in it */
};

/* Returns the bytes of the tables of n pages. */
static size_t page_tables(const struct room *r, uint32_t n)
{
	size_t bytes = mx_pages_bytes(n, r->m->page_tokens, r->cache);
	return r->events ? bytes + mx_kv_events_bytes(n, r->m->page_tokens) : bytes;
}

/* Returns the bytes of n pages and their tables; SIZE_MAX if n is more than the pool can number. */
static size_t pages_bytes(const struct room *r, size_t n)
{
	const struct mx_model *m = r->m;
	if (n > MAX_PAGES || (m->page_bytes && n > SIZE_MAX / 2 / m->page_bytes))
		return SIZE_MAX;
	size_t tables = r->own_memory ? 0 : page_tables(r, (uint32_t)n);
	return n * m->page_bytes + tables;
}

static size_t pages_that_fit(const struct room *r, size_t bytes)
{
	const struct mx_model *m = r->m;
	size_t low = 0, high = bytes / m->page_bytes; /* low fits, high + 1 does not */
	if (high > MAX_PAGES)
		high = MAX_PAGES;
	while (low < high) {
		size_t mid = high - (high - low) / 2;
		if (pages_bytes(r, mid) <= bytes)
			low = mid;
		else
			high = mid - 1;
	}
	return low;
}

/* Returns the number of slots: as many as sequences of max_context fit; or, since most sequences
 * are shorter, as many as half of the room holds, if that is more. The pages of one sequence of
 * max_context must fit beside them. */
static uint32_t choose_slots(const struct mx_model *m, uint32_t max_sequences, size_t sequence,
                             size_t room)
{
	if (!m->slot_bytes)
		return max_sequences;
	size_t full = room / (m->slot_bytes + sequence), half = room / 2 / m->slot_bytes;
	size_t most = (room - sequence) / m->slot_bytes;
	size_t n = full > half ? full : half < most ? half : most;
	return n < max_sequences ? (uint32_t)n : max_sequences;
}

static size_t snapshots_bytes(const struct room *r, size_t n)
{
	size_t tables = r->own_memory || !n ? 0 : mx_snapshots_bytes((uint32_t)n);
	return n * (r->m->snapshot_bytes + r->m->page_bytes) + tables;
}

/* Finds the number of snapshots: as many as snapshot_memory holds. By default two a slot, because a
 * turn of a chat saves one at the end of its prompt and one at its own end, in at most a quarter of
 * the room. */
static mx_status choose_snapshots(const struct room *r, const struct mx_engine_config *config,
                                  size_t sequence, size_t room, uint32_t *out, struct mx_err *err)
{
	const struct mx_model *m = r->m;
	size_t one = snapshots_bytes(r, 1), n = config->snapshot_memory / one, least;
	if (config->snapshot_memory == MX_SNAPSHOT_MEMORY_AUTO) {
		least = m->slot_bytes + sequence;
		n = (room / 4 < room - least ? room / 4 : room - least) / one;
		size_t slots = choose_slots(m, config->max_sequences, sequence, room - n * one);
		n = n < 2 * slots ? n : 2 * slots;
	} else if (!n) {
		return mx_fail_at(err, MX_E_RANGE, "snapshot_memory",
		                  "a saved state of this model takes %.1f MiB, and snapshot_memory is %.1f "
		                  "MiB: raise it, or set it to 0 to do without",
		                  (double)one / (1 << 20), (double)config->snapshot_memory / (1 << 20));
	}
	*out = n < MX_SNAPSHOTS_MAX ? (uint32_t)n : MX_SNAPSHOTS_MAX;
	return MX_OK;
}

/* Snapshots of every sequence: at the end of its prompt, and at its own end. */
#define ENDS 2

/* The default of snapshot_every is not raised beyond this. It is the most tokens that are computed
 * again where two prompts part: however long the context, shared beginnings are rarely longer than
 * a few thousand tokens. */
#define LONGEST_INTERVAL 2048

/* Returns snapshot_every. The default is step_tokens (at least 256), because long prompts end a
 * step there anyway; it is doubled until one sequence takes at most a quarter of the snapshots. */
static uint32_t choose_interval(const struct mx_engine_config *config, uint32_t n_snapshots,
                                uint32_t max_context)
{
	uint32_t every = config->step_tokens > 256 ? config->step_tokens : 256;
	if (config->snapshot_every != MX_SNAPSHOT_EVERY_AUTO)
		return config->snapshot_every;
	while (every < LONGEST_INTERVAL && every < max_context && max_context / every > n_snapshots / 4)
		every *= 2;
	return every;
}

/* True if the model will have a prefix cache. */
static bool has_cache(const struct mx_model *m, const struct mx_engine_config *config)
{
	return config->prefix_cache && m->can_share && (!m->slot_bytes || config->snapshot_memory);
}

/* Returns config's `memory`, or its default. Of a device's own memory the default leaves a tenth,
 * for later allocations of libraries and recordings. */
static size_t choose_budget(const struct mx_engine_config *config, const struct mx_memory_plan *p)
{
	if (config->memory)
		return config->memory;
	if (p->own_memory)
		return p->device_free / 10 * 9 / (config->sharers ? config->sharers : 1);
	const uint32_t ranks = mx_load_local_ranks(config);
	size_t host = mx_host_memory(), weights = p->weights_mapped + ranks * p->weights_made;
	return host > weights ? (host - weights) / 2 / ranks : 0;
}

/* Returns the number of pages: `each` for n_slots sequences, as far as they fit. With a prefix
 * cache there are more: as many as fit if config has `memory`, else twice as many in a device's own
 * memory, which no other program needs. */
static size_t choose_pages(const struct room *r, const struct mx_engine_config *config, bool cache,
                           size_t each, uint32_t n_slots, size_t room)
{
	size_t n = each * n_slots;
	if (!r->m->page_bytes)
		return n;
	if (cache && config->memory && !config->spare)
		return pages_that_fit(r, room);
	if (cache && r->own_memory)
		n *= 2;
	return pages_bytes(r, n) > room ? pages_that_fit(r, room) : n;
}

/* Computes the totals, and fails if the device or the host has less. */
static mx_status add_up(struct mx_memory_plan *p, struct mx_err *err)
{
	size_t states = p->pages + p->slots + p->snapshots, host = mx_host_memory();
	size_t computing = p->weights_device + p->weights_private + p->instances + states + p->scratch;
	p->device_total = p->own_memory ? computing : 0;
	p->total = p->weights_mapped + p->weights_made + (p->own_memory ? 0 : computing) + p->other;
	if (p->device_total > p->device_free)
		return mx_fail_at(err, MX_E_RANGE, "memory",
		                  "the plan needs %.1f MiB of %s, which has %.1f MiB free: lower memory",
		                  (double)p->device_total / (1 << 20), p->device,
		                  (double)p->device_free / (1 << 20));
	size_t own = p->total - p->weights_mapped; /* mapped weights need not be resident */
	if (own > host)
		return mx_fail_at(
			err, MX_E_RANGE, "memory",
			"the plan needs %.1f MiB beside the mapped weights, and this host (or its "
			"cgroup) has %.1f MiB: lower memory or max_sequences",
			(double)own / (1 << 20), (double)host / (1 << 20));
	return MX_OK;
}

/* Returns the bytes of a sequence of max_context. */
static size_t sequence_bytes(const struct mx_model *m, const struct mx_engine_config *config)
{
	size_t context = config->max_context ? config->max_context : m->plan->max_context;
	return m->slot_bytes + ((context - 1) / m->page_tokens + 1) * m->page_bytes;
}

/* Returns the bytes of `memory` that do not depend on the number of slots, snapshots and pages. */
static size_t fixed_bytes(const struct mx_memory_plan *p)
{
	return p->weights_device + p->weights_private + p->instances + p->scratch +
	       (p->own_memory ? 0 : p->other);
}

size_t mx_memory_draft_share(const struct mx_model *m, const struct mx_engine_config *config,
                             const struct mx_device *device, size_t device_scratch,
                             const struct mx_model *draft,
                             const struct mx_engine_config *draft_config,
                             const struct mx_device *draft_device, size_t draft_scratch)
{
	struct mx_memory_plan p = {0}, q = {0};
	fixed_parts(m, config, device, device_scratch, &p);
	fixed_parts(draft, draft_config, draft_device, draft_scratch, &q);
	size_t own = fixed_bytes(&q), both = fixed_bytes(&p) + own;
	size_t all = choose_budget(config, &p);
	double states = (double)sequence_bytes(draft, draft_config);
	double part = states / (states + (double)sequence_bytes(m, config));
	return own + (all > both ? (size_t)((double)(all - both) * part) : 0);
}

size_t mx_memory_beside_draft(const struct mx_model *m, const struct mx_engine_config *config,
                              const struct mx_device *device, size_t device_scratch, size_t draft)
{
	struct mx_memory_plan p = {0};
	fixed_parts(m, config, device, device_scratch, &p);
	size_t budget = choose_budget(config, &p);
	return budget > draft ? budget - draft : 1;
}

mx_status mx_memory_plan(const struct mx_model *m, const struct mx_engine_config *config,
                         uint32_t max_context, const struct mx_device *device,
                         size_t device_scratch, struct mx_memory_plan *out, struct mx_err *err)
{
	struct mx_memory_plan p = {0};
	fixed_parts(m, config, device, device_scratch, &p);
	bool cache = has_cache(m, config);
	bool shares = cache && m->page_bytes;
	const struct room r = {m, shares, shares && config->kv_events, p.own_memory};
	size_t fixed = fixed_bytes(&p), budget = choose_budget(config, &p);
	size_t pages = (max_context - 1) / m->page_tokens + 1; /* of a sequence of max_context */
	if (p.own_memory && config->max_sequences > UINT32_MAX / pages)
		return mx_fail(err, MX_E_RANGE, "%u sequences of %u tokens: lower max_sequences",
		               config->max_sequences, max_context);
	size_t sequence = pages_bytes(&r, pages), least = fixed + m->slot_bytes + sequence;
	if (sequence == SIZE_MAX || budget < least)
		return too_little(config, &p, max_context, budget, sequence == SIZE_MAX ? sequence : least,
		                  0, err);
	if (cache && m->slot_bytes) {
		mx_status st = choose_snapshots(&r, config, sequence, budget - fixed, &p.n_snapshots, err);
		if (st != MX_OK)
			return st;
		size_t bytes = snapshots_bytes(&r, p.n_snapshots);
		if (budget < least + bytes)
			return too_little(config, &p, max_context, budget, least + bytes, bytes, err);
		p.snapshot_every = choose_interval(config, p.n_snapshots, max_context);
		p.snapshots_short = config->snapshot_every != MX_SNAPSHOT_EVERY_AUTO && p.snapshot_every &&
		                    max_context / p.snapshot_every + ENDS > p.n_snapshots;
		p.snapshots = p.n_snapshots * p.snapshot_bytes;
		p.other += mx_snapshots_bytes(p.n_snapshots);
		fixed += bytes;
	}
	p.n_slots = choose_slots(m, config->max_sequences, sequence, budget - fixed);
	p.slots = p.n_slots * m->slot_bytes;
	size_t room = budget - fixed - p.slots;
	p.n_pages = (uint32_t)choose_pages(&r, config, cache, pages, p.n_slots, room);
	p.pages = p.n_pages * m->page_bytes;
	p.other += page_tables(&r, p.n_pages);
	mx_status st = add_up(&p, err);
	if (st == MX_OK)
		*out = p;
	return st;
}

uint32_t mx_memory_sequences(const struct mx_memory_plan *p, uint32_t tokens)
{
	uint32_t fit = p->n_pages / ((tokens - 1) / p->page_tokens + 1);
	return fit < p->n_slots ? fit : p->n_slots;
}
