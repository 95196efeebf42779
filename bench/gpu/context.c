/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/gpu/context times attention of one new token over keys that several GPUs share, cuda:0,
 * cuda:1 ..., beside one GPU with all of them: norms, products and logits are left out, the
 * exchange of partials is not. 16 heads of 128 with a key head each, bf16, nothing shared by
 * queries. A layer is recorded several times in a row, as in a step, and replayed on all GPUs; the
 * time is the wall clock's, of all of them, for one layer.
 *
 *   bench/gpu/context [-x] [RANKS]     2 by default; -x: deterministic
 *
 * MIXD_DEVICE_PATH and MIXD_MODULE_PATH as for mixd.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "device/comm.h"
#include "device/open.h"
#include "mixers/registry.h"
#include "tests/rng.h"

enum { MAX_RANKS = 8, HEADS = 16, DIM = 128, PAGE = 256, WIDTH = 64, LAYERS = 12, TIMES = 9 };
enum { PIECE = 1 << 20 };

static const char *const names[MAX_RANKS] = {"cuda:0", "cuda:1", "cuda:2", "cuda:3",
                                             "cuda:4", "cuda:5", "cuda:6", "cuda:7"};

/* A rank's layer. */
struct part {
	struct mx_device *d;
	struct mx_ops ops; /* the device's, with products that do nothing */
	struct mx_comm *comm;
	struct mx_mixer *mixer;
	struct mx_device_tables tables;
	struct mx_weight matrices[4];
	unsigned char *pages, *scratch, *x, *y;
	size_t page_bytes;
	void *owned[8];
	int n_owned;
};

struct rig {
	const struct mx_mixer_ops *attention;
	struct part parts[MAX_RANKS];
	uint32_t ranks, tokens;
	bool deterministic;
};

static void must(mx_status st, const char *what, const struct mx_err *err)
{
	if (st == MX_OK)
		return;
	fprintf(stderr, "context: %s: %s %s\n", what, mx_status_str(st), err ? err->text : "");
	exit(1);
}

static mx_status no_linear(struct mx_device *d, const void *x, size_t ldx, size_t n,
                           const struct mx_linear_out *out, size_t n_out)
{
	(void)d, (void)x, (void)ldx, (void)n, (void)out, (void)n_out;
	return MX_OK;
}

static void *take(struct part *p, size_t bytes)
{
	void *at = NULL;
	must(p->d->ops->alloc(p->d, bytes, &at), "memory", NULL);
	p->owned[p->n_owned++] = at;
	return at;
}

static void upload(struct part *p, const void *to, const void *from, size_t bytes)
{
	must(p->d->ops->upload(p->d, (void *)(uintptr_t)to, from, bytes), "upload", NULL);
	must(p->d->ops->wait(p->d), "upload", NULL);
}

/* Fills memory with copies of one piece of small random numbers. */
static void fill(struct part *p, unsigned char *to, size_t bytes)
{
	void *host = NULL;
	struct rng g = {7};
	must(p->d->ops->host_alloc(p->d, PIECE, &host), "memory", NULL);
	for (size_t i = 0; i < PIECE / 2; i++) {
		const float f = (float)rng_normal(&g);
		uint32_t bits;
		memcpy(&bits, &f, sizeof bits);
		((uint16_t *)host)[i] = (uint16_t)(bits >> 16);
	}
	size_t done = bytes < PIECE ? bytes : PIECE;
	upload(p, to, host, done);
	while (done < bytes) {
		const size_t n = done < bytes - done ? done : bytes - done;
		must(p->d->ops->copy(p->d, to + done, to, n), "copy", NULL);
		done += n;
	}
	must(p->d->ops->wait(p->d), "copy", NULL);
	p->d->ops->host_release(p->d, host);
}

