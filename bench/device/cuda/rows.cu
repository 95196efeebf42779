/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operators on rows and sampling on the CUDA device, in chains of one recording, as a step runs
 * them, compared with the memory bandwidth.
 *
 *   bench/device/cuda/rows [-m part of a name]
 *
 * A line is the operator, rows and columns, us of one, GB/s of what it must read and write, and the
 * share of the read roof. The arrays of a chain go round a set; small ones stay in the second-level
 * cache, as they do in a step. "drawn" is a whole step of sampling as the host sees it: prepare,
 * draw and the wait for the tokens.
 */
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "bench/device/cuda/read.h"
#include "device/cuda/cuda.h"
extern "C" {
#include "device/open.h"
}

enum { TEST = 1, BENCH = 2 };

struct rows_case {
	uint32_t n, width, uses;
};

static const rows_case cases[] = {
#define ROWS(n, width, uses) {n, width, uses},
#include "device/cuda/rows_cases.def"
#undef ROWS
};

#define VOCAB      128256u
#define MAX_ROWS   256u
#define SET_BYTES  ((size_t)256 << 20) /* of one array of a chain */
#define ARRAYS     3
#define REPLAYS    7
#define COUNTS     1000u /* distinct tokens of a sequence with penalties */
#define ROOF_BYTES ((size_t)2 << 30)

static void must(bool ok, const char *what)
{
	if (!ok) {
		fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(cudaGetLastError()));
		exit(1);
	}
}

static void cuda(cudaError_t e, const char *what)
{
	must(e == cudaSuccess, what);
}

/* Fills with approximately normal numbers, as bf16 or f32. */
template <typename T> static __global__ void fill(T *to, size_t n, float scale, uint32_t seed)
{
	for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
	     i += (size_t)gridDim.x * blockDim.x) {
		uint32_t h = (uint32_t)i * 0x9e3779b9u ^ (uint32_t)(i >> 32) ^ seed;
		float sum = 0;
		for (int k = 0; k < 4; k++) {
			h = (h ^ h >> 16) * 0x85ebca6bu;
			h = (h ^ h >> 13) * 0xc2b2ae35u;
			sum += (float)(int32_t)h * 0x1p-31f;
		}
		const float v = sum * 0.866f * scale;
		if (sizeof(T) == 4)
			to[i] = (T)v;
		else
			to[i] = (T)(__float_as_uint(v) >> 16);
	}
}

struct bench {
	mx_device *d;
	cudaStream_t stream;
	const char *match;
	double roof;          /* bytes a second */
	char *arrays[ARRAYS]; /* SET_BYTES each */
	float *weight;
	uint32_t *ids;
};

/* Returns the part of an array that call `i` of a chain uses. */
static void *turn(const bench &b, int array, size_t bytes, size_t i)
{
	const size_t sets = std::max((size_t)1, SET_BYTES / bytes);
	return b.arrays[array] + i % sets * bytes;
}

/* Returns the seconds of one of `chain` recorded calls of f(i). */
template <typename F> static double seconds(const bench &b, int chain, F f)
{
	const mx_ops *ops = b.d->ops;
	mx_recording *recording = NULL;
	cudaEvent_t begin, end;
	std::vector<float> all;
	must(f(0) == MX_OK && ops->wait(b.d) == MX_OK, "the first call");
	must(ops->record(b.d) == MX_OK, "record");
	for (int i = 0; i < chain; i++)
		must(f((size_t)i) == MX_OK, "a call");
	must(ops->recorded(b.d, &recording) == MX_OK, "recorded");
	cuda(cudaEventCreate(&begin), "event");
	cuda(cudaEventCreate(&end), "event");
	for (int i = -1; i < REPLAYS; i++) {
		float ms;
		cuda(cudaEventRecord(begin, b.stream), "event");
		must(ops->replay(b.d, recording) == MX_OK, "replay");
		cuda(cudaEventRecord(end, b.stream), "event");
		cuda(cudaEventSynchronize(end), "what is measured");
		cuda(cudaEventElapsedTime(&ms, begin, end), "event");
		if (i >= 0)
			all.push_back(ms);
	}
	cuda(cudaEventDestroy(begin), "event");
	cuda(cudaEventDestroy(end), "event");
	ops->forget(b.d, recording);
	std::sort(all.begin(), all.end());
	return all[all.size() / 2] * 1e-3 / chain;
}

template <typename F>
static void measure(const bench &b, const char *name, uint32_t n, uint32_t width, double bytes, F f)
{
	if (b.match && !strstr(name, b.match))
		return;
	const double about = std::max(bytes / b.roof, 3e-6);
	const double s = seconds(b, (int)std::max(8.0, std::min(400.0, 3e-3 / about)), f);
	printf("%-24s %5u x %-6u %9.2f us %8.0f GB/s %5.1f %%\n", name, n, width, s * 1e6,
	       bytes / s * 1e-9, 100 * bytes / s / b.roof);
	fflush(stdout);
}

