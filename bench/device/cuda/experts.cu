/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mixtures of experts on the CUDA device, in chains of one recording, as the layers of a step run
 * them, compared with the memory bandwidth.
 *
 *   bench/device/cuda/experts [-m part of a name] [-q form] [-n rows]
 *     -q  matrices packed in this form of tests/device/quant_source.c, counted from 0
 *
 * Each row chooses its experts at random, other ones in each layer. A line is the case, rows, us of
 * one layer without its router and shared expert, experts that some row chose, TB/s of their
 * matrices and the share of the read roof, TFLOP/s.
 */
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

#include "bench/device/cuda/read.h"
#include "device/cuda/experts_cases.h"
#include "device/cuda/cuda.h"
extern "C" {
#include "device/open.h"
#include "tests/device/quant_source.h"
}

static const uint32_t numbers[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096};

#define LAYERS     6 /* their matrices exceed the caches in every case */
#define MAX_ROWS   4096u
#define REPLAYS    7
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

static __global__ void fill(uint16_t *to, size_t n, float scale, uint32_t seed)
{
	for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
	     i += (size_t)gridDim.x * blockDim.x) {
		uint32_t h = (uint32_t)i * 0x9e3779b9u ^ (uint32_t)(i >> 32) ^ seed;
		h = (h ^ h >> 16) * 0x85ebca6bu;
		h = (h ^ h >> 13) * 0xc2b2ae35u;
		to[i] = (uint16_t)(__float_as_uint((float)(int32_t)(h ^ h >> 16) * 0x1p-31f * scale) >> 16);
	}
}

static int form = -1;     /* of packed matrices */
static uint32_t only = 0; /* rows; 0 = all of `numbers` */

#define PACKED_ROWS 64 /* of a packed matrix that are made; the others are copies */

struct bench {
	mx_device *d;
	cudaStream_t stream;
	double roof; /* bytes a second */
	const shape *s;
	std::vector<void *> memory;
	mx_experts layers[LAYERS];
	mx_quant up, down;                                 /* if packed */
	float *logits[LAYERS];                             /* [MAX_ROWS, n] */
	std::vector<std::vector<uint32_t>> chosen[LAYERS]; /* of each row */
	void *x, *y, *share, *work;
};

static void *take(bench &b, size_t bytes)
{
	void *p;
	cuda(cudaMalloc(&p, bytes), "memory");
	b.memory.push_back(p);
	return p;
}

/* Draws the router's logits of a layer, and notes which experts they choose. */
static void route(bench &b, int layer)
{
	const shape &s = *b.s;
	std::vector<float> logits((size_t)MAX_ROWS * s.n);
	std::vector<uint32_t> order(s.n);
	uint32_t h = 12345 + (uint32_t)layer;
	for (float &v : logits) {
		h = h * 1664525u + 1013904223u;
		v = (float)(h >> 8) * 0x1p-24f;
	}
	b.chosen[layer].clear();
	for (uint32_t r = 0; r < MAX_ROWS; r++) {
		const float *of = &logits[(size_t)r * s.n];
		std::iota(order.begin(), order.end(), 0);
		std::partial_sort(order.begin(), order.begin() + s.chosen, order.end(),
		                  [&](uint32_t i, uint32_t k) { return of[i] > of[k]; });
		b.chosen[layer].emplace_back(order.begin(), order.begin() + s.chosen);
	}
	b.logits[layer] = (float *)take(b, logits.size() * sizeof(float));
	cuda(cudaMemcpy(b.logits[layer], logits.data(), logits.size() * sizeof(float),
	                cudaMemcpyHostToDevice),
	     "logits");
}

/* Packs some rows of `cols` columns as they are for experts, and copies them to `bytes` at `to`;
 * with to = NULL only sets *out. */
static void fill_packed(mx_quant *out, uint32_t cols, unsigned char *to, size_t bytes)
{
	quant_matrix m;
	rng g = {1};
	quant_matrix_make(&m, &quant_cases[form], PACKED_ROWS, cols, &g);
	must(quant_matrix_pack_expert(&m, quant_cases[form].bits) == MX_OK, "packing");
	*out = m.q;
	const size_t part = mx_quant_bytes(&m.q, PACKED_ROWS);
	for (size_t at = 0; to && at < bytes; at = at ? 2 * at : part)
		cuda(at ? cudaMemcpy(to + at, to, std::min(at, bytes - at), cudaMemcpyDeviceToDevice)
		        : cudaMemcpy(to, m.panels, std::min(part, bytes), cudaMemcpyHostToDevice),
		     "weights");
	quant_matrix_free(&m);
}

