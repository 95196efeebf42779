/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures decoding with Hyena's long convolutions on a GPU, everything but the products, beside a
 * decoder that sums all inputs for each token (lazy) and that one beside the reading speed of a
 * loop. Filters and inputs are random numbers. A figure is the mean over positions that lie close
 * together around the middle of a sequence, where lazy has its mean too; steps are replayed, as the
 * engine does, and then settled.
 *
 *   bench/gpu/hyena [-m folder of the module] [-b SEQUENCES] [-l LAYERS] [-d CHANNELS] [-n LENGTH]
 *                   [-r | -p | -s]
 *     -r  sequences at random positions; else all at the same
 *     -p  a prompt of the length instead, beside bench/gpu/hyena-fft.py
 *     -s  a sequence that was loaded at 11/12 of the length: what resume takes, call by call
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/device/cuda/read.h"
#include "bench/gpu/bare_device.h"
#include "bench/gpu/lazy.h"
#include "tests/rng.h"

#define STEPS       512
#define MAX_LAYERS  64
#define PAGE_TOKENS 64
#define ROOF_BYTES  (1ull << 31)
#define REPEATS     10

struct sizes {
	uint32_t sequences, layers, width, length;
	bool random, prompt, resume;
};

/* ---- memory and time ---- */

static struct mx_cuda_base *base; /* of bare_device.h */

static cudaStream_t stream(void)
{
	return (cudaStream_t)base->stream;
}

/* New device memory of ordinary numbers: a piece of the host's, then copies of it. */
static void *random_memory(size_t bytes)
{
	const size_t piece = bytes < 1 << 22 ? bytes : 1 << 22;
	struct rng g = {88172645463325252ull};
	float *host = malloc(piece);
	char *to;
	for (size_t i = 0; i < piece / sizeof *host; i++)
		host[i] = rng_normal(&g);
	CUDA(cudaMalloc((void **)&to, bytes));
	CUDA(cudaMemcpy(to, host, piece, cudaMemcpyHostToDevice));
	for (size_t done = piece, n; done < bytes; done += n) {
		n = done < bytes - done ? done : bytes - done;
		CUDA(cudaMemcpy(to + done, to, n, cudaMemcpyDeviceToDevice));
	}
	free(host);
	return to;
}

static double since(cudaEvent_t begin, cudaEvent_t end)
{
	float ms;
	CUDA(cudaEventSynchronize(end));
	CUDA(cudaEventElapsedTime(&ms, begin, end));
	return ms * 1e-3;
}

/* ---- layers ---- */

struct model {
	const struct mx_mixer_ops *ops;
	struct mx_mixer *layers[MAX_LAYERS];
	unsigned char *scratch;
	void *x, *y;
};

