/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures the CUDA attention module beside the roof: decoding (norm, rope and append, attention,
 * merge: all but the products) in GB/s of keys and values beside the reading speed of a loop,
 * prompts in TFLOP/s of the causal half. Times are medians of many recorded steps.
 *
 *   bench/mixers/cuda/attention [-m folder of attention-cuda.so] [-d | -p] [-s] [-8] [-x]
 *     -d  decode only   -p  prefill only   -s  half of the sizes   -8  keys in fp8
 *     -x  deterministic
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "bench/device/cuda/read.h"
#include "tests/mixers/attention/cuda/attention_rig.h"

#define PAGE_TOKENS 32
#define REPEATS     20           /* recordings */
#define MAX_STEPS   32           /* steps in a recording, each on pages of its own: */
#define COLD_BYTES  (1ull << 28) /* more than any cache holds */
#define ROOF_BYTES  (1ull << 31)

struct options {
	const char *modules;
	bool decode, prefill, few, deterministic;
	enum mx_dtype kv;
};

static int by_value(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;
	return (x > y) - (x < y);
}

static float median(float *v, size_t n)
{
	qsort(v, n, sizeof(*v), by_value);
	return v[n / 2];
}

static void *allocate(size_t n, size_t size)
{
	void *p = calloc(n, size);
	if (!p)
		abort();
	return p;
}

/* Returns the median seconds of a launch of the graph. */
static double graph_seconds(cudaGraphExec_t exec, cudaStream_t stream)
{
	cudaEvent_t begin, end;
	float ms[REPEATS];
	ATT_CUDA(cudaEventCreate(&begin));
	ATT_CUDA(cudaEventCreate(&end));
	for (int i = -3; i < REPEATS; i++) {
		ATT_CUDA(cudaEventRecord(begin, stream));
		ATT_CUDA(cudaGraphLaunch(exec, stream));
		ATT_CUDA(cudaEventRecord(end, stream));
		ATT_CUDA(cudaEventSynchronize(end));
		if (i >= 0)
			ATT_CUDA(cudaEventElapsedTime(&ms[i], begin, end));
	}
	ATT_CUDA(cudaEventDestroy(begin));
	ATT_CUDA(cudaEventDestroy(end));
	return median(ms, REPEATS) * 1e-3;
}

/* Returns the bytes a second that a loop reads. */
static double read_rate(int sms)
{
	unsigned char *p;
	cudaStream_t stream;
	cudaGraph_t graph;
	cudaGraphExec_t exec;
	ATT_CUDA(cudaMalloc((void **)&p, ROOF_BYTES + 256));
	ATT_CUDA(cudaMemset(p, 1, ROOF_BYTES + 256));
	ATT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	ATT_CUDA(cudaDeviceSynchronize());
	ATT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
	ATT_CUDA(read_all(p, ROOF_BYTES, (unsigned *)(p + ROOF_BYTES), sms, stream));
	ATT_CUDA(cudaStreamEndCapture(stream, &graph));
	ATT_CUDA(cudaGraphInstantiate(&exec, graph, 0));
	double rate = (double)ROOF_BYTES / graph_seconds(exec, stream);
	ATT_CUDA(cudaGraphExecDestroy(exec));
	ATT_CUDA(cudaGraphDestroy(graph));
	ATT_CUDA(cudaStreamDestroy(stream));
	ATT_CUDA(cudaFree(p));
	return rate;
}

