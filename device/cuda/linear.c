/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which kernel computes a product, and cuBLASLt for products of many rows.
 *
 * cuBLASLt's choice of an algorithm takes some 100 us of host time, so it is made once for a shape
 * and stored in a table of fixed size. Numbers of rows are rounded up to a few classes. Matrices of
 * cuBLASLt are column-major: our y [n, rows] = x [n, cols] W^T is its [rows, n] = W^T x.
 */
#include <cublasLt.h>
#include <stdlib.h>

#include "device/cuda/impl.h"
#include "device/cuda/experts_quant.h"
#include "device/cuda/linear.h"
#include "device/cuda/linear_quant_stream.h"

#define WORKSPACE ((size_t)64 << 20) /* cuBLAS recommends 32 MiB on 9.0 */
#define COUNTERS  8                  /* more than launches that run at a time */
#define PLANS     1024               /* a power of two; 20 classes of n for each shape of a model */
#define PROBES    8
#define ALIGN     16 /* bytes; of every address and stride that the kernels and plans support */

struct key {
	uint32_t rows, cols, n;
	uint32_t bf16, bf16_out, accumulate, scaled;
	uint64_t ldx, ldy;
};

struct plan {
	struct key key; /* n = 0: empty */
	cublasLtMatmulAlgo_t algo;
};

struct mx_cuda_linear {
	cublasLtHandle_t lt;
	cublasLtMatmulPreference_t preference;
	void *workspace;
	void *expanded;     /* see mx_cuda_linear_expanded */
	uint32_t *counters; /* [COUNTERS], see mx_cuda_linear_counter */
	unsigned turn;
	bool wide; /* the last product was */
	struct plan plans[PLANS];
	unsigned evict; /* chooses the entry to replace if all PROBES entries of a key are full */
};

static cudaError_t error_of(cublasStatus_t s)
{
	switch (s) {
	case CUBLAS_STATUS_SUCCESS: return cudaSuccess;
	case CUBLAS_STATUS_ALLOC_FAILED: return cudaErrorMemoryAllocation;
	case CUBLAS_STATUS_INVALID_VALUE: return cudaErrorInvalidValue;
	case CUBLAS_STATUS_NOT_SUPPORTED: return cudaErrorNotSupported;
	case CUBLAS_STATUS_EXECUTION_FAILED: return cudaErrorLaunchFailure;
	default: return cudaErrorUnknown;
	}
}

size_t mx_cuda_linear_bytes(const struct mx_cuda_limits *l)
{
	return WORKSPACE + (l->quantised ? MX_CUDA_EXPANDED + COUNTERS * sizeof(uint32_t) : 0);
}

static mx_status create_counters(struct mx_device *d, struct mx_cuda_linear *l)
{
	const size_t bytes = COUNTERS * sizeof *l->counters;
	void *counters = NULL;
	mx_status rc = mx_cuda_alloc(d, bytes, &counters);
	l->counters = counters;
	return rc == MX_OK ? mx_cuda_zero(d, counters, bytes) : rc;
}