/* Bytes of an expert's gate or up, and of down. */
static size_t up_bytes(const bench &b)
{
	return form < 0 ? (size_t)b.s->cols * b.s->width * 2 : mx_quant_bytes(&b.up, b.s->width);
}

static size_t down_bytes(const bench &b)
{
	return form < 0 ? (size_t)b.s->cols * b.s->width * 2 : mx_quant_bytes(&b.down, b.s->cols);
}

static void make_layer(bench &b, int layer)
{
	const shape &s = *b.s;
	const size_t up = up_bytes(b), down = down_bytes(b);
	unsigned char *w = (unsigned char *)take(b, (2 * up + down) * s.n);
	float *bias = (float *)take(b, (2 * s.width + s.cols) * sizeof(float));
	cuda(cudaMemset(bias, 0, (2 * s.width + s.cols) * sizeof(float)), "biases");
	if (form < 0) {
		fill<<<2048, 256>>>((uint16_t *)w, (2 * up + down) * s.n / 2, 0.03f, (uint32_t)layer);
	} else {
		fill_packed(&b.up, s.cols, w, 2 * up * s.n);
		fill_packed(&b.down, s.width, w + 2 * up * s.n, down * s.n);
	}
	std::vector<mx_expert_weights> table(s.n);
	for (uint32_t e = 0; e < s.n; e++) {
		unsigned char *at = w + 2 * up * e;
		table[e] = {at, at + up, w + 2 * up * s.n + down * e, NULL, NULL, NULL};
		if (s.variant & BIASES)
			table[e].gate_bias = table[e].up_bias = table[e].down_bias = bias;
	}
	void *to = take(b, s.n * sizeof(mx_expert_weights));
	cuda(cudaMemcpy(to, table.data(), s.n * sizeof(mx_expert_weights), cudaMemcpyHostToDevice),
	     "table");
	mx_experts &m = b.layers[layer];
	m = mx_experts{};
	m.rule.chosen = s.chosen;
	m.rule.normalize = true;
	m.rule.scale = 1;
	m.n = s.n;
	m.cols = s.cols;
	m.width = s.width;
	m.gated = true;
	m.alpha = s.variant & LIMIT ? 1.702f : 0;
	m.limit = s.variant & LIMIT ? 7.0f : 0;
	m.weights = (const mx_expert_weights *)to;
	m.up_quant = form < 0 ? NULL : &b.up;
	m.down_quant = form < 0 ? NULL : &b.down;
	route(b, layer);
}

