/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of the CUDA device compared with the memory bandwidth: each shape of linear_cases.def
 * with few and many rows, on copies of W that exceed the caches, with random data.
 *
 *   bench/device/cuda/linear [-f] [-n rows of x] [-s rows of W] [-g GiB of copies] [-q form]
 *     -f  at most 256 rows, and not the deterministic device
 *     -q  W quantised, in this form of tests/device/quant_source.c, counted from 0
 *     -g  at least so much memory is gone through, default 1; a model's weights are more
 *
 * A line is "linear", the device, rows and columns of W, rows of x, then of a chain of products
 * (one recording, as decoding runs them): us, TB/s of W, x and y, its share of the read roof,
 * TFLOP/s; and us of one product alone, begun after the one before has ended. The output is what
 * bench/device/cuda/torch-linear.py takes to print the ratios.
 */
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

extern "C" {
#include "device/cuda/cuda.h"
#include "device/open.h"
#include "tests/device/quant_source.h"
}

enum { TEST = 1, BENCH = 2, LOGITS = 4 };

struct shape {
	const char *name;
	uint32_t rows, cols, uses;
};

static const shape shapes[] = {
#define PRODUCT(name, rows, cols, uses) {name, rows, cols, uses},
#include "device/cuda/linear_cases.def"
#undef PRODUCT
};

static const uint32_t numbers[] = {1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 256, 2048, 8192};

#define ROOF_BYTES ((size_t)4 << 30) /* at least */
#define CHAIN_S    5e-3              /* a chain's length, about */
#define WARM_S     50e-3 /* after an allocation the first replays are up to 15 % slower */
#define ALONE      21
#define REPLAYS    5

#define PACKED_ROWS 256 /* of a quantised W that are packed; the others are copies */

static int form = -1;                         /* of quantised W */
static size_t copies_bytes = (size_t)1 << 30; /* at least, of all copies of W: many times L2 */

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

/* Uniform in [-1, 1), as bf16. */
static __global__ void fill_random(uint16_t *to, size_t n, uint32_t seed)
{
	for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
	     i += (size_t)gridDim.x * blockDim.x) {
		uint32_t h = (uint32_t)i * 0x9e3779b9u ^ (uint32_t)(i >> 32) ^ seed;
		h = (h ^ h >> 16) * 0x85ebca6bu;
		h = (h ^ h >> 13) * 0xc2b2ae35u;
		const float v = (float)(int32_t)(h ^ h >> 16) * 0x1p-31f;
		to[i] = (uint16_t)(__float_as_uint(v) >> 16);
	}
}

static __global__ void __launch_bounds__(512) read_all(const uint4 *p, size_t n, uint32_t *out)
{
	uint32_t s = 0;
	const size_t step = (size_t)gridDim.x * blockDim.x;
	size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
	for (; i + 7 * step < n; i += 8 * step) {
		uint4 v[8];
#pragma unroll
		for (int k = 0; k < 8; k++)
			v[k] = __ldcs(p + i + k * step);
#pragma unroll
		for (int k = 0; k < 8; k++)
			s ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
	}
	for (; i < n; i += step)
		s ^= p[i].x ^ p[i].y ^ p[i].z ^ p[i].w;
	if (s == 0x12345678)
		*out = s; /* so that the compiler drops no read */
}

static double median(std::vector<double> v)
{
	std::sort(v.begin(), v.end());
	return v[v.size() / 2];
}

/* Returns the median seconds of the work that f puts on the stream. */
template <typename F> static double seconds(cudaStream_t stream, int times, F f)
{
	cudaEvent_t a, b;
	std::vector<double> all;
	cuda(cudaEventCreate(&a), "event");
	cuda(cudaEventCreate(&b), "event");
	for (int i = 0; i < times; i++) {
		float ms;
		cuda(cudaEventRecord(a, stream), "event");
		f();
		cuda(cudaEventRecord(b, stream), "event");
		cuda(cudaEventSynchronize(b), "what is measured");
		cuda(cudaEventElapsedTime(&ms, a, b), "event");
		all.push_back(ms * 1e-3);
	}
	cuda(cudaEventDestroy(a), "event");
	cuda(cudaEventDestroy(b), "event");
	return median(all);
}