static mx_status create(struct mx_device *d, struct mx_cuda_linear *l)
{
	const size_t workspace = WORKSPACE, room = mx_cuda(d)->base.smem;
	const uint32_t align = ALIGN;
	cublasLtMatmulPreference_t p;
	cublasStatus_t s = cublasLtCreate(&l->lt);
	if (s == CUBLAS_STATUS_SUCCESS)
		s = cublasLtMatmulPreferenceCreate(&l->preference);
	p = l->preference;
	if (s == CUBLAS_STATUS_SUCCESS)
		s = cublasLtMatmulPreferenceSetAttribute(p, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
		                                         &workspace, sizeof(workspace));
	/* partial sums must not be rounded to bf16 */
	const uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
	if (s == CUBLAS_STATUS_SUCCESS)
		s = cublasLtMatmulPreferenceSetAttribute(p, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
		                                         &reduction, sizeof(reduction));
	static const cublasLtMatmulPreferenceAttributes_t aligned[] = {
		CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
		CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
	for (int i = 0; i < 4 && s == CUBLAS_STATUS_SUCCESS; i++)
		s = cublasLtMatmulPreferenceSetAttribute(p, aligned[i], &align, sizeof(align));
	mx_status rc = mx_cuda_check(d, error_of(s), "cublasLtCreate");
	if (rc == MX_OK)
		rc = mx_cuda_alloc(d, WORKSPACE, &l->workspace);
	if (rc == MX_OK && mx_cuda(d)->limits.quantised)
		rc = mx_cuda_alloc(d, MX_CUDA_EXPANDED, &l->expanded);
	if (rc == MX_OK && mx_cuda(d)->limits.quantised)
		rc = create_counters(d, l);
	if (rc == MX_OK)
		rc = mx_cuda_check(d, mx_cuda_quant_few_setup(room), "shared memory of linear");
	if (rc == MX_OK)
		rc = mx_cuda_check(d, mx_cuda_linear_few_setup(room), "shared memory of linear");
	if (rc == MX_OK)
		rc = mx_cuda_check(d, mx_cuda_linear_exact_setup(room), "shared memory of linear");
	if (rc == MX_OK && mx_cuda_linear_chain_can(mx_cuda(d)->base.sm))
		rc = mx_cuda_check(d, mx_cuda_linear_chain_setup(), "chains of linear");
	if (rc == MX_OK)
		rc = mx_cuda_check(d, mx_cuda_experts_few_setup(room), "shared memory of experts");
	if (rc == MX_OK)
		rc = mx_cuda_check(d, mx_cuda_experts_many_setup(), "shared memory of experts");
	if (rc == MX_OK && mx_cuda_linear_has_one(d))
		rc = mx_cuda_check(d, mx_cuda_quant_one_setup(), "shared memory of linear");
	if (rc == MX_OK && mx_cuda(d)->base.sm == 90)
		rc = mx_cuda_check(d, mx_cuda_quant_many_setup(), "shared memory of linear");
	if (rc == MX_OK && mx_cuda(d)->base.sm == 90)
		rc = mx_cuda_check(d, mx_cuda_quant_stream_setup(), "shared memory of linear");
	if (rc == MX_OK && d->info.packs_experts)
		rc = mx_cuda_check(d, mx_cuda_experts_quant_few_setup(room), "shared memory of experts");
	if (rc == MX_OK && mx_cuda(d)->base.sm == 90)
		rc = mx_cuda_check(d, mx_cuda_experts_quant_many_setup(), "shared memory of experts");
	return rc;
}

mx_status mx_cuda_linear_create(struct mx_device *d, struct mx_err *err)
{
	struct mx_cuda_linear *l = calloc(1, sizeof(*l));
	mx_cuda(d)->linear = l;
	mx_status rc = l ? create(d, l) : MX_E_NOMEM;
	if (rc == MX_OK)
		return MX_OK;
	mx_cuda_linear_destroy(d);
	return mx_fail(err, rc, "%s: cuBLAS or its workspace is not to be had", d->info.name);
}

void mx_cuda_linear_destroy(struct mx_device *d)
{
	struct mx_cuda_linear *l = mx_cuda(d)->linear;
	if (!l)
		return;
	mx_cuda_release(d, l->workspace);
	mx_cuda_release(d, l->expanded);
	mx_cuda_release(d, l->counters);
	if (l->preference)
		(void)cublasLtMatmulPreferenceDestroy(l->preference);
	if (l->lt)
		(void)cublasLtDestroy(l->lt);
	free(l);
	mx_cuda(d)->linear = NULL;
}

void *mx_cuda_linear_expanded(struct mx_device *d)
{
	return mx_cuda(d)->linear->expanded;
}

uint32_t *mx_cuda_linear_counter(struct mx_device *d)
{
	struct mx_cuda_linear *l = mx_cuda(d)->linear;
	return l->counters ? l->counters + l->turn++ % COUNTERS : NULL;
}

bool mx_cuda_linear_has_one(struct mx_device *d)
{
	return mx_cuda(d)->base.sm >= 90 && mx_cuda(d)->base.smem >= MX_CUDA_WIDE;
}

bool mx_cuda_linear_wide(struct mx_device *d, const struct mx_cuda_product *p)
{
	struct mx_cuda_linear *l = mx_cuda(d)->linear;
	l->wide = !l->wide && !p->norm && p->n <= MX_CUDA_PAIR &&
	          mx_cuda(d)->base.smem >= MX_CUDA_WIDE + MX_CUDA_NARROW;
	return l->wide;
}

/* ---- many rows ---- */

/* Of products in fp8: factors of the rows of W and of x. */
struct scales {
	const float *w, *x;
};

/* Description of a product for cuBLASLt, without heap memory. */
struct operation {
	cublasLtMatmulDescOpaque_t desc;
	cublasLtMatrixLayoutOpaque_t w, x, y;
};

static cublasStatus_t set_scales(struct operation *o, const struct scales *by)
{
#if CUBLAS_VERSION >= 120900
	const int32_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
	cublasStatus_t s = cublasLtMatmulDescSetAttribute(&o->desc, CUBLASLT_MATMUL_DESC_A_SCALE_MODE,
	                                                  &mode, sizeof(mode));
	if (s == CUBLAS_STATUS_SUCCESS)
		s = cublasLtMatmulDescSetAttribute(&o->desc, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &mode,
		                                   sizeof(mode));
	if (s == CUBLAS_STATUS_SUCCESS)
		s = cublasLtMatmulDescSetAttribute(&o->desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &by->w,
		                                   sizeof(by->w));
	if (s == CUBLAS_STATUS_SUCCESS)
		s = cublasLtMatmulDescSetAttribute(&o->desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &by->x,
		                                   sizeof(by->x));
	return s;
#else
	(void)o, (void)by;
	return CUBLAS_STATUS_NOT_SUPPORTED;
#endif
}

static cublasStatus_t describe(struct operation *o, const struct mx_cuda_product *p,
                               const struct scales *by, uint32_t n)
{
	const cublasOperation_t transposed = CUBLAS_OP_T;
	const cudaDataType_t in = by ? CUDA_R_8F_E4M3 : p->bf16 ? CUDA_R_16BF : CUDA_R_32F;
	const cudaDataType_t out = p->bf16_out ? CUDA_R_16BF : CUDA_R_32F;
	cublasStatus_t s = cublasLtMatmulDescInit(&o->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
	if (s == CUBLAS_STATUS_SUCCESS)
		s = cublasLtMatmulDescSetAttribute(&o->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
		                                   sizeof(transposed));
	if (s == CUBLAS_STATUS_SUCCESS && by)
		s = set_scales(o, by);
	if (s == CUBLAS_STATUS_SUCCESS)
		s = cublasLtMatrixLayoutInit(&o->w, in, p->cols, p->rows, (int64_t)p->cols);
	if (s == CUBLAS_STATUS_SUCCESS)
		s = cublasLtMatrixLayoutInit(&o->x, in, p->cols, n, (int64_t)p->ldx);
	if (s == CUBLAS_STATUS_SUCCESS)
		s = cublasLtMatrixLayoutInit(&o->y, out, p->rows, n, (int64_t)p->ldy);
	return s;
}

/* Returns the number of rows for which the algorithm of n rows is chosen. */
static uint32_t class_of(uint32_t n)
{
	uint32_t step = n <= 128 ? 16 : n <= 512 ? 64 : n <= 2048 ? 256 : 1024;
	return (n + step - 1) / step * step;
}

static bool same(const struct key *a, const struct key *b)
{
	return a->rows == b->rows && a->cols == b->cols && a->n == b->n && a->bf16 == b->bf16 &&
	       a->bf16_out == b->bf16_out && a->accumulate == b->accumulate && a->scaled == b->scaled &&
	       a->ldx == b->ldx && a->ldy == b->ldy;
}

/* Returns the entry of a key if there is one; else an empty entry, after removing another if
 * needed. */
static struct plan *find_plan(struct mx_cuda_linear *l, const struct key *k)
{
	uint64_t h =
		k->rows * 0x9e3779b97f4a7c15ull ^ k->cols * 0xc2b2ae3d27d4eb4full ^
		k->n * 0x165667b19e3779f9ull ^ k->ldx * 0x27d4eb2f165667c5ull ^
		k->ldy * 0x85ebca77c2b2ae63ull ^
		(k->bf16 | k->bf16_out << 1 | k->accumulate << 2 | k->scaled << 3) * 0xff51afd7ed558ccdull;
	h ^= h >> 32;
	for (unsigned i = 0; i < PROBES; i++) {
		struct plan *p = &l->plans[(h + i) % PLANS];
		if (p->key.n == 0 || same(&p->key, k))
			return p;
	}
	struct plan *p = &l->plans[(h + l->evict++ % PROBES) % PLANS];
	p->key.n = 0;
	return p;
}

static cublasStatus_t choose(struct mx_cuda_linear *l, const struct mx_cuda_product *p,
                             const struct scales *by, uint32_t n, cublasLtMatmulAlgo_t *out)
{
	struct operation o;
	cublasLtMatmulHeuristicResult_t found;
	int count = 0;
	cublasStatus_t s = describe(&o, p, by, n);
	if (s == CUBLAS_STATUS_SUCCESS)
		s = cublasLtMatmulAlgoGetHeuristic(l->lt, &o.desc, &o.w, &o.x, &o.y, &o.y, l->preference, 1,
		                                   &found, &count);
	if (s == CUBLAS_STATUS_SUCCESS && count == 0)
		s = CUBLAS_STATUS_NOT_SUPPORTED;
	if (s == CUBLAS_STATUS_SUCCESS)
		*out = found.algo;
	return s;
}

static cublasStatus_t multiply(struct mx_cuda_linear *l, const struct mx_cuda_product *p,
                               const struct scales *by, bool add, const cublasLtMatmulAlgo_t *algo,
                               cudaStream_t stream)
{
	const float alpha = 1.0f, beta = add ? 1.0f : 0.0f;
	struct operation o;
	cublasStatus_t s = describe(&o, p, by, p->n);
	if (s == CUBLAS_STATUS_SUCCESS)
		s = cublasLtMatmul(l->lt, &o.desc, &alpha, p->w, &o.w, p->x, &o.x, &beta, p->y, &o.y, p->y,
		                   &o.y, algo, l->workspace, WORKSPACE, stream);
	return s;
}

/* by: of a product in fp8, else NULL. */
static mx_status many(struct mx_device *d, const struct mx_cuda_product *p, const struct scales *by)
{
	struct mx_cuda_linear *l = mx_cuda(d)->linear;
	cudaStream_t stream = mx_cuda_stream(d);
	const bool add = p->accumulate || p->bias;
	const struct key key = {p->rows, p->cols,    class_of(p->n), p->bf16, p->bf16_out,
	                        add,     by != NULL, p->ldx,         p->ldy};
	struct plan *plan = find_plan(l, &key);
	cublasStatus_t s = CUBLAS_STATUS_SUCCESS;
	if (plan->key.n == 0) {
		s = choose(l, p, by, key.n, &plan->algo);
		if (s == CUBLAS_STATUS_SUCCESS)
			plan->key = key;
		else if (by && s == CUBLAS_STATUS_NOT_SUPPORTED)
			return MX_E_UNSUPPORTED;
	}
	if (p->bias) {
		mx_status rc = mx_cuda_check(d, mx_cuda_linear_bias(p, stream), "bias of linear");
		if (rc != MX_OK)
			return rc;
	}
	if (s == CUBLAS_STATUS_SUCCESS)
		s = multiply(l, p, by, add, &plan->algo, stream);
	if (s == CUBLAS_STATUS_NOT_SUPPORTED || s == CUBLAS_STATUS_INVALID_VALUE) {
		/* the class's algorithm does not support this n: nothing was launched */
		cublasLtMatmulAlgo_t algo;
		s = choose(l, p, by, p->n, &algo);
		if (s == CUBLAS_STATUS_SUCCESS)
			s = multiply(l, p, by, add, &algo, stream);
	}
	return mx_cuda_check(d, error_of(s), "cublasLtMatmul");
}

mx_status mx_cuda_linear_scaled(struct mx_device *d, const struct mx_cuda_product *p,
                                const float *w_scales, const float *x_scales)
{
	const struct scales by = {w_scales, x_scales};
	return many(d, p, &by);
}

/* ---- dispatch ---- */

static bool aligned(const void *p)
{
	return (uintptr_t)p % ALIGN == 0;
}

/* True if `chain` computes this product: of so few rows of W its links, one after the other, take
 * longer than `few`, whose lanes divide the columns. */
static bool is_chain(struct mx_device *d, const struct mx_cuda_product *p)
{
	if (!p->bf16 || !mx_cuda_linear_chain_can(mx_cuda(d)->base.sm))
		return false;
	return d->info.deterministic ||
	       (p->rows > MX_CUDA_CHAIN_ROWS && p->n >= MX_CUDA_CHAIN_MIN && p->n <= MX_CUDA_CHAIN_MAX);
}

bool mx_cuda_linear_is_few(struct mx_device *d, const struct mx_cuda_product *p)
{
	return p->bf16 && !is_chain(d, p) && p->n > 0 && p->rows > 0 && aligned(p->x) &&
	       aligned(p->w) && p->cols * 2 % ALIGN == 0 && p->ldx * 2 % ALIGN == 0 &&
	       !d->info.deterministic && p->n <= MX_CUDA_FEW;
}

mx_status mx_cuda_linear_product(struct mx_device *d, const struct mx_cuda_product *p)
{
	const struct mx_cuda_base *gpu = &mx_cuda(d)->base;
	cudaStream_t stream = mx_cuda_stream(d);
	const size_t in = p->bf16 ? 2 : 4, out = p->bf16_out ? 2 : 4;
	const bool fixed = d->info.deterministic;
	const bool small = p->bf16 && p->rows <= MX_CUDA_CHAIN_ROWS;
	const uint32_t most = p->bf16 && (fixed || small) ? MX_CUDA_FEW_MAX : MX_CUDA_FEW;
	if (p->n == 0 || p->rows == 0)
		return MX_OK;
	/* on a deterministic device the choice of the kernel must not depend on y. It may depend on n
	 * only between kernels with the same order of operations */
	if (!aligned(p->x) || !aligned(p->w) || p->cols * in % ALIGN || p->ldx * in % ALIGN ||
	    (fixed && !p->bf16))
		return mx_cuda_check(d, mx_cuda_linear_any(p, stream), "linear, any shape");
	if (is_chain(d, p))
		return mx_cuda_check(d, mx_cuda_linear_chain(p, gpu->sms, stream), "linear, chains");
	if (p->n <= most)
		return mx_cuda_check(d, mx_cuda_linear_few(p, gpu->sms, gpu->smem, stream),
		                     "linear, few rows");
	if (fixed)
		return mx_cuda_check(d, mx_cuda_linear_exact(p, gpu->smem, stream), "linear, exact");
	if (!aligned(p->y) || p->ldy * out % ALIGN)
		return mx_cuda_check(d, mx_cuda_linear_any(p, stream), "linear, any shape");
	return many(d, p, NULL);
}
