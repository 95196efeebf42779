/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mixer dci beside exact attention: time of attention alone (products with weights are left
 * out), for prompts and for decoding, by length, with what the search finds.
 *
 *   bench/mixers/dci [-t threads] [-m modules] [-i isa] [-n tokens] [-k top_k] [-v visits]
 *                    [-b directions] [-g kv_heads] [-R rounds] [-r] [-p | -d]
 *                    [-w PREFIX]
 *     -r  keys without structure (else as trained models have them: offset, decaying spectrum,
 *         drift along the text)   -p  prompts only   -d  decoding only
 *     -f  without the means of what is not found
 *     -w  writes the keys and some queries for dci_peers.py, and what dci finds of these queries'
 * top_k
 *
 * A shape of 4 query heads a key head, of 128. Pages are filled as those of short sequences, 64
 * tokens each, since a page's content is a function of its tokens alone; the time of a prompt is
 * that of chunks at some positions, integrated over the prompt.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "device/cpu/cpu.h"
#include "mixers/registry.h"

#define PAGE  64
#define DIM   128
#define GROUP 4
#define CHUNK 512 /* rows of a chunk of a prompt that is timed */
#define BEYOND                                                                                     \
	(160ull << 20) /* bytes of keys and values that layers share out: beyond the caches */
#define PROBES 32  /* queries whose largest products are compared, of rows of GROUP */

struct options {
	const char *modules;
	enum mx_isa isa;
	unsigned threads;
	uint32_t tokens, top_k, visits, directions, kv_heads, rounds;
	bool random, prompts, decode, uniform, found_alone;
	const char *write;
};

/* A mixer with enough layers that keys come from memory. */
struct side {
	const struct mx_mixer_ops *ops;
	struct mx_device *device;
	struct mx_ops device_ops;
	struct mx_mixer *layers[16];
	uint32_t n_layers;
	unsigned char *state, *scratch;
	size_t state_bytes, scratch_bytes, token_bytes;
};

struct bench {
	struct options o;
	struct side exact, dci;
	uint32_t n, n_pages, *pages;
	float *k, *v, *q; /* [n, kv_heads, DIM], [n, kv_heads, DIM], [CHUNK, heads, DIM] */
	float *x, *y;
	uint64_t seed;
};

_Noreturn static void die(const char *what)
{
	fprintf(stderr, "bench/mixers/dci: %s\n", what);
	exit(1);
}

static void *zeroed(size_t n)
{
	void *p = mx_map(n);
	if (!p)
		die("out of memory");
	return p;
}

static mx_status no_product(struct mx_device *d, const void *x, size_t ldx, size_t n,
                            const struct mx_linear_out *out, size_t n_out)
{
	(void)d, (void)x, (void)ldx, (void)n, (void)out, (void)n_out;
	return MX_OK;
}

/* ---- keys and queries ---- */

static double uniform(struct bench *b)
{
	b->seed = b->seed * 6364136223846793005u + 1442695040888963407u;
	return ((double)(b->seed >> 11) + 0.5) * 0x1p-53;
}

static float normal(struct bench *b)
{
	return (float)(sqrt(-2 * log(uniform(b))) * cos(2 * M_PI * uniform(b)));
}

/* Keys: an offset, a spectrum that decays, a slow drift, noise. Queries point at some key of the
 * text, besides a direction of their own. Without structure both are normal. */
static void draw(struct bench *b)
{
	size_t heads = b->o.kv_heads, n = (size_t)b->n * heads;
	float offset[DIM], drift[DIM], spread[DIM];
	for (uint32_t i = 0; i < DIM; i++) {
		spread[i] = b->o.random ? 1 : 3 / sqrtf(1 + (float)i / 4);
		offset[i] = b->o.random ? 0 : 2 * normal(b);
		drift[i] = 0;
	}
	for (size_t j = 0; j < n; j++) {
		if (!b->o.random)
			for (uint32_t i = 0; i < DIM; i++)
				drift[i] = 0.99f * drift[i] + 0.14f * spread[i] * normal(b);
		for (uint32_t i = 0; i < DIM; i++) {
			b->k[j * DIM + i] = offset[i] + drift[i] + spread[i] * normal(b);
			b->v[j * DIM + i] = normal(b);
		}
	}
}

