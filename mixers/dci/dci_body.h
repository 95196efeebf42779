/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dci's kernels over vectors of 16 floats. Each level's file defines v16 and its operations and
 * then includes this file, so the levels share one order of operations and differ in instructions
 * only.
 *
 * The includer defines: v16, v_zero, v_set1, v_load, v_store, v_add, v_sub, v_mul, v_div, v_max,
 * v_fma(a, b, c) = a * b + c, v_bf16_pairs(p, &even, &odd) (32 bf16 to their even and odd
 * elements), v_exp2 (for x <= 0 or slightly above; 1 at 0; 0 below -126 and at -inf), v_hmax,
 * v_hsum, v_sum4(a, b, c, d, out) (the sum of each to out[4]), v_hadamard (the Hadamard transform
 * of 16 numbers), and add_above(v, least, pos, found) (numbers above
 * `least`, lane i being position pos + i), keep_above(found, t, equal) (values above t, and the
 * first `equal` of those that are t), and sums(bytes, codes, n, q, out) (of the tables' entries, as
 * floats [n][DCI_RUN], for n = 1 or DCI_SCAN).
 */
#define ALWAYS_INLINE static inline __attribute__((always_inline))
#define LINE          64

/* ---- projections ---- */

static void rotate(uint32_t n, const float *signs, float *x)
{
	v16 scale = v_set1(1 / sqrtf((float)n));
	for (uint32_t round = 0; round < 3; round++, signs += n) {
		for (uint32_t i = 0; i < n; i += 16) /* the stages within a vector */
			v_store(x + i, v_hadamard(v_mul(v_load(x + i), v_mul(v_load(signs + i), scale))));
		for (uint32_t h = 16; h < n; h *= 2)
			for (uint32_t i = 0; i < n; i += 2 * h)
				for (uint32_t j = i; j < i + h; j += 16) {
					v16 a = v_load(x + j), b = v_load(x + j + h);
					v_store(x + j, v_add(a, b));
					v_store(x + j + h, v_sub(a, b));
				}
	}
}

static void tabulate(uint32_t n, const float *x, uint8_t *table, float *step, float *offset)
{
	float widest = 0, all = 0;
	for (uint32_t i = 0; i < n; i += 4) {
		float part = fabsf(x[i]) + fabsf(x[i + 1]) + fabsf(x[i + 2]) + fabsf(x[i + 3]);
		widest = part > widest ? part : widest;
		all += part;
	}
	/* Entries are 0 .. 127: two of them fit in a byte. */
	float inverse = widest > 0 ? 127 / (2 * widest) : 0;
	for (uint32_t i = 0; i < n; i += 4, table += 16) {
		float part = fabsf(x[i]) + fabsf(x[i + 1]) + fabsf(x[i + 2]) + fabsf(x[i + 3]);
		for (int c = 0; c < 16; c++) {
			float sum = part + (c & 1 ? x[i] : -x[i]) + (c & 2 ? x[i + 1] : -x[i + 1]) +
			            (c & 4 ? x[i + 2] : -x[i + 2]) + (c & 8 ? x[i + 3] : -x[i + 3]);
			table[c] = (uint8_t)(int)(sum * inverse + 0.5f);
		}
	}
	*step = widest > 0 ? 2 * widest / 127 : 0;
	*offset = all;
}

/* ---- the largest of some numbers ---- */

static uint32_t at_least(uint32_t n, const uint32_t *v, uint32_t t)
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < n; i++)
		count += v[i] >= t;
	return count;
}

/* Returns a value of which at most k values of v [n] are above, and at least k are not below.
 * Bisects: vectors count faster than a selection moves numbers. */
static uint32_t cut(uint32_t n, const uint32_t *v, uint32_t k)
{
	uint32_t lo = v[0], hi = v[0];
	for (uint32_t i = 1; i < n; i++) {
		lo = v[i] < lo ? v[i] : lo;
		hi = v[i] > hi ? v[i] : hi;
	}
	while (lo < hi) { /* at least k values are >= lo, fewer are > hi */
		uint32_t middle = lo + (hi - lo) / 2 + 1, count = at_least(n, v, middle);
		if (count == k)
			return middle;
		if (count > k)
			lo = middle;
		else
			hi = middle - 1;
	}
	return lo;
}

static uint32_t keep(struct dci_found *f, uint32_t k)
{
	uint32_t t = cut(f->n, f->value, k), above = 0;
	for (uint32_t i = 0; i < f->n; i++)
		above += f->value[i] > t;
	keep_above(f, t, k - above);
	return t;
}

/* ---- rows ---- */