/* Makes the tables of a step of one token behind all others. */
static void make_tables(struct part *p, uint32_t tokens)
{
	const uint32_t n = tokens / PAGE, pos = tokens - 1, zero = 0;
	const struct mx_device_span span = {
		.n = 1, .pos = pos, .n_pages = n, .max_len = tokens, .parent_begin = UINT32_MAX};
	uint32_t *ids = calloc(n, sizeof *ids);
	struct rng g = {11};
	must(ids ? MX_OK : MX_E_NOMEM, "tables", NULL);
	for (uint32_t i = 0; i < n; i++)
		ids[i] = i;
	for (uint32_t i = n; i > 1; i--) {
		const uint32_t j = (uint32_t)(rng_next(&g) % i), t = ids[i - 1];
		ids[i - 1] = ids[j];
		ids[j] = t;
	}
	p->tables = (struct mx_device_tables){.pos = take(p, 4),
	                                      .row_span = take(p, 4),
	                                      .spans = take(p, sizeof span),
	                                      .pages = take(p, n * sizeof *ids)};
	upload(p, p->tables.pos, &pos, 4);
	upload(p, p->tables.row_span, &zero, 4);
	upload(p, p->tables.spans, &span, sizeof span);
	upload(p, p->tables.pages, ids, n * sizeof *ids);
	free(ids);
}

static void make_layer(struct rig *r, uint32_t rank)
{
	struct part *p = &r->parts[rank];
	const struct mx_param params[] = {
		{.name = "heads", .type = MX_PARAM_INT, .i = HEADS},
		{.name = "kv_heads", .type = MX_PARAM_INT, .i = HEADS},
		{.name = "head_dim", .type = MX_PARAM_INT, .i = DIM},
		{.name = "rope", .type = MX_PARAM_STRING, .s = "none"},
	};
	const struct mx_layer_desc layer = {.n_layers = 1,
	                                    .width = WIDTH,
	                                    .max_context = r->tokens,
	                                    .max_rows = 1,
	                                    .max_spans = 1,
	                                    .rank = rank,
	                                    .ranks = r->ranks,
	                                    .contexts = r->ranks,
	                                    .weight_dtype = MX_BF16,
	                                    .state_dtype = MX_BF16,
	                                    .params = {params, sizeof params / sizeof *params}};
	const void *weights[4];
	struct mx_state_spec state = {0};
	struct mx_err err = {0};
	must(r->attention->probe(&layer, p->d, &err), "layer", &err);
	must(r->attention->state(&layer, p->d, &state), "state", NULL);
	for (int i = 0; i < 4; i++) {
		p->matrices[i] = (struct mx_weight){.dtype = MX_BF16, .rows = HEADS * DIM, .cols = WIDTH};
		weights[i] = &p->matrices[i];
	}
	p->page_bytes = state.bytes_per_token * (PAGE / r->ranks);
	const size_t bytes = p->page_bytes * (r->tokens / PAGE);
	p->pages = take(p, bytes);
	p->scratch = take(p, state.scratch_bytes);
	p->x = take(p, (size_t)WIDTH * 2);
	p->y = take(p, (size_t)WIDTH * 2);
	fill(p, p->pages, bytes);
	fill(p, p->scratch, state.scratch_bytes);
	make_tables(p, r->tokens);
	const struct mx_mixer_init init = {.layer = &layer,
	                                   .device = p->d,
	                                   .weights = weights,
	                                   .page_base = p->pages,
	                                   .page_stride = p->page_bytes,
	                                   .page_tokens = PAGE / r->ranks,
	                                   .comm = p->comm,
	                                   .context = p->comm};
	must(r->attention->create(&init, &p->mixer, &err), "layer", &err);
	must(r->attention->prepare(&p->mixer, 1, &err), "layer", &err);
}

static void open_rig(struct rig *r)
{
	const struct mx_device_options options = {.cuda = {.act_dtype = MX_BF16,
	                                                   .max_samples = 2,
	                                                   .vocab = 100,
	                                                   .deterministic = r->deterministic}};
	struct mx_device *devices[MAX_RANKS];
	struct mx_comm *comms[MAX_RANKS] = {NULL};
	struct mx_err err = {0};
	for (uint32_t i = 0; i < r->ranks; i++) {
		must(mx_device_open(names[i], &options, &devices[i], &err), names[i], &err);
		r->parts[i] = (struct part){.d = devices[i]};
	}
	if (r->ranks > 1)
		must(mx_device_comm(devices, r->ranks, comms, &err), "ranks", &err);
	for (uint32_t i = 0; i < r->ranks; i++) {
		struct part *p = &r->parts[i];
		p->comm = comms[i];
		p->ops = *p->d->ops;
		p->ops.linear = no_linear;
		p->d->ops = &p->ops;
		make_layer(r, i);
	}
}