static void draw_queries(struct bench *b, uint32_t seen)
{
	size_t heads = b->o.kv_heads;
	for (size_t r = 0; r < (size_t)CHUNK * heads * GROUP; r++) {
		size_t head = r / GROUP % heads;
		const float *k = b->k + ((size_t)(uniform(b) * seen) * heads + head) * DIM;
		for (uint32_t i = 0; i < DIM; i++)
			b->q[r * DIM + i] = normal(b) + (b->o.random ? 0 : k[i]);
	}
}

/* ---- mixers ---- */

static void side_open(struct bench *b, const struct mx_registry *registry, const char *name,
                      struct side *s)
{
	const struct options *o = &b->o;
	uint32_t heads = o->kv_heads * GROUP, width = heads * DIM;
	struct mx_param params[9] = {
		{.name = "heads", .type = MX_PARAM_INT, .i = heads},
		{.name = "kv_heads", .type = MX_PARAM_INT, .i = o->kv_heads},
		{.name = "head_dim", .type = MX_PARAM_INT, .i = DIM},
	};
	uint32_t n_params = 3;
	if (o->uniform) /* all keys that are attended to count the same */
		params[n_params++] = (struct mx_param){.name = "scale", .type = MX_PARAM_FLOAT, .f = 1e-30};
	if (!strcmp(name, "dci") && (o->uniform || o->found_alone))
		params[n_params++] = (struct mx_param){.name = "rest", .type = MX_PARAM_BOOL, .i = 0};
	if (!strcmp(name, "dci")) {
		const struct mx_param own[] = {
			{.name = "directions", .type = MX_PARAM_INT, .i = o->directions},
			{.name = "top_k", .type = MX_PARAM_INT, .i = o->top_k},
			{.name = "visits", .type = MX_PARAM_INT, .i = o->visits},
		};
		for (uint32_t i = 0; i < sizeof own / sizeof *own; i++)
			if (own[i].i) /* else the mixer's own choice */
				params[n_params++] = own[i];
	}
	const struct mx_layer_desc layer = {
		.n_layers = 1,
		.width = width,
		.max_context = b->n,
		.max_rows = 512,
		.max_spans = 512,
		.weight_dtype = MX_BF16,
		.state_dtype = MX_BF16,
		.params = {params, n_params},
	};
	const struct mx_weight none = {MX_BF16, width, width, NULL, NULL};
	const void *weights[MX_MIXER_MAX_WEIGHTS] = {&none, &none, &none, &none};
	struct mx_state_spec spec = {0};
	struct mx_err err = {0};
	s->ops = mx_registry_find(registry, name, MX_DEVICE_CPU, &err);
	if (!s->ops || mx_cpu_create(o->threads, o->isa, 512, width, &s->device, &err) != MX_OK ||
	    s->ops->probe(&layer, s->device, &err) != MX_OK)
		die(err.text);
	s->device_ops = *s->device->ops;
	s->device_ops.linear = no_product;
	s->device->ops = &s->device_ops;
	if (s->ops->state(&layer, s->device, &spec) != MX_OK)
		die("state");
	s->token_bytes = spec.bytes_per_token;
	size_t bytes = spec.bytes_per_token * b->n_pages * PAGE;
	s->n_layers = (uint32_t)(BEYOND / bytes) + 1;
	s->n_layers = s->n_layers > 16 ? 16 : s->n_layers;
	if (!o->decode) /* a chunk goes through the keys in turn */
		s->n_layers = 1;
	s->state_bytes = bytes * s->n_layers;
	s->state = zeroed(s->state_bytes);
	s->scratch_bytes = spec.scratch_bytes;
	s->scratch = zeroed(s->scratch_bytes);
	for (uint32_t i = 0; i < s->n_layers; i++) {
		const struct mx_mixer_init init = {.layer = &layer,
		                                   .device = s->device,
		                                   .weights = weights,
		                                   .page_base = s->state + i * bytes,
		                                   .page_stride = spec.bytes_per_token * PAGE,
		                                   .page_tokens = PAGE};
		if (s->ops->create(&init, &s->layers[i], &err) != MX_OK)
			die(err.text);
	}
}