/* The smallest network for the filter: this measures its use, not its making. */
static void open_layer(struct model *m, const struct sizes *s, uint32_t index)
{
	static const struct mx_weight matrix = {MX_BF16, 0, 0, NULL, NULL};
	struct mx_param params[] = {
		{.name = "filter_len", .type = MX_PARAM_INT, .i = s->length, .f = s->length},
		{.name = "emb_dim", .type = MX_PARAM_INT, .i = 1, .f = 1},
		{.name = "filter_order", .type = MX_PARAM_INT, .i = 1, .f = 1},
		{.name = "inner_mlps", .type = MX_PARAM_INT},
	};
	struct mx_weight_spec specs[MX_MIXER_MAX_WEIGHTS] = {0};
	const void *weights[MX_MIXER_MAX_WEIGHTS] = {0};
	const float *host[MX_MIXER_MAX_WEIGHTS] = {0};
	struct mx_state_spec state = {0};
	struct mx_err err = {0};
	size_t n = 0;
	const struct mx_layer_desc layer = {
		.index = index,
		.n_layers = s->layers,
		.width = s->width,
		.max_context = s->length,
		.max_rows = s->prompt ? s->length : s->sequences,
		.max_spans = s->sequences,
		.ranks = 1,
		.weight_dtype = MX_BF16,
		.params = {params, sizeof params / sizeof *params},
	};
	if (m->ops->probe(&layer, &base->device, &err) != MX_OK ||
	    m->ops->weights(&layer, specs, &n) != MX_OK ||
	    m->ops->state(&layer, &base->device, &state) != MX_OK) {
		fprintf(stderr, "%s\n", err.text);
		exit(1);
	}
	for (size_t i = 0; i < n; i++) {
		size_t size = 1;
		for (uint32_t d = 0; d < specs[i].ndim; d++)
			size *= specs[i].shape[d];
		weights[i] = &matrix;
		if (specs[i].form != MX_WEIGHT_VECTOR)
			continue;
		void *v = random_memory(size * sizeof(float)), *copy = malloc(size * sizeof(float));
		CUDA(cudaMemcpy(copy, v, size * sizeof(float), cudaMemcpyDeviceToHost));
		weights[i] = v;
		host[i] = copy;
	}
	const uint32_t pages = s->sequences * ((s->length - 1) / PAGE_TOKENS + 1);
	const size_t page = state.bytes_per_token * PAGE_TOKENS;
	const size_t slot = (state.fixed_bytes + 255) / 256 * 256;
	const struct mx_mixer_init init = {
		.layer = &layer,
		.device = &base->device,
		.weights = weights,
		.host_vectors = host,
		.page_base = random_memory(page * pages),
		.page_stride = page,
		.page_tokens = PAGE_TOKENS,
		.slot_base = random_memory(slot * s->sequences),
		.slot_stride = slot,
	};
	for (uint32_t i = 0; i < s->sequences; i++) /* of sequences that were not loaded */
		CUDA(cudaMemset(init.slot_base + i * slot, 0, 4));
	if (!m->scratch) {
		m->scratch = random_memory(state.scratch_bytes);
		m->x = random_memory((size_t)s->sequences * s->width * 2);
		m->y = random_memory((size_t)s->sequences * s->width * 2);
	}
	if (m->ops->create(&init, &m->layers[index], &err) != MX_OK) {
		fprintf(stderr, "%s\n", err.text);
		exit(1);
	}
	for (size_t i = 0; i < n; i++)
		free((void *)host[i]);
}

/* ---- steps ---- */

struct steps {
	struct mx_device_span *all, *on_gpu; /* [STEPS][sequences]; the tables of one step */
	struct mx_span *spans;               /* [sequences] */
	struct mx_kept *kept;
	struct mx_device_tables tables;
};

static void make_steps(const struct sizes *s, struct steps *t)
{
	const uint32_t each = (s->length - 1) / PAGE_TOKENS + 1, n = s->sequences;
	uint32_t *pages = malloc(sizeof *pages * each * n), *on_gpu;
	struct rng g = {7};
	t->spans = calloc(n, sizeof *t->spans);
	t->kept = calloc(n, sizeof *t->kept);
	CUDA(cudaMallocHost((void **)&t->all, sizeof *t->all * STEPS * n));
	CUDA(cudaMalloc((void **)&t->on_gpu, sizeof *t->on_gpu * n));
	CUDA(cudaMalloc((void **)&on_gpu, sizeof *pages * each * n));
	for (uint32_t i = 0; i < each * n; i++) /* anywhere */
		pages[i] = i;
	for (uint32_t i = 0; i < each * n; i++) {
		const uint32_t k = rng_below(&g, each * n), page = pages[i];
		pages[i] = pages[k];
		pages[k] = page;
	}
	CUDA(cudaMemcpy(on_gpu, pages, sizeof *pages * each * n, cudaMemcpyHostToDevice));
	for (uint32_t i = 0; i < n; i++) {
		const uint32_t first =
			s->random ? 64 + rng_below(&g, s->length - STEPS - 128) : (s->length - STEPS) / 2;
		t->spans[i] =
			(struct mx_span){.row = i, .n = 1, .max_len = s->length, .kind = MX_SPAN_DECODE};
		t->kept[i].n = 1;
		for (uint32_t k = 0; k < STEPS; k++)
			t->all[(size_t)k * n + i] = (struct mx_device_span){.row = i,
			                                                    .n = 1,
			                                                    .pos = first + k,
			                                                    .slot = i,
			                                                    .page_begin = i * each,
			                                                    .n_pages = each,
			                                                    .max_len = s->length,
			                                                    .kind = MX_SPAN_DECODE};
	}
	t->tables = (struct mx_device_tables){.spans = t->on_gpu, .pages = on_gpu};
	free(pages);
}