static double measure_roof(void)
{
	void *p, *out;
	double best = 0;
	const size_t bytes = std::max(ROOF_BYTES, copies_bytes);
	cudaDeviceProp prop;
	cuda(cudaGetDeviceProperties(&prop, 0), "properties");
	cuda(cudaMalloc(&p, bytes), "memory");
	cuda(cudaMalloc(&out, 4), "memory");
	fill_random<<<2048, 256>>>((uint16_t *)p, bytes / 2, 1);
	for (int per_sm = 1; per_sm <= 4; per_sm *= 2) {
		const double s = seconds(0, 5, [&] {
			read_all<<<prop.multiProcessorCount * per_sm, 512>>>((const uint4 *)p, bytes / 16,
			                                                     (uint32_t *)out);
		});
		best = std::max(best, bytes / s);
	}
	cuda(cudaGetLastError(), "roof");
	cuda(cudaFree(p), "free");
	cuda(cudaFree(out), "free");
	printf("# %s, %d SMs, %d MiB of L2; reads %.3f TB/s\n", prop.name, prop.multiProcessorCount,
	       prop.l2CacheSize >> 20, best * 1e-12);
	return best;
}

struct run {
	mx_device *d;
	const shape *s;
	uint32_t n;
	std::vector<mx_weight> w;
	void *x, *y;
	size_t next; /* copy of W */
	double size; /* bytes of W */

	void product()
	{
		const mx_weight *m = &w[next++ % w.size()];
		mx_linear_out o = {};
		o.w = m, o.y = y, o.ldy = s->rows, o.y_f32 = s->uses & LOGITS;
		must(d->ops->linear(d, x, s->cols, n, &o, 1) == MX_OK, "linear");
	}
};

static std::string form_name(const run &r)
{
	if (form < 0)
		return "";
	const mx_quant *q = r.w[0].quant;
	return std::string("-") + mx_quant_format_name(quant_cases[form].format) + "-g" +
	       std::to_string(q->group) + "-" + std::to_string(8 * r.size / r.s->rows / r.s->cols);
}

static void measure(run &r, double roof)
{
	const mx_ops *ops = r.d->ops;
	cudaStream_t stream = (cudaStream_t)mx_cuda_base(r.d)->stream;
	const double rows = r.s->rows, cols = r.s->cols, n = r.n;
	const double bytes = r.size + n * cols * 2 + n * rows * (r.s->uses & LOGITS ? 4 : 2);
	const double flop = 2 * rows * cols * n;
	const double about = std::max(bytes / roof, flop / 7e14);
	const int once = copies_bytes > (size_t)1 << 30 ? (int)r.w.size() : 4; /* all of them */
	const int chain = (int)std::max((double)once, std::min(500.0, CHAIN_S / about));
	mx_recording *recording = NULL;

	r.product(); /* chooses the algorithm */
	must(ops->wait(r.d) == MX_OK, "wait");
	must(ops->record(r.d) == MX_OK, "record");
	for (int i = 0; i < chain; i++)
		r.product();
	must(ops->recorded(r.d, &recording) == MX_OK, "recorded");
	const auto replay = [&] { must(ops->replay(r.d, recording) == MX_OK, "replay"); };
	for (double s = 0; s < WARM_S; s += chain * about)
		replay();
	const double many = seconds(stream, REPLAYS, replay) / chain;
	const double one = seconds(stream, ALONE, [&] { r.product(); });
	ops->forget(r.d, recording);
	printf("linear %s%s %u %u %u  %.2f us  %.3f TB/s  %.1f %%  %.1f TFLOP/s  alone %.2f us  # %s\n",
	       r.d->info.deterministic ? "exact" : "own", form_name(r).c_str(), r.s->rows, r.s->cols,
	       r.n, many * 1e6, bytes / many * 1e-12, 100 * bytes / many / roof, flop / many * 1e-12,
	       one * 1e6, r.s->name);
	fflush(stdout);
}

/* Packs some rows in the form, and copies them to `copies` matrices of `size` bytes. */
static void fill_quantised(quant_matrix *m, const shape *s, char *to, size_t copies, size_t size)
{
	rng g = {1};
	quant_matrix_make(m, &quant_cases[form], PACKED_ROWS, s->cols, &g);
	must(quant_matrix_pack(m, quant_cases[form].bits, true) == MX_OK, "packing");
	const size_t part = mx_quant_bytes(&m->q, PACKED_ROWS);
	for (size_t at = 0; at < copies * size; at += part)
		cuda(cudaMemcpy(to + at, m->panels, std::min(part, copies * size - at),
		                cudaMemcpyHostToDevice),
		     "weights");
}