static void close_rig(struct rig *r)
{
	for (uint32_t i = 0; i < r->ranks; i++) {
		struct part *p = &r->parts[i];
		r->attention->destroy(p->mixer);
		for (int k = 0; k < p->n_owned; k++)
			p->d->ops->release(p->d, p->owned[k]);
	}
	for (uint32_t i = 0; i < r->ranks; i++)
		if (r->parts[i].comm)
			r->parts[i].comm->ops->destroy(r->parts[i].comm);
	for (uint32_t i = 0; i < r->ranks; i++)
		r->parts[i].d->ops->destroy(r->parts[i].d);
}

static void layers(const struct rig *r, struct part *p)
{
	const struct mx_step step = {.n_spans = 1,
	                             .n_rows = 1,
	                             .longest = 1,
	                             .scratch = p->scratch,
	                             .tables = &p->tables,
	                             .recording = true};
	for (int i = 0; i < LAYERS; i++)
		must(r->attention->forward(p->mixer, &step, p->x, p->y), "layer", NULL);
}

static void bench(struct rig *r)
{
	struct mx_recording *recordings[MAX_RANKS];
	double best = 1e9;
	open_rig(r);
	for (uint32_t i = 0; i < r->ranks; i++) {
		struct part *p = &r->parts[i];
		must(p->d->ops->record(p->d), "record", NULL);
		layers(r, p);
		must(p->d->ops->recorded(p->d, &recordings[i]), "record", NULL);
	}
	for (int t = -2; t < TIMES; t++) {
		const uint64_t begin = mx_now_ns();
		for (uint32_t i = 0; i < r->ranks; i++)
			must(r->parts[i].d->ops->replay(r->parts[i].d, recordings[i]), "replay", NULL);
		for (uint32_t i = 0; i < r->ranks; i++)
			must(r->parts[i].d->ops->wait(r->parts[i].d), "replay", NULL);
		const double us = (double)(mx_now_ns() - begin) * 1e-3 / LAYERS;
		best = t >= 0 && us < best ? us : best;
	}
	if (r->ranks > 1)
		must(r->parts[0].comm->ops->check(r->parts[0].comm), "ranks", NULL);
	const double bytes = (double)r->tokens * HEADS * DIM * 4 / r->ranks;
	printf("%u GPUs %8u keys %9.1f us  %6.0f GB/s each\n", r->ranks, r->tokens, best,
	       bytes / best * 1e-3);
	fflush(stdout);
	for (uint32_t i = 0; i < r->ranks; i++)
		r->parts[i].d->ops->forget(r->parts[i].d, recordings[i]);
	close_rig(r);
}

int main(int argc, char **argv)
{
	static const uint32_t tokens[] = {2048, 16384, 1 << 16, 1 << 18, 1 << 20};
	const char *modules = getenv("MIXD_MODULE_PATH");
	struct mx_registry *mixers = NULL;
	struct mx_err err = {0};
	struct rig r = {0};
	int arg = 1;
	if (argc > arg && !strcmp(argv[arg], "-x")) {
		r.deterministic = true;
		arg++;
	}
	const unsigned long most = argc > arg ? strtoul(argv[arg++], NULL, 10) : 2;
	if (argc > arg || most < 1 || most > MAX_RANKS || PAGE / 32 % most) {
		fprintf(stderr, "usage: bench/gpu/context [-x] [RANKS], 1, 2, 4 or 8\n");
		return 2;
	}
	mx_log_set_level(MX_LOG_WARNING);
	must(mx_registry_create(&mixers), "mixers", NULL);
	must(mx_registry_load_dir(mixers, modules ? modules : "mixers/.libs", &err), "mixers", &err);
	must(mx_registry_load_cuda(mixers, &err), "mixers", &err);
	r.attention = mx_registry_find(mixers, "attention", MX_DEVICE_CUDA, &err);
	must(r.attention ? MX_OK : MX_E_NOTFOUND, "attention", &err);
	for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++)
		for (uint32_t ranks = 1; ranks <= most; ranks *= 2) {
			r.ranks = ranks;
			r.tokens = tokens[i];
			bench(&r);
		}
	mx_registry_destroy(mixers);
	return 0;
}