static void side_close(struct side *s)
{
	for (uint32_t i = 0; i < s->n_layers; i++)
		s->ops->destroy(s->layers[i]);
	mx_cpu_destroy(s->device);
	mx_unmap(s->state, s->state_bytes);
	mx_unmap(s->scratch, s->scratch_bytes);
	*s = (struct side){0};
}

/* Writes the queries, keys and values of n rows where the layer expects its products: both mixers
 * have these at the beginning of the scratch memory. */
static void set_rows(const struct bench *b, const struct side *s, uint32_t n, const float *q,
                     const float *k, const float *v)
{
	size_t kv = (size_t)b->o.kv_heads * DIM, at = mx_round_up(512 * kv * GROUP * 4, 64);
	memcpy(s->scratch, q, n * kv * GROUP * 4);
	memcpy(s->scratch + at, k, n * kv * 4);
	memcpy(s->scratch + at + mx_round_up(512 * kv * 4, 64), v, n * kv * 4);
}

/* Runs one span of `layer`; the outputs are at the beginning of the scratch memory. */
static void run_span(const struct bench *b, const struct side *s, uint32_t layer, uint32_t pos,
                     uint32_t n, const uint32_t *pages, uint32_t n_pages)
{
	uint32_t at[512];
	const struct mx_span span = {.n = n,
	                             .pos = pos,
	                             .max_len = b->n,
	                             .kind = n > 1 ? MX_SPAN_PREFILL : MX_SPAN_DECODE,
	                             .pages = pages,
	                             .n_pages = n_pages};
	for (uint32_t i = 0; i < n; i++)
		at[i] = pos + i;
	const struct mx_step step = {
		.spans = &span, .n_spans = 1, .n_rows = n, .longest = n, .pos = at, .scratch = s->scratch};
	if (s->ops->forward(s->layers[layer], &step, b->x, b->y) != MX_OK)
		die("forward");
}

/* Returns the seconds per token that filling took. */
static double fill(const struct bench *b, const struct side *s)
{
	size_t kv = (size_t)b->o.kv_heads * DIM;
	double seconds = 0;
	for (uint32_t layer = 0; layer < s->n_layers; layer++)
		for (uint32_t p = 0; p < b->n_pages; p++) {
			set_rows(b, s, PAGE, b->q, b->k + p * PAGE * kv, b->v + p * PAGE * kv);
			uint64_t start = mx_now_ns();
			run_span(b, s, layer, 0, PAGE, &b->pages[p], 1);
			seconds += (double)(mx_now_ns() - start) * 1e-9;
		}
	return seconds / s->n_layers / b->n;
}

/* Returns the least seconds of a step of n rows at pos, of a layer: of some rounds, since other
 * work on the host only adds. A chunk goes through keys in turn, and needs no other layer to push
 * them out of the caches. */
static double time_rows(const struct bench *b, const struct side *s, uint32_t pos, uint32_t n)
{
	double best = INFINITY;
	size_t kv = (size_t)b->o.kv_heads * DIM;
	uint32_t layers = n == 1 ? s->n_layers : 1;
	for (uint32_t r = 0; r < b->o.rounds; r++) {
		double sum = 0;
		for (uint32_t i = 0; i < layers; i++) {
			set_rows(b, s, n, b->q, b->k + pos * kv, b->v + pos * kv);
			uint64_t start = mx_now_ns();
			run_span(b, s, i, pos, n, b->pages, b->n_pages);
			sum += (double)(mx_now_ns() - start) * 1e-9;
		}
		best = sum / layers < best ? sum / layers : best;
	}
	return best;
}

/* The seconds of a prompt of n tokens, by Simpson's rule over the cost of a row. */
static double time_prompt(const struct bench *b, const struct side *s)
{
	double first = time_rows(b, s, 0, CHUNK), last = time_rows(b, s, b->n - CHUNK, CHUNK);
	double middle = time_rows(b, s, b->n / 2 / CHUNK * CHUNK, CHUNK);
	return (first + 4 * middle + last) / 6 * b->n / CHUNK;
}