ALWAYS_INLINE void row_load(const unsigned char *row, uint32_t i, const int is_bf16, v16 *a, v16 *b)
{
	if (is_bf16) {
		v_bf16_pairs((const uint16_t *)row + i, a, b);
	} else {
		*a = v_load((const float *)row + i);
		*b = v_load((const float *)row + i + 16);
	}
}

/* Fetches the rows of a later part: they lie anywhere in memory. */
ALWAYS_INLINE void fetch(const unsigned char *const *rows, uint32_t first, uint32_t n, uint32_t end,
                         size_t offset, size_t bytes)
{
	for (uint32_t i = first; i < first + n && i < end; i++)
		for (size_t at = 0; at < bytes; at += LINE)
			__builtin_prefetch(rows[i] + offset + at);
}

ALWAYS_INLINE void score_rows(uint32_t n, const unsigned char *const *rows, uint32_t dim,
                              const float *q, const int is_bf16, float *out)
{
	size_t bytes = (size_t)dim * (is_bf16 ? 2 : 4);
	for (uint32_t i = 0; i < n; i += 4) {
		const unsigned char *r[4];
		float four[4];
		v16 acc[4];
		fetch(rows, i + 12, 4, n, 0, bytes);
		for (uint32_t k = 0; k < 4; k++) {
			r[k] = rows[i + k < n ? i + k : n - 1];
			acc[k] = v_zero();
		}
		for (uint32_t d = 0; d < dim; d += 32) {
			v16 qa = v_load(q + d), qb = v_load(q + d + 16);
			for (uint32_t k = 0; k < 4; k++) {
				v16 a, b;
				row_load(r[k], d, is_bf16, &a, &b);
				acc[k] = v_fma(a, qa, acc[k]);
				acc[k] = v_fma(b, qb, acc[k]);
			}
		}
		v_sum4(acc[0], acc[1], acc[2], acc[3], four);
		for (uint32_t k = 0; k < 4 && i + k < n; k++)
			out[i + k] = four[k];
	}
}

/* 16 * VALUES dimensions from d on. */
#define VALUES 8
ALWAYS_INLINE void mix_part(uint32_t n, const unsigned char *const *rows, size_t offset,
                            const float *p, uint32_t d, const uint32_t vectors, const int is_bf16,
                            float *o)
{
	v16 acc[VALUES];
	size_t size = is_bf16 ? 2 : 4;
	for (uint32_t k = 0; k < vectors; k++)
		acc[k] = v_zero();
	for (uint32_t i = 0; i < n; i++) {
		const unsigned char *row = rows[i] + offset;
		v16 pi = v_set1(p[i]);
		fetch(rows, i + 12, 1, n, offset + d * size, vectors * 16 * size);
		for (uint32_t k = 0; k < vectors; k += 2) {
			v16 a, b;
			row_load(row, d + 16 * k, is_bf16, &a, &b);
			acc[k] = v_fma(pi, a, acc[k]);
			acc[k + 1] = v_fma(pi, b, acc[k + 1]);
		}
	}
	for (uint32_t k = 0; k < vectors; k++)
		v_store(o + d + 16 * k, acc[k]);
}

ALWAYS_INLINE void mix_rows(uint32_t n, const unsigned char *const *rows, size_t offset,
                            const float *p, uint32_t dim, const int is_bf16, float *o)
{
	uint32_t d = 0;
	for (; d + 16 * VALUES <= dim; d += 16 * VALUES)
		mix_part(n, rows, offset, p, d, VALUES, is_bf16, o);
	for (; d + 64 <= dim; d += 64)
		mix_part(n, rows, offset, p, d, 4, is_bf16, o);
	for (; d < dim; d += 32)
		mix_part(n, rows, offset, p, d, 2, is_bf16, o);
}

static void score_f32(uint32_t n, const unsigned char *const *rows, uint32_t dim, const float *q,
                      float *out)
{
	score_rows(n, rows, dim, q, 0, out);
}

static void score_bf16(uint32_t n, const unsigned char *const *rows, uint32_t dim, const float *q,
                       float *out)
{
	score_rows(n, rows, dim, q, 1, out);
}

static void mix_f32(uint32_t n, const unsigned char *const *rows, size_t offset, const float *p,
                    uint32_t dim, float *o)
{
	mix_rows(n, rows, offset, p, dim, 0, o);
}

static void mix_bf16(uint32_t n, const unsigned char *const *rows, size_t offset, const float *p,
                     uint32_t dim, float *o)
{
	mix_rows(n, rows, offset, p, dim, 1, o);
}

/* ---- softmax ---- */