/* Returns the seconds of one layer of a recorded chain of them all. */
static double seconds(const bench &b, uint32_t n)
{
	const mx_ops *ops = b.d->ops;
	const int chain = n <= 256 ? 4 * LAYERS : LAYERS;
	mx_recording *recording = NULL;
	cudaEvent_t begin, end;
	std::vector<float> all;
	auto call = [&](int i) {
		mx_experts_call c = {};
		c.logits = b.logits[i % LAYERS];
		c.x = b.x;
		c.y = b.y;
		c.add = b.s->variant & SHARED;
		c.share = b.s->variant & SHARE ? (const float *)b.share : NULL;
		c.work = b.work;
		c.n = n;
		return ops->experts(b.d, &b.layers[i % LAYERS], &c);
	};
	must(call(0) == MX_OK && ops->wait(b.d) == MX_OK, "the first call");
	must(ops->record(b.d) == MX_OK, "record");
	for (int i = 0; i < chain; i++)
		must(call(i) == MX_OK, "a call");
	must(ops->recorded(b.d, &recording) == MX_OK, "recorded");
	cuda(cudaEventCreate(&begin), "event");
	cuda(cudaEventCreate(&end), "event");
	for (int i = -2; i < REPLAYS; i++) {
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

static void measure(bench &b)
{
	const shape &s = *b.s;
	if (form >= 0) {
		fill_packed(&b.up, s.cols, NULL, 0);
		fill_packed(&b.down, s.width, NULL, 0);
	}
	for (int i = 0; i < LAYERS; i++)
		make_layer(b, i);
	b.x = take(b, (size_t)MAX_ROWS * s.cols * 2);
	b.y = take(b, (size_t)MAX_ROWS * s.cols * 2);
	b.share = take(b, MAX_ROWS * sizeof(float));
	b.work = take(b, mx_experts_work(MAX_ROWS, s.n, s.chosen, s.cols, s.width, 2));
	fill<<<2048, 256>>>((uint16_t *)b.x, (size_t)MAX_ROWS * s.cols, 1, 7);
	fill<<<2048, 256>>>((uint16_t *)b.y, (size_t)MAX_ROWS * s.cols, 1, 8);
	fill<<<2048, 256>>>((uint16_t *)b.share, MAX_ROWS * 2, 1, 9);
	cuda(cudaDeviceSynchronize(), "fill");
	const double expert = 3.0 * s.cols * s.width;
	for (uint32_t n : numbers) {
		if (only && n != only)
			continue;
		double used = 0;
		for (int i = 0; i < LAYERS; i++) {
			std::set<uint32_t> experts;
			for (uint32_t r = 0; r < n; r++)
				experts.insert(b.chosen[i][r].begin(), b.chosen[i][r].end());
			used += (double)experts.size() / LAYERS;
		}
		const double t = seconds(b, n), bytes = used * (double)(2 * up_bytes(b) + down_bytes(b));
		printf(
			"%-20s %5u rows %9.2f us %6.1f experts %6.2f TB/s %5.1f %% of reading %7.1f TFLOP/s\n",
			s.name, n, t * 1e6, used, bytes / t * 1e-12, 100 * bytes / t / b.roof,
			2 * expert * s.chosen * n / t * 1e-12);
		fflush(stdout);
	}
	for (void *p : b.memory)
		cuda(cudaFree(p), "free");
	b.memory.clear();
}

static double measure_roof(const bench &b, int sms)
{
	unsigned *out;
	void *p;
	double best = 0;
	cuda(cudaMalloc(&p, ROOF_BYTES), "memory");
	cuda(cudaMalloc(&out, 4), "memory");
	fill<<<2048, 256>>>((uint16_t *)p, ROOF_BYTES / 2, 1, 1);
	for (int i = 0; i < 8; i++) {
		cudaEvent_t begin, end;
		float ms;
		cuda(cudaEventCreate(&begin), "event");
		cuda(cudaEventCreate(&end), "event");
		cuda(cudaEventRecord(begin, b.stream), "event");
		cuda(read_all(p, ROOF_BYTES, out, sms, b.stream), "read");
		cuda(cudaEventRecord(end, b.stream), "event");
		cuda(cudaEventSynchronize(end), "read");
		cuda(cudaEventElapsedTime(&ms, begin, end), "event");
		best = std::max(best, ROOF_BYTES / (ms * 1e-3));
		cuda(cudaEventDestroy(begin), "event");
		cuda(cudaEventDestroy(end), "event");
	}
	cuda(cudaFree(p), "free");
	cuda(cudaFree(out), "free");
	return best;
}

int main(int argc, char **argv)
{
	const char *match = NULL;
	for (int c; (c = getopt(argc, argv, "m:q:n:")) != -1;) {
		switch (c) {
		case 'm': match = optarg; break;
		case 'q': form = atoi(optarg); break;
		case 'n': only = (uint32_t)atoi(optarg); break;
		default: return 2;
		}
	}
	if (form >= (int)n_quant_cases) {
		fprintf(stderr, "experts: there are %zu forms\n", n_quant_cases);
		return 2;
	}
	mx_device_options options = {};
	options.threads = 1;
	options.max_rows = options.max_width = 1;
	options.cuda.act_dtype = MX_BF16;
	options.cuda.max_samples = 64;
	options.cuda.vocab = 32000;
	mx_err err = {};
	bench b = {};
	if (mx_device_open("cuda:0", &options, &b.d, &err) != MX_OK) {
		fprintf(stderr, "%s\n", err.text);
		return 77;
	}
	b.stream = (cudaStream_t)mx_cuda_base(b.d)->stream;
	b.roof = measure_roof(b, mx_cuda_base(b.d)->sms);
	printf("# %s; reads %.3f TB/s\n", b.d->info.isa, b.roof * 1e-12);
	for (const shape &s : shapes)
		if (s.uses & BENCH && (form < 0 || s.uses & PACKED) && (!match || strstr(s.name, match))) {
			b.s = &s;
			measure(b);
		}
	b.d->ops->destroy(b.d);
	return 0;
}