static size_t bytes_of(const shape *s)
{
	quant_matrix m;
	rng g = {1};
	if (form < 0)
		return (size_t)s->rows * s->cols * 2;
	quant_matrix_make(&m, &quant_cases[form], MX_QUANT_ROWS, s->cols, &g);
	must(quant_matrix_pack(&m, quant_cases[form].bits, true) == MX_OK, "packing");
	const size_t bytes = mx_quant_bytes(&m.q, s->rows);
	quant_matrix_free(&m);
	return bytes;
}

/* Measures one shape with every number of rows. */
static void measure_shape(mx_device *d, const shape *s, uint32_t most, uint32_t only, double roof)
{
	const size_t size = bytes_of(s);
	const uint32_t max_n = std::min(most, s->uses & LOGITS ? 256u : 8192u);
	const size_t out = s->uses & LOGITS ? 4 : 2, copies = std::max((size_t)2, copies_bytes / size);
	run r = {d, s, 0, {}, NULL, NULL, 0, (double)size};
	quant_matrix m = {};
	char *weights = NULL;
	cuda(cudaMalloc((void **)&weights, copies * size), "memory");
	cuda(cudaMalloc(&r.x, (size_t)max_n * s->cols * 2), "memory");
	cuda(cudaMalloc(&r.y, (size_t)max_n * s->rows * out), "memory");
	if (form < 0)
		fill_random<<<2048, 256>>>((uint16_t *)weights, copies * size / 2, 2);
	else
		fill_quantised(&m, s, weights, copies, size);
	fill_random<<<2048, 256>>>((uint16_t *)r.x, (size_t)max_n * s->cols, 3);
	cuda(cudaDeviceSynchronize(), "fill");
	for (size_t i = 0; i < copies; i++)
		r.w.push_back({form < 0 ? MX_BF16 : MX_QUANT, s->rows, s->cols, weights + i * size,
		               form < 0 ? NULL : &m.q});
	for (uint32_t n : numbers) {
		r.n = n;
		if (n <= max_n && (!only || n == only))
			measure(r, roof);
	}
	quant_matrix_free(&m);
	cuda(cudaFree(weights), "free");
	cuda(cudaFree(r.x), "free");
	cuda(cudaFree(r.y), "free");
}

int main(int argc, char **argv)
{
	uint32_t most = 8192, only_n = 0, only_rows = 0;
	int devices = 2, n = 0;
	for (int c; (c = getopt(argc, argv, "fn:s:g:q:")) != -1;) {
		switch (c) {
		case 'f': most = 256, devices = 1; break;
		case 'n': only_n = (uint32_t)atoi(optarg); break;
		case 's': only_rows = (uint32_t)atoi(optarg); break;
		case 'q': form = atoi(optarg); break;
		case 'g': copies_bytes = (size_t)std::max(1, atoi(optarg)) << 30; break;
		default:
			fprintf(
				stderr,
				"usage: linear [-f] [-n rows of x] [-s rows of W] [-g GiB of copies] [-q form]\n");
			return 2;
		}
	}
	if (form >= (int)n_quant_cases) {
		fprintf(stderr, "linear: there are %zu forms\n", n_quant_cases);
		return 2;
	}
	if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) {
		printf("no GPU\n");
		return 77;
	}
	const double roof = measure_roof();
	for (int exact = 0; exact < devices; exact++) {
		mx_device_options options = {};
		options.threads = 1, options.max_rows = 1, options.max_width = 1;
		options.cuda.act_dtype = MX_BF16;
		options.cuda.max_samples = 256;
		options.cuda.vocab = 128256;
		options.cuda.deterministic = exact;
		options.cuda.quantised = form >= 0;
		mx_device *d;
		mx_err err = {};
		if (mx_device_open("cuda:0", &options, &d, &err) != MX_OK) {
			fprintf(stderr, "%s\n", err.text);
			return 1;
		}
		for (const shape &s : shapes)
			if (s.uses & BENCH && (!only_rows || s.rows == only_rows))
				measure_shape(d, &s, most, only_n, roof);
		d->ops->destroy(d);
	}
	return 0;
}