/* Returns the relative error of dci's outputs of the last row. */
static double output_error(const struct bench *b)
{
	size_t n = (size_t)b->o.kv_heads * GROUP * DIM;
	size_t kv = (size_t)b->o.kv_heads * DIM, pos = b->n - 1;
	const struct side *sides[2] = {&b->exact, &b->dci};
	double error = 0, size = 0;
	for (int i = 0; i < 2; i++) {
		set_rows(b, sides[i], 1, b->q, b->k + pos * kv, b->v + pos * kv);
		run_span(b, sides[i], 0, (uint32_t)pos, 1, b->pages, b->n_pages);
	}
	const float *y = (const float *)(void *)b->exact.scratch;
	const float *z = (const float *)(void *)b->dci.scratch;
	for (size_t i = 0; i < n; i++) {
		error += pow((double)z[i] - y[i], 2);
		size += pow(y[i], 2);
	}
	return sqrt(error / size);
}

static float product(const float *a, const float *b)
{
	float sum = 0;
	for (uint32_t i = 0; i < DIM; i++)
		sum += a[i] * b[i];
	return sum;
}

/* Returns the share of the top_k keys with the largest products, of those that are searched at the
 * last row, that dci finds: with equal probabilities, and values that count these keys. */
static double recall(struct bench *b, const struct mx_registry *registry)
{
	const uint32_t first = 64, end = (b->n - 256) / 64 * 64, attended = first + b->n - end;
	float *s = zeroed(b->n * sizeof *s);
	struct side side = {0};
	double found = 0;
	memset(b->v, 0, (size_t)b->n * DIM * sizeof *b->v);
	for (uint32_t p = 0; p < PROBES; p++) {
		for (uint32_t j = first; j < end; j++)
			s[j] = product(b->q + p * DIM, b->k + (size_t)j * DIM);
		for (uint32_t j = first; j < end; j++) {
			uint32_t above = 0;
			for (uint32_t i = first; i < end && above < b->o.top_k; i++)
				above += s[i] > s[j];
			b->v[(size_t)j * DIM + p] = above < b->o.top_k;
		}
	}
	b->o.uniform = true;
	side_open(b, registry, "dci", &side);
	b->o.uniform = false;
	fill(b, &side);
	for (uint32_t p = 0; p < PROBES; p += GROUP) {
		size_t pos = (size_t)(b->n - 1) * DIM;
		set_rows(b, &side, 1, b->q + p * DIM, b->k + pos, b->v + pos);
		run_span(b, &side, 0, b->n - 1, 1, b->pages, b->n_pages);
		const float *y = (const float *)(void *)side.scratch;
		for (uint32_t h = 0; h < GROUP; h++)
			found += (double)y[h * DIM + p + h] * (attended + b->o.top_k) / b->o.top_k;
	}
	side_close(&side);
	mx_unmap(s, b->n * sizeof *s);
	return found / PROBES;
}

static void write_file(const char *prefix, const char *name, const float *x, size_t n)
{
	char path[4096];
	snprintf(path, sizeof path, "%s-%s.f32", prefix, name);
	FILE *f = fopen(path, "we");
	if (!f || fwrite(x, sizeof *x, n, f) != n || fclose(f))
		die(path);
}