static void measure_rows(const bench &b, uint32_t n, uint32_t width)
{
	const mx_ops *ops = b.d->ops;
	mx_device *d = b.d;
	const size_t bytes = (size_t)n * width * 2;
	const double one = (double)bytes, norm = 4.0 * width;
	measure(b, "rmsnorm", n, width, 2 * one + norm, [&](size_t i) {
		return ops->rmsnorm(d, turn(b, 0, bytes, i), b.weight, 1e-5f, n, width,
		                    turn(b, 1, bytes, i));
	});
	measure(b, "add_rmsnorm", n, width, 4 * one + norm, [&](size_t i) {
		return ops->add_rmsnorm(d, turn(b, 0, bytes, i), turn(b, 1, bytes, i), b.weight, 1e-5f, n,
		                        width, turn(b, 2, bytes, i));
	});
	if (2 * bytes <= SET_BYTES || n <= 4096)
		measure(b, "silu_mul", n, width, 3 * one, [&](size_t i) {
			const char *gate = (const char *)turn(b, 0, 2 * bytes, i);
			return ops->silu_mul(d, gate, 2 * width, gate + 2 * width, 2 * width, n, width,
			                     turn(b, 1, bytes, i), width);
		});
	else /* gate and up in arrays of their own: together they are larger than a set */
		measure(b, "silu_mul", n, width, 3 * one, [&](size_t i) {
			return ops->silu_mul(d, turn(b, 0, bytes, i), width, turn(b, 1, bytes, i), width, n,
			                     width, turn(b, 2, bytes, i), width);
		});
	const mx_rope rope = {b.weight, 128, 1};
	measure(b, "rope", n, width, 2 * one, [&](size_t i) {
		return ops->rope(d, turn(b, 0, bytes, i), width, n, width / 128, 128, &rope, b.ids, NULL,
		                 0);
	});
	measure(b, "add_scaled", n, width, 3 * one, [&](size_t i) {
		return ops->add_scaled(d, turn(b, 0, bytes, i), turn(b, 1, bytes, i), bytes / 2, 1e-3f);
	});
	const mx_weight table = {MX_BF16, (uint32_t)(SET_BYTES / 2 / width), width, b.arrays[0], NULL};
	measure(b, "embed", n, width, 2 * one, [&](size_t i) {
		return ops->embed(d, &table, (const int32_t *)b.ids, n, turn(b, 1, bytes, i));
	});
}

/* ---- sampling ---- */

static const struct kind {
	const char *name;
	float temperature, top_p, min_p;
	int32_t top_k;
	bool penalties;
} kinds[] = {
	{"draw greedy", 0, 1, 0, 0, false},          {"draw", 1, 1, 0, 0, false},
	{"draw top_p", 1, 0.9f, 0, 0, false},        {"draw top_k", 1, 1, 0, 50, false},
	{"draw top_p top_k", 1, 0.9f, 0, 50, false}, {"draw penalties top_p", 1, 0.9f, 0, 0, true},
	{"draw penalties greedy", 0, 1, 0, 0, true},
};

