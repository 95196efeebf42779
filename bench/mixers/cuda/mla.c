/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures the CUDA module of mla without its products with the input and the output: decoding in
 * GB/s of latents beside the reading speed of a loop, prompts in TFLOP/s of the absorbed form's
 * causal half. The products of heads with UK and UV are in it. Times are medians of recorded steps.
 *
 *   bench/mixers/cuda/mla [-m folder of mla-cuda.so] [-x]     -x: deterministic
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "bench/device/cuda/read.h"
#include "tests/mixers/mla/cuda/mla_rig.h"

#define REPEATS    10
#define MAX_STEPS  16
#define COLD_BYTES (1ull << 28) /* more than any cache holds */
#define ROOF_BYTES (1ull << 31)

static const char *folder = "mixers/.libs";
static bool deterministic;

static int by_value(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;
	return (x > y) - (x < y);
}

/* Returns the median seconds of a launch of what the stream has captured. */
static double captured_seconds(cudaStream_t stream)
{
	cudaGraph_t graph;
	cudaGraphExec_t exec;
	cudaEvent_t begin, end;
	float ms[REPEATS];
	RIG_CUDA(cudaStreamEndCapture(stream, &graph));
	RIG_CUDA(cudaGraphInstantiate(&exec, graph, 0));
	RIG_CUDA(cudaEventCreate(&begin));
	RIG_CUDA(cudaEventCreate(&end));
	for (int i = -2; i < REPEATS; i++) {
		RIG_CUDA(cudaEventRecord(begin, stream));
		RIG_CUDA(cudaGraphLaunch(exec, stream));
		RIG_CUDA(cudaEventRecord(end, stream));
		RIG_CUDA(cudaEventSynchronize(end));
		if (i >= 0)
			RIG_CUDA(cudaEventElapsedTime(&ms[i], begin, end));
	}
	RIG_CUDA(cudaEventDestroy(begin));
	RIG_CUDA(cudaEventDestroy(end));
	RIG_CUDA(cudaGraphExecDestroy(exec));
	RIG_CUDA(cudaGraphDestroy(graph));
	qsort(ms, REPEATS, sizeof *ms, by_value);
	return ms[REPEATS / 2] * 1e-3;
}

static double read_rate(int sms)
{
	unsigned char *p;
	cudaStream_t stream;
	RIG_CUDA(cudaMalloc((void **)&p, ROOF_BYTES + 256));
	RIG_CUDA(cudaMemset(p, 1, ROOF_BYTES + 256));
	RIG_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	RIG_CUDA(cudaDeviceSynchronize());
	RIG_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
	RIG_CUDA(read_all(p, ROOF_BYTES, (unsigned *)(p + ROOF_BYTES), sms, stream));
	const double rate = (double)ROOF_BYTES / captured_seconds(stream);
	RIG_CUDA(cudaStreamDestroy(stream));
	RIG_CUDA(cudaFree(p));
	return rate;
}

/* Returns the seconds of a step of n_seqs spans of n tokens that end at `tokens`; several are
 * recorded, on pages of their own. */