static void send(const struct sizes *s, const struct steps *t, uint32_t step)
{
	CUDA(cudaMemcpyAsync(t->on_gpu, t->all + (size_t)step * s->sequences,
	                     sizeof *t->on_gpu * s->sequences, cudaMemcpyHostToDevice, stream()));
}

static struct mx_step step_of(const struct sizes *s, const struct steps *t, const struct model *m,
                              bool recording)
{
	return (struct mx_step){.spans = t->spans,
	                        .n_spans = s->sequences,
	                        .n_rows = s->sequences,
	                        .longest = 1,
	                        .scratch = m->scratch,
	                        .tables = &t->tables,
	                        .recording = recording};
}

/* Records forward of all layers: one after the other, or side by side. */
static cudaGraphExec_t record(const struct sizes *s, const struct steps *t, const struct model *m,
                              bool side_by_side)
{
	const struct mx_step step = step_of(s, t, m, true);
	cudaStream_t all = stream(), side;
	cudaEvent_t fork, join;
	cudaGraph_t graph;
	cudaGraphExec_t exec;
	CUDA(cudaEventCreate(&fork));
	CUDA(cudaStreamBeginCapture(all, cudaStreamCaptureModeThreadLocal));
	CUDA(cudaEventRecord(fork, all));
	for (uint32_t i = 0; i < s->layers; i++) {
		if (side_by_side) {
			CUDA(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
			CUDA(cudaStreamWaitEvent(side, fork, 0));
			base->stream = side;
		}
		if (m->ops->forward(m->layers[i], &step, m->x, m->y) != MX_OK)
			exit(1);
		if (side_by_side) {
			CUDA(cudaEventCreate(&join));
			CUDA(cudaEventRecord(join, side));
			CUDA(cudaStreamWaitEvent(all, join, 0));
		}
	}
	base->stream = all;
	CUDA(cudaStreamEndCapture(all, &graph));
	CUDA(cudaGraphInstantiate(&exec, graph, 0));
	return exec;
}

struct times {
	double mean, median, worst;
};

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* Times steps: the tables, forward (unless NULL), settle (if asked for). */
static struct times run_steps(const struct sizes *s, const struct steps *t, const struct model *m,
                              cudaGraphExec_t forward, bool settle)
{
	static cudaEvent_t at[STEPS + 1];
	static double each[STEPS];
	const struct mx_step step = step_of(s, t, m, false);
	struct times out = {0};
	for (uint32_t i = 0; i <= STEPS; i++)
		CUDA(cudaEventCreate(&at[i]));
	for (int warm = 1; warm >= 0; warm--)
		for (uint32_t i = 0; i < STEPS; i++) {
			CUDA(cudaEventRecord(at[i], stream()));
			send(s, t, i);
			if (forward)
				CUDA(cudaGraphLaunch(forward, stream()));
			if (settle && m->ops->settle(m->layers, s->layers, &step, t->kept) != MX_OK)
				exit(1);
		}
	CUDA(cudaEventRecord(at[STEPS], stream()));
	CUDA(cudaStreamSynchronize(stream()));
	for (uint32_t i = 0; i < STEPS; i++)
		each[i] = since(at[i], at[i + 1]);
	out.mean = since(at[0], at[STEPS]) / STEPS;
	qsort(each, STEPS, sizeof *each, by_value);
	out.median = each[STEPS / 2];
	out.worst = each[STEPS - 1];
	return out;
}

/* Times a prompt as long as a sequence, of one of them, in one piece. Returns a layer's seconds. */
static double run_prompt(const struct sizes *s, struct steps *t, const struct model *m)
{
	struct mx_device_span *on_host = t->all;
	cudaEvent_t begin, end;
	on_host->pos = 0;
	on_host->n = s->length;
	on_host->kind = MX_SPAN_PREFILL;
	t->spans->n = s->length;
	t->spans->kind = MX_SPAN_PREFILL;
	struct mx_step step = step_of(s, t, m, false);
	step.n_spans = 1;
	step.n_rows = step.longest = s->length;
	send(s, t, 0);
	CUDA(cudaEventCreate(&begin));
	CUDA(cudaEventCreate(&end));
	for (int i = -1; i < REPEATS; i++) {
		if (i == 0)
			CUDA(cudaEventRecord(begin, stream()));
		for (uint32_t k = 0; k < s->layers; k++)
			if (m->ops->forward(m->layers[k], &step, m->x, m->y) != MX_OK)
				exit(1);
	}
	CUDA(cudaEventRecord(end, stream()));
	return since(begin, end) / REPEATS / s->layers;
}

/* Times the calls of resume of all layers of a sequence, and prints them. */
static void run_resume(const struct sizes *s, struct steps *t, const struct model *m)
{
	struct mx_step step = step_of(s, t, m, false);
	cudaEvent_t begin, end;
	t->all->pos = t->spans->pos = s->length / 12 * 11;
	t->all->n = t->spans->n = 0;
	step.n_spans = 1;
	step.n_rows = step.longest = 0;
	send(s, t, 0);
	CUDA(cudaEventCreate(&begin));
	CUDA(cudaEventCreate(&end));
	printf("resume at %u of %u, %u layers of %u channels, us a call:", t->spans->pos, s->length,
	       s->layers, s->width);
	double sum = 0;
	for (int warm = 1; warm >= 0; warm--)
		for (uint32_t progress = 0; progress != MX_RESUMED;) {
			CUDA(cudaEventRecord(begin, stream()));
			if (m->ops->resume(m->layers, s->layers, &step, &progress) != MX_OK)
				exit(1);
			CUDA(cudaEventRecord(end, stream()));
			const double seconds = since(begin, end);
			if (!warm)
				printf(" %.0f", seconds * 1e6);
			sum += warm ? 0 : seconds;
		}
	printf("; %.2f ms in all\n", sum * 1e3);
}

/* Times lazy in the middle of a sequence. *out_rate: bytes a second. */
static double run_lazy(const struct sizes *s, double *out_rate)
{
	const uint32_t channels = s->layers * s->width, n = s->length / 2;
	const size_t each = (size_t)channels * n * sizeof(float);
	float *z = random_memory(each * s->sequences), *h = random_memory(each), *y;
	cudaEvent_t begin, end;
	CUDA(cudaMalloc((void **)&y, (size_t)s->sequences * channels * sizeof *y));
	CUDA(cudaEventCreate(&begin));
	CUDA(cudaEventCreate(&end));
	for (int i = -2; i < REPEATS; i++) {
		if (i == 0)
			CUDA(cudaEventRecord(begin, stream()));
		CUDA(lazy_step(stream(), z, h, s->sequences, channels, n, y));
	}
	CUDA(cudaEventRecord(end, stream()));
	const double seconds = since(begin, end) / REPEATS;
	*out_rate = (double)each * (s->sequences + 1) / seconds;
	CUDA(cudaFree(z));
	CUDA(cudaFree(h));
	CUDA(cudaFree(y));
	return seconds;
}

static double read_rate(void)
{
	void *p = random_memory(ROOF_BYTES), *out;
	cudaEvent_t begin, end;
	CUDA(cudaMalloc(&out, 4));
	CUDA(cudaEventCreate(&begin));
	CUDA(cudaEventCreate(&end));
	for (int i = -2; i < REPEATS; i++) {
		if (i == 0)
			CUDA(cudaEventRecord(begin, stream()));
		CUDA(read_all(p, ROOF_BYTES, out, base->sms, stream()));
	}
	CUDA(cudaEventRecord(end, stream()));
	const double seconds = since(begin, end) / REPEATS;
	CUDA(cudaFree(p));
	return (double)ROOF_BYTES / seconds;
}

static void report(const char *what, const struct times *t, double lazy)
{
	printf("%-22s %8.1f us a step, median %.1f, worst %.1f (%.2f times the median); lazy / this "
	       "%.1f\n",
	       what, t->mean * 1e6, t->median * 1e6, t->worst * 1e6, t->worst / t->median,
	       lazy / t->mean);
}

int main(int argc, char **argv)
{
	struct sizes s = {.sequences = 8, .layers = 18, .width = 864, .length = 1 << 15};
	const char *folder = "mixers/.libs";
	static struct model m;
	struct mx_err err = {0};
	struct steps t;
	double rate = 0;
	for (int c; (c = getopt(argc, argv, "m:b:l:d:n:rps")) != -1;) {
		uint32_t *to = c == 'b'   ? &s.sequences
		               : c == 'l' ? &s.layers
		               : c == 'd' ? &s.width
		                          : &s.length;
		if (c == 'm')
			folder = optarg;
		else if (c == 'r')
			s.random = true;
		else if (c == 'p')
			s.prompt = true;
		else if (c == 's')
			s.resume = true;
		else if (c == '?')
			return 2;
		else
			*to = (uint32_t)strtoul(optarg, NULL, 10);
	}
	if (!s.sequences || s.sequences > 8 || !s.layers || s.layers > MAX_LAYERS || !s.width ||
	    s.length < 4096 || s.length % 256) {
		fprintf(stderr,
		        "1 to 8 sequences, 1 to %d layers, a multiple of 256 from 4096 positions on\n",
		        MAX_LAYERS);
		return 2;
	}
	base = bare_device_open();
	const double roof = read_rate(), lazy = s.prompt || s.resume ? 0 : run_lazy(&s, &rate);
	if (lazy > 0)
		printf("%u sequences %s, %u layers of %u channels, %u positions\n", s.sequences,
		       s.random ? "at random positions" : "in lock-step", s.layers, s.width, s.length);
	if (lazy > 0)
		printf("lazy %.0f us a step, %.2f TB/s, %.0f %% of a loop that reads\n", lazy * 1e6,
		       rate * 1e-12, 100 * rate / roof);
	m.ops = bare_device_module(folder, "hyena");
	for (uint32_t i = 0; i < s.layers; i++)
		open_layer(&m, &s, i);
	if (m.ops->prepare(m.layers, s.layers, &err) != MX_OK) {
		fprintf(stderr, "%s\n", err.text);
		return 1;
	}
	make_steps(&s, &t);
	send(&s, &t, 0);
	CUDA(cudaStreamSynchronize(stream()));
	if (s.prompt) {
		printf("a prompt of %u, %u channels: %.3f ms a layer\n", s.length, s.width,
		       run_prompt(&s, &t, &m) * 1e3);
		return 0;
	}
	if (s.resume) {
		run_resume(&s, &t, &m);
		return 0;
	}
	/* Tables are sent with every step. Settle is what lazy does: sums over all inputs before a
	 * position, for all layers at once. Forward adds the position's own, as it would behind lazy.
	 */
	struct times times = run_steps(&s, &t, &m, NULL, false);
	report("tables alone", &times, lazy);
	times = run_steps(&s, &t, &m, NULL, true);
	report("settle, all layers", &times, lazy);
	times = run_steps(&s, &t, &m, record(&s, &t, &m, true), true);
	report("layers side by side", &times, lazy);
	times = run_steps(&s, &t, &m, record(&s, &t, &m, false), true);
	report("layer by layer", &times, lazy);
	return 0;
}