static double now(void)
{
	timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Measures consecutive sampling steps on the host's clock. */
static void measure_drawn(const bench &b, const char *name, float *logits, uint32_t n,
                          const mx_sample_row *rows)
{
	std::vector<int32_t> tokens(n);
	std::vector<double> all, prepare;
	const mx_ops *ops = b.d->ops;
	for (int i = 0; i < 60; i++) {
		const double begin = now();
		must(ops->sample_prepare(b.d, rows, n) == MX_OK, "prepare");
		const double prepared = now();
		must(ops->sample_draw(b.d, logits, VOCAB, n, VOCAB) == MX_OK, "draw");
		must(ops->sample_drawn(b.d, n, tokens.data()) == MX_OK, "drawn");
		all.push_back(now() - begin);
		prepare.push_back(prepared - begin);
	}
	std::sort(all.begin(), all.end());
	std::sort(prepare.begin(), prepare.end());
	printf("%-24s %5u x %-6u %9.2f us, of which prepare %.2f us: drawn\n", name, n, VOCAB,
	       all[all.size() / 2] * 1e6, prepare[prepare.size() / 2] * 1e6);
}

static void measure_sampling(const bench &b, uint32_t n)
{
	const size_t row = (size_t)VOCAB * sizeof(float), bytes = n * row;
	const size_t sets = std::max((size_t)2, SET_BYTES / bytes);
	float *logits;
	cuda(cudaMalloc((void **)&logits, sets * bytes), "memory");
	fill<<<2048, 256>>>(logits, sets * bytes / 4, 3.0f, 7);
	cuda(cudaDeviceSynchronize(), "fill");
	std::vector<mx_token_count> counts(COUNTS);
	for (uint32_t i = 0; i < COUNTS; i++)
		counts[i] = {(int32_t)(i * 127), 1, i % 3};
	for (const kind &k : kinds) {
		std::vector<mx_sampling> sampling(n);
		std::vector<mx_sample_row> rows(n);
		if (b.match && !strstr(k.name, b.match))
			continue;
		for (uint32_t i = 0; i < n; i++) {
			sampling[i] = {};
			sampling[i].temperature = k.temperature;
			sampling[i].top_p = k.top_p;
			sampling[i].min_p = k.min_p;
			sampling[i].top_k = k.top_k;
			sampling[i].repetition_penalty = k.penalties ? 1.1f : 1;
			sampling[i].frequency_penalty = k.penalties ? 0.1f : 0;
			sampling[i].seed = i;
			rows[i] = {};
			rows[i].sampling = &sampling[i];
			rows[i].position = i;
			rows[i].counts = counts.data();
			rows[i].n_counts = k.penalties ? COUNTS : 0;
		}
		must(b.d->ops->sample_prepare(b.d, rows.data(), n) == MX_OK, "prepare");
		measure(b, k.name, n, VOCAB, (double)bytes, [&](size_t i) {
			return b.d->ops->sample_draw(b.d, logits + i % sets * n * VOCAB, VOCAB, n, VOCAB);
		});
		measure_drawn(b, k.name, logits, n, rows.data());
	}
	std::vector<int32_t> tokens(n, 17);
	std::vector<uint32_t> n_top(n, 20);
	std::vector<mx_logprob> probs(n);
	std::vector<double> all;
	for (int i = 0; i < 40 && (!b.match || strstr("logprobs", b.match)); i++) {
		const double begin = now();
		must(b.d->ops->logprobs(b.d, logits, VOCAB, n, VOCAB, tokens.data(), n_top.data(),
		                        probs.data()) == MX_OK,
		     "logprobs");
		all.push_back(now() - begin);
	}
	std::sort(all.begin(), all.end());
	if (!all.empty())
		printf("%-24s %5u x %-6u %9.2f us with the wait\n", "logprobs, 20 likeliest", n, VOCAB,
		       all[all.size() / 2] * 1e6);
	cuda(cudaFree(logits), "free");
}

/* ---- all ---- */

static double measure_roof(int sms)
{
	void *p;
	unsigned *out;
	cudaEvent_t begin, end;
	float best = 1e9f, ms;
	cuda(cudaMalloc(&p, ROOF_BYTES), "memory");
	cuda(cudaMalloc((void **)&out, 4), "memory");
	cuda(cudaEventCreate(&begin), "event");
	cuda(cudaEventCreate(&end), "event");
	fill<<<2048, 256>>>((float *)p, ROOF_BYTES / 4, 1.0f, 1);
	for (int i = 0; i < 6; i++) {
		cuda(cudaEventRecord(begin), "event");
		cuda(read_all(p, ROOF_BYTES, out, sms, 0), "read");
		cuda(cudaEventRecord(end), "event");
		cuda(cudaEventSynchronize(end), "read");
		cuda(cudaEventElapsedTime(&ms, begin, end), "event");
		best = std::min(best, ms);
	}
	cuda(cudaFree(p), "free");
	cuda(cudaFree(out), "free");
	return ROOF_BYTES / (best * 1e-3);
}

int main(int argc, char **argv)
{
	bench b = {};
	int n = 0;
	for (int c; (c = getopt(argc, argv, "m:")) != -1;) {
		if (c != 'm') {
			fprintf(stderr, "usage: rows [-m part of a name]\n");
			return 2;
		}
		b.match = optarg;
	}
	if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) {
		printf("no GPU\n");
		return 77;
	}
	mx_device_options options = {};
	mx_err err = {};
	options.cuda.act_dtype = MX_BF16;
	options.cuda.max_samples = MAX_ROWS;
	options.cuda.vocab = VOCAB;
	if (mx_device_open("cuda:0", &options, &b.d, &err) != MX_OK) {
		fprintf(stderr, "%s\n", err.text);
		return 1;
	}
	b.stream = (cudaStream_t)mx_cuda_base(b.d)->stream;
	b.roof = measure_roof(mx_cuda_base(b.d)->sms);
	printf("# %s; reads %.3f TB/s\n", b.d->info.isa, b.roof * 1e-12);
	for (int i = 0; i < ARRAYS; i++) {
		cuda(cudaMalloc((void **)&b.arrays[i], SET_BYTES), "memory");
		fill<<<2048, 256>>>((uint16_t *)b.arrays[i], SET_BYTES / 2, 1.0f, 2u + (uint32_t)i);
	}
	cuda(cudaMalloc((void **)&b.weight, 16384 * 4), "memory");
	fill<<<64, 256>>>(b.weight, 16384, 1.0f, 9);
	std::vector<uint32_t> ids(8192);
	for (uint32_t i = 0; i < ids.size(); i++)
		ids[i] = i * 37 % 8000;
	cuda(cudaMalloc((void **)&b.ids, ids.size() * 4), "memory");
	cuda(cudaMemcpy(b.ids, ids.data(), ids.size() * 4, cudaMemcpyHostToDevice), "ids");
	cuda(cudaDeviceSynchronize(), "fill");
	for (const rows_case &c : cases)
		if (c.uses & BENCH)
			measure_rows(b, c.n, c.width);
	for (uint32_t rows : {1u, 64u, 256u})
		measure_sampling(b, rows);
	b.d->ops->destroy(b.d);
	return 0;
}