static void measure(struct bench *b, const struct mx_registry *registry)
{
	size_t kv = (size_t)b->n * b->o.kv_heads * DIM * 4, q = (size_t)CHUNK * b->o.kv_heads * GROUP;
	b->n_pages = b->n / PAGE;
	b->pages = zeroed(b->n_pages * sizeof *b->pages);
	for (uint32_t i = 0; i < b->n_pages; i++)
		b->pages[i] = i;
	b->k = zeroed(kv);
	b->v = zeroed(kv);
	b->q = zeroed(q * DIM * 4);
	b->x = zeroed(512 * q * DIM * 4 / CHUNK);
	b->y = zeroed(512 * q * DIM * 4 / CHUNK);
	b->seed = 1;
	draw(b);
	draw_queries(b, b->n);
	side_open(b, registry, "attention", &b->exact);
	side_open(b, registry, "dci", &b->dci);
	double exact_fill = fill(b, &b->exact), dci_fill = fill(b, &b->dci);
	printf("%7u  %6.1f", b->n, (dci_fill - exact_fill) * 1e6);
	if (b->o.prompts) {
		double e = time_prompt(b, &b->exact), d = time_prompt(b, &b->dci);
		printf("  %9.3f %9.3f %6.2f", e, d, e / d);
	}
	if (b->o.decode) {
		double e = time_rows(b, &b->exact, b->n - 1, 1), d = time_rows(b, &b->dci, b->n - 1, 1);
		printf("  %9.3f %9.3f %6.2f  %6.1f", e * 1e3, d * 1e3, e / d,
		       (double)b->exact.token_bytes * b->n / e * 1e-9);
	}
	printf("  %7.4f", output_error(b));
	side_close(&b->exact);
	side_close(&b->dci);
	if (b->o.write) {
		write_file(b->o.write, "keys", b->k, (size_t)b->n * DIM);
		write_file(b->o.write, "queries", b->q, PROBES * DIM);
		printf("  recall %.3f", recall(b, registry));
	}
	printf("\n");
	fflush(stdout);
	mx_unmap(b->k, kv);
	mx_unmap(b->v, kv);
	mx_unmap(b->q, q * DIM * 4);
	mx_unmap(b->x, 512 * q * DIM * 4 / CHUNK);
	mx_unmap(b->y, 512 * q * DIM * 4 / CHUNK);
	mx_unmap(b->pages, b->n_pages * sizeof *b->pages);
}

static uint32_t number(const char *s)
{
	return (uint32_t)strtoul(s, NULL, 10);
}

int main(int argc, char **argv)
{
	struct bench b = {.o = {.modules = "mixers/.libs",
	                        .isa = mx_cpu_isa(),
	                        .threads = 1,
	                        .directions = 128,
	                        .kv_heads = 1,
	                        .rounds = 5,
	                        .prompts = true,
	                        .decode = true}};
	struct options *o = &b.o;
	for (int c; (c = getopt(argc, argv, "t:m:i:n:k:v:b:g:R:w:rpdf")) != -1;)
		switch (c) {
		case 't': o->threads = number(optarg); break;
		case 'm': o->modules = optarg; break;
		case 'i': o->isa = mx_isa_parse(optarg); break;
		case 'n': o->tokens = number(optarg); break;
		case 'k': o->top_k = number(optarg); break;
		case 'v': o->visits = number(optarg); break;
		case 'b': o->directions = number(optarg); break;
		case 'g': o->kv_heads = number(optarg); break;
		case 'w': o->write = optarg; break;
		case 'R': o->rounds = number(optarg); break;
		case 'r': o->random = true; break;
		case 'p': o->decode = false; break;
		case 'd': o->prompts = false; break;
		case 'f': o->found_alone = true; break;
		default: return 2;
		}
	if (o->write && (o->kv_heads != 1 || !o->top_k))
		die("-w needs one key head and -k");
	struct mx_registry *registry;
	struct mx_err err = {0};
	if (mx_registry_create(&registry) != MX_OK ||
	    mx_registry_load_dir(registry, o->modules, &err) != MX_OK)
		die(err.text);
	printf("%u query heads, %u key heads of %d, bf16, %u threads, %s keys\n", o->kv_heads * GROUP,
	       o->kv_heads, DIM, o->threads, o->random ? "random" : "structured");
	printf(" tokens  index us/token%s%s    error\n",
	       o->prompts ? "  prompt s: exact  dci  ratio" : "",
	       o->decode ? "  decode ms: exact  dci  ratio  exact GB/s" : "");
	for (uint32_t n = 4096; n <= 131072; n *= 2)
		if (!o->tokens || o->tokens == n) {
			b.n = n;
			measure(&b, registry);
		}
	mx_registry_destroy(registry);
	return 0;
}