/* Fills device memory with small random numbers: copies of one piece. */
static void fill(unsigned char *to, size_t bytes, enum mx_dtype type)
{
	size_t piece = 1 << 20;
	struct rng g = {88172645463325252ull};
	unsigned char *host = allocate(piece, 1);
	for (size_t i = 0; i < piece / mx_dtype_size(type); i++) {
		float f = rng_normal(&g);
		if (type == MX_F32)
			((float *)host)[i] = f;
		else if (type == MX_BF16)
			((uint16_t *)host)[i] = mx_f32_to_bf16(f);
		else /* e4m3: 2^-2 to 2^1, any sign */
			host[i] = (unsigned char)((rng_next(&g) & 0x80) | (0x28 + rng_below(&g, 0x18)));
	}
	size_t done = piece < bytes ? piece : bytes;
	ATT_CUDA(cudaMemcpy(to, host, done, cudaMemcpyHostToDevice));
	while (done < bytes) {
		size_t n = done < bytes - done ? done : bytes - done;
		ATT_CUDA(cudaMemcpy(to + done, to, n, cudaMemcpyDeviceToDevice));
		done += n;
	}
	ATT_CUDA(cudaDeviceSynchronize());
	free(host);
}

static struct att_case llama(const struct options *o)
{
	return (struct att_case){.name = "32/8 heads of 128",
	                         .heads = 32,
	                         .kv_heads = 8,
	                         .head_dim = 128,
	                         .act = MX_BF16,
	                         .kv = o->kv,
	                         .page_tokens = PAGE_TOKENS,
	                         .rope = true};
}

/* Returns the seconds of a step of n_rows. Several steps are recorded, each with a page list of
 * its own; the `lists` lists of `list` pages are in device memory. */
static double step_seconds(struct att_rig *r, struct att_span *spans, uint32_t n_spans,
                           uint32_t n_rows, bool recording, const uint32_t *lists, uint32_t list,
                           uint32_t n)
{
	cudaStream_t stream = (cudaStream_t)r->base.stream;
	const uint32_t *own = r->tables.pages;
	cudaGraph_t graph;
	cudaGraphExec_t exec;
	att_tables(r, spans, n_spans);
	ATT_CUDA(cudaStreamSynchronize(stream));
	ATT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
	for (uint32_t i = 0; i < n; i++) {
		r->tables.pages = lists + (size_t)i * list;
		att_forward(r, n_rows, n_spans, recording);
	}
	r->tables.pages = own;
	ATT_CUDA(cudaStreamEndCapture(stream, &graph));
	ATT_CUDA(cudaGraphInstantiate(&exec, graph, 0));
	double seconds = graph_seconds(exec, stream) / n;
	ATT_CUDA(cudaGraphExecDestroy(exec));
	ATT_CUDA(cudaGraphDestroy(graph));
	return seconds;
}

/* All pages of a pool in random order, on the host and (owned) on the device. */
static uint32_t *scatter(uint32_t n, uint32_t **on_device)
{
	struct rng g = {2463534242ull};
	uint32_t *pages = allocate(n, sizeof(*pages));
	for (uint32_t i = 0; i < n; i++)
		pages[i] = i;
	for (uint32_t i = n; i > 1; i--) {
		uint32_t j = rng_below(&g, i), t = pages[i - 1];
		pages[i - 1] = pages[j];
		pages[j] = t;
	}
	ATT_CUDA(cudaMalloc((void **)on_device, n * sizeof(*pages)));
	ATT_CUDA(cudaMemcpy(*on_device, pages, n * sizeof(*pages), cudaMemcpyHostToDevice));
	return pages;
}

static void bench_decode(const struct options *o, uint32_t n_seqs, uint32_t tokens, double roof)
{
	struct att_case c = llama(o);
	struct att_rig r;
	uint32_t a_seq = (tokens + PAGE_TOKENS - 1) / PAGE_TOKENS, list = a_seq * n_seqs;
	uint32_t of_page = PAGE_TOKENS * 2 * 8 * 128 * (uint32_t)mx_dtype_size(c.kv);
	uint32_t n = (uint32_t)(COLD_BYTES / ((uint64_t)list * of_page));
	uint32_t *on_device;
	n = n < 2 ? 2 : n > MAX_STEPS ? MAX_STEPS : n;
	const struct att_limits limits = {.max_context = tokens,
	                                  .max_rows = n_seqs,
	                                  .max_spans = n_seqs,
	                                  .n_pages = list * n,
	                                  .deterministic = o->deterministic};
	att_open(&r, o->modules, &c, &limits);
	r.products = false;
	fill(r.pages, r.pages_bytes, c.kv);
	fill(r.scratch, r.state.scratch_bytes, c.act);
	uint32_t *pages = scatter(list * n, &on_device);
	struct att_span *spans = allocate(n_seqs, sizeof(*spans));
	for (uint32_t i = 0; i < n_seqs; i++)
		spans[i] = (struct att_span){1, tokens - 1, pages + i * a_seq, a_seq};
	double s = step_seconds(&r, spans, n_seqs, n_seqs, true, on_device, list, n);
	double bytes = (double)n_seqs * tokens * (double)r.state.bytes_per_token;
	printf("decode  %4u x %7u  %8.1f MB  %8.1f us  %6.0f GB/s  %5.1f %%\n", n_seqs, tokens,
	       bytes / 1e6, s * 1e6, bytes / s / 1e9, 100 * bytes / s / roof);
	fflush(stdout);
	ATT_CUDA(cudaFree(on_device));
	free(pages);
	free(spans);
	att_close(&r);
}