/* cap tanh(x / cap) = cap - 2 cap / (1 + exp(2 x / cap)), as in mixers/softmax. */
static void cap_scores(uint32_t n, float *s, float scale, float top)
{
	v16 factor = v_set1(scale * (-2.885390081777927f / top)), least = v_set1(-60);
	v16 cap = v_set1(top), twice = v_set1(-2 * top), one = v_set1(1), minus = v_set1(-1);
	for (uint32_t i = 0; i < n; i += 16) {
		v16 x = v_mul(v_max(v_mul(v_load(s + i), factor), least), minus);
		v_store(s + i, v_add(cap, v_div(twice, v_add(one, v_exp2(x)))));
	}
}

static float softmax(uint32_t n, float *s, float scale, float cap, float *m)
{
	v16 top = v_set1(-INFINITY), sum = v_zero();
	uint32_t end = (n + 15) / 16 * 16;
	for (uint32_t i = n; i < end; i++)
		s[i] = 0;
	if (cap > 0) {
		cap_scores(end, s, scale, cap);
		scale = 1;
	}
	for (uint32_t i = n; i < end; i++)
		s[i] = -INFINITY;
	for (uint32_t i = 0; i < end; i += 16)
		top = v_max(top, v_load(s + i));
	float best = v_hmax(top) * scale;
	v16 minus = v_set1(best == -INFINITY ? 0 : -best), factor = v_set1(scale);
	for (uint32_t i = 0; i < end; i += 16) {
		v16 p = v_exp2(v_fma(v_load(s + i), factor, minus));
		sum = v_add(sum, p);
		v_store(s + i, p);
	}
	*m = best;
	return v_hsum(sum);
}

/* ---- packing ---- */

static void pack_f32(uint32_t dim, const float *q, float *out)
{
	memcpy(out, q, dim * sizeof *out);
}

static void pack_bf16(uint32_t dim, const float *q, float *out)
{
	for (uint32_t d = 0; d < dim; d += 32)
		for (uint32_t i = 0; i < 16; i++) {
			out[d + i] = q[d + 2 * i];
			out[d + 16 + i] = q[d + 2 * i + 1];
		}
}

static void unpack_f32(uint32_t n, const float *o, float factor, float *out)
{
	for (uint32_t i = 0; i < n; i++)
		out[i] = o[i] * factor;
}

static void unpack_bf16(uint32_t n, const float *o, float factor, float *out)
{
	uint32_t d = 0;
	for (; d + 32 <= n; d += 32)
		for (uint32_t i = 0; i < 16; i++) {
			out[d + 2 * i] = o[d + i] * factor;
			out[d + 2 * i + 1] = o[d + 16 + i] * factor;
		}
	for (uint32_t i = d; i < n; i++)
		out[i] = o[d + i % 2 * 16 + (i - d) / 2] * factor;
}

/* ---- a run ---- */

ALWAYS_INLINE void scan_some(uint32_t bytes, const unsigned char *codes, const float *factors,
                             const uint32_t n, const struct dci_query *q, const float *base,
                             uint32_t pos, struct dci_found *found)
{
	float sum[DCI_SCAN][DCI_RUN];
	sums(bytes, codes, n, q, sum);
	for (uint32_t i = 0; i < n; i++) {
		v16 step = v_set1(q[i].step), minus = v_set1(-q[i].offset), from = v_set1(base[i]);
		for (uint32_t j = 0; j < DCI_RUN; j += 16) {
			v16 s = v_fma(v_load(sum[i] + j), step, minus);
			add_above(v_fma(s, v_load(factors + j), from), q[i].least, pos + j, &found[i]);
		}
	}
}

static void scan(uint32_t bytes, const unsigned char *codes, const float *factors, uint32_t n,
                 const struct dci_query *q, const float *base, uint32_t pos,
                 struct dci_found *found)
{
	if (n == DCI_SCAN) {
		scan_some(bytes, codes, factors, DCI_SCAN, q, base, pos, found);
		return;
	}
	for (uint32_t i = 0; i < n; i++)
		scan_some(bytes, codes, factors, 1, q + i, base + i, pos, found + i);
}

/* clang-format off */
#define DCI_TABLE(level, type)                                                                     \
	const struct dci_kernels dci_##level##_##type = {                                              \
		.name = #level,                                                                            \
		.rotate = rotate,                                                                          \
		.tabulate = tabulate,                                                                      \
		.scan = scan,                                                                              \
		.keep = keep,                                                                              \
		.pack = pack_##type,                                                                       \
		.unpack = unpack_##type,                                                                   \
		.score = score_##type,                                                                     \
		.softmax = softmax,                                                                        \
		.mix = mix_##type,                                                                         \
	};
#define DCI_TABLES(level) DCI_TABLE(level, f32) DCI_TABLE(level, bf16)
/* clang-format on */