static double step_seconds(uint32_t heads, uint32_t n_seqs, uint32_t n, uint32_t tokens,
                           size_t *token_bytes)
{
	struct rig r;
	const uint32_t a_seq = (tokens + RIG_PAGE - 1) / RIG_PAGE, list = a_seq * n_seqs;
	uint64_t steps = n > 1 ? 1 : COLD_BYTES / ((uint64_t)list * RIG_PAGE * 1152) + 1;
	steps = steps < 2 && n == 1 ? 2 : steps > MAX_STEPS ? MAX_STEPS : steps;
	const struct rig_layer l = {.heads = heads,
	                            .rank = 512,
	                            .nope = 128,
	                            .rope = 64,
	                            .v = 128,
	                            .deterministic = deterministic,
	                            .max_context = tokens,
	                            .max_rows = n_seqs * n,
	                            .n_pages = list * (uint32_t)steps};
	rig_open(&r, folder, &l);
	r.products = false;
	RIG_CUDA(cudaMemset(r.pages, 0, (size_t)l.n_pages * RIG_PAGE * r.state.bytes_per_token));
	RIG_CUDA(cudaMemset(r.scratch, 0, r.state.scratch_bytes));
	uint32_t *pages = calloc(l.n_pages, sizeof *pages), *on_gpu;
	struct rig_span *spans = calloc(n_seqs, sizeof *spans);
	for (uint32_t i = 0; i < l.n_pages; i++) /* scattered */
		pages[i] = (uint32_t)((uint64_t)i * 7919 % l.n_pages);
	for (uint32_t i = 0; i < n_seqs; i++)
		spans[i] = (struct rig_span){n, tokens - n, pages + i * a_seq, a_seq};
	RIG_CUDA(cudaMalloc((void **)&on_gpu, l.n_pages * sizeof *pages));
	RIG_CUDA(cudaMemcpy(on_gpu, pages, l.n_pages * sizeof *pages, cudaMemcpyHostToDevice));
	rig_tables(&r, spans, n_seqs);
	cudaStream_t stream = (cudaStream_t)r.base.stream;
	RIG_CUDA(cudaDeviceSynchronize());
	RIG_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
	for (uint32_t i = 0; i < steps; i++) {
		r.tables.pages = on_gpu + (size_t)i * list;
		rig_forward(&r, spans, n_seqs, n == 1);
	}
	const double s = captured_seconds(stream) / (double)steps;
	*token_bytes = r.state.bytes_per_token;
	RIG_CUDA(cudaFree(on_gpu));
	free(pages);
	free(spans);
	rig_close(&r);
	return s;
}

int main(int argc, char **argv)
{
	static const uint32_t decodes[][2] = {{1, 1024},  {1, 8192},  {1, 131072}, {8, 8192},
	                                      {32, 4096}, {64, 4096}, {128, 2048}, {256, 2048}};
	static const uint32_t heads[] = {16, 128};
	for (int k; (k = getopt(argc, argv, "m:x")) != -1;) {
		if (k == 'm')
			folder = optarg;
		else if (k == 'x')
			deterministic = true;
		else
			return 2;
	}
	if (!rig_gpu()) {
		printf("no GPU\n");
		return 77;
	}
	struct cudaDeviceProp prop;
	size_t bytes;
	RIG_CUDA(cudaGetDeviceProperties(&prop, 0));
	const double roof = read_rate(prop.multiProcessorCount);
	printf("%s%s; a loop reads %.0f GB/s\n", prop.name, deterministic ? ", deterministic" : "",
	       roof / 1e9);
	for (int h = 0; h < 2; h++) {
		for (size_t i = 0; i < sizeof decodes / sizeof *decodes; i++) {
			const uint32_t n = decodes[i][0], tokens = decodes[i][1];
			const double s = step_seconds(heads[h], n, 1, tokens, &bytes);
			const double all = (double)n * tokens * (double)bytes;
			printf("decode %3u heads %4u x %6u  %8.1f us  %6.0f GB/s  %5.1f %%  %5.0f TFLOP/s\n",
			       heads[h], n, tokens, s * 1e6, all / s / 1e9, 100 * all / s / roof,
			       2.0 * heads[h] * (576 + 512) * n * tokens / s / 1e12);
			fflush(stdout);
		}
		for (uint32_t n = 1024; n <= 8192; n *= 2) {
			const double s = step_seconds(heads[h], 1, n, n, &bytes);
			printf("prompt %3u heads    1 x %6u  %8.1f us  %5.0f TFLOP/s\n", heads[h], n, s * 1e6,
			       2.0 * heads[h] * (576 + 512) * n * (n + 1) / 2 / s / 1e12);
			fflush(stdout);
		}
	}
	return 0;
}