static void bench_prefill(const struct options *o, uint32_t tokens)
{
	struct att_case c = llama(o);
	struct att_rig r;
	uint32_t n_pages = (tokens + PAGE_TOKENS - 1) / PAGE_TOKENS;
	const struct att_limits limits = {.max_context = tokens,
	                                  .max_rows = tokens,
	                                  .max_spans = 1,
	                                  .n_pages = n_pages,
	                                  .deterministic = o->deterministic};
	att_open(&r, o->modules, &c, &limits);
	r.products = false;
	fill(r.scratch, r.state.scratch_bytes, c.act);
	uint32_t *on_device, *pages = scatter(n_pages, &on_device);
	struct att_span span = {tokens, 0, pages, n_pages};
	double s = step_seconds(&r, &span, 1, tokens, false, on_device, n_pages, 1);
	double flop = 4.0 * 128 * 32 * ((double)tokens * (tokens + 1) / 2);
	printf("prefill    1 x %7u  %8.1f us  %6.0f TFLOP/s\n", tokens, s * 1e6, flop / s / 1e12);
	fflush(stdout);
	ATT_CUDA(cudaFree(on_device));
	free(pages);
	att_close(&r);
}

int main(int argc, char **argv)
{
	static const struct {
		uint32_t n, tokens;
	} decodes[] = {/* every second one with -s */
	               {1, 2048},   {1, 4096},   {1, 16384},  {1, 8192},  {1, 131072}, {1, 32768},
	               {1, 524288}, {8, 4096},   {8, 2048},   {32, 1024}, {16, 2048},  {64, 512},
	               {64, 2048},  {128, 1024}, {256, 2048}, {1, 300},   {8, 131072}, {300, 1000}};
	struct options o = {"mixers/.libs", true, true, false, false, MX_BF16};
	for (int k; (k = getopt(argc, argv, "m:dps8x")) != -1;) {
		switch (k) {
		case 'm': o.modules = optarg; break;
		case 'd': o.prefill = false; break;
		case 'p': o.decode = false; break;
		case 's': o.few = true; break;
		case '8': o.kv = MX_F8E4M3; break;
		case 'x': o.deterministic = true; break;
		default: return 2;
		}
	}
	if (!att_gpu()) {
		printf("no GPU\n");
		return 77;
	}
	struct cudaDeviceProp prop;
	ATT_CUDA(cudaGetDeviceProperties(&prop, 0));
	double roof = read_rate(prop.multiProcessorCount);
	printf("%s, keys in %s%s; a loop reads %.0f GB/s\n", prop.name, mx_dtype_name(o.kv),
	       o.deterministic ? ", deterministic" : "", roof / 1e9);
	for (size_t i = 0; o.decode && i < sizeof(decodes) / sizeof(*decodes); i += 1 + o.few)
		bench_decode(&o, decodes[i].n, decodes[i].tokens, roof);
	for (uint32_t n = 1024; o.prefill && n <= 32768; n *= o.few ? 4 : 2)
		bench_prefill(&o, n);
	return 0;
}
