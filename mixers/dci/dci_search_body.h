/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dci's search over vectors of 16 floats. Each level's file defines v16 and its operations and
 * then includes this file, so the levels share one order of operations and differ in instructions
 * only.
 *
 * The includer defines: ALWAYS_INLINE (dci_rows_body.h), v16, v_set1, v_load, v_store, v_add,
 * v_sub, v_mul, v_fma(a, b, c) = a * b + c, v_hadamard (the Hadamard transform of 16 numbers),
 * v_above(v, least) (a bit for each lane above `least`), keep_above(found, t, equal) (values above
 * t, and the first `equal` of those that are t), and sums(bytes, codes, n, q, out) (of the tables'
 * entries, as floats [n][DCI_RUN], for n = 1 or DCI_SCAN).
 */

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

/* Returns a value of which at least k values of v [n] are not below, and at most `most` are above.
 * Vectors count faster than a selection moves numbers. Between two values it looks where the
 * counts would have it if they were linear, and every other time in the middle. */
static uint32_t cut(uint32_t n, const uint32_t *v, uint32_t k, uint32_t most)
{
	uint32_t lo = v[0], hi = v[0], at_lo = n, above_hi = 0, aim = k + (most - k) / 2;
	for (uint32_t i = 1; i < n; i++) {
		lo = v[i] < lo ? v[i] : lo;
		hi = v[i] > hi ? v[i] : hi;
	}
	for (bool halve = false; lo < hi; halve = !halve) { /* >= k values are >= lo, fewer are > hi */
		uint32_t middle = lo + (hi - lo) / 2 + 1;
		if (!halve) {
			double part = (double)(at_lo - aim) / (at_lo - above_hi);
			middle = lo + 1 + (uint32_t)(part * (hi - lo - 1));
		}
		uint32_t count = at_least(n, v, middle);
		if (count >= k && count <= most)
			return middle;
		if (count > most) {
			lo = middle;
			at_lo = count;
		} else {
			hi = middle - 1;
			above_hi = count;
		}
	}
	return lo;
}

static uint32_t keep(struct dci_found *f, uint32_t k, uint32_t most)
{
	uint32_t t = cut(f->n, f->value, k, most), above = 0, not_below = 0;
	for (uint32_t i = 0; i < f->n; i++) {
		above += f->value[i] > t;
		not_below += f->value[i] >= t;
	}
	keep_above(f, t, (not_below > most ? k : not_below) - above);
	return t;
}

/* ---- a run ---- */

/* Appends the numbers x [DCI_RUN] that have their bit in `some`. Four at a time, of which the last
 * may be none: how many there are cannot be foretold, that there are no more than four mostly can.
 */
ALWAYS_INLINE void add_some(uint64_t some, const float *x, uint32_t pos, struct dci_found *f)
{
	uint32_t *value = f->value + f->n, *at = f->pos + f->n;
	f->n += (uint32_t)__builtin_popcountll(some);
	for (; some; value += 4, at += 4)
		for (uint32_t k = 0; k < 4; k++) {
			uint32_t i = (uint32_t)__builtin_ctzll(some | 1ull << 63);
			value[k] = dci_ordered(x[i]);
			at[k] = pos + i;
			some &= some - 1;
		}
}

ALWAYS_INLINE void scan_some(uint32_t bytes, const unsigned char *codes, const float *factors,
                             const uint32_t n, const struct dci_query *q, const float *base,
                             uint32_t pos, struct dci_found *found)
{
	float sum[DCI_SCAN][DCI_RUN];
	sums(bytes, codes, n, q, sum);
	for (uint32_t i = 0; i < n; i++) {
		v16 step = v_set1(q[i].step), minus = v_set1(-q[i].offset), from = v_set1(base[i]);
		uint64_t some = 0;
		for (uint32_t j = 0; j < DCI_RUN; j += 16) {
			v16 s = v_fma(v_load(sum[i] + j), step, minus);
			s = v_fma(s, v_load(factors + j), from);
			v_store(sum[i] + j, s);
			some |= (uint64_t)v_above(s, q[i].least) << j;
		}
		add_some(some, sum[i], pos, &found[i]);
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
#define DCI_SEARCH(level)                                                                          \
	const struct dci_search dci_search_##level = {                                                 \
		.rotate = rotate, .tabulate = tabulate, .scan = scan, .keep = keep}
/* clang-format on */
