/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The recurrence over vectors of MX_W floats, at the instruction set of the
 * including file. Sums over k_dim of S go through its rows in order, each
 * column in a lane of its own. Sums of products of two rows of k_dim elements:
 * element i in lane i % MX_W, and then vf_sum4's tree.
 */
#include <string.h>

#include "device/cpu/vec.h"
#include "mixers/linear/linear_kernels.h"

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

/* Tiles that leave room in the registers for their operands. */
#if MX_W == 16
#define TILE_ROWS 4
#define TILE_VECS 4
#define DOT_ROWS  4
#else
#define TILE_ROWS 4
#define TILE_VECS 2
#define DOT_ROWS  2
#endif
#define ROW_VECS (LIN_COLS / MX_W < 8 ? LIN_COLS / MX_W : 8) /* of a tile of one row */

#define Q MX_LIN_CHUNK

static unsigned lin_begin(void)
{
#if defined(__SSE__)
	unsigned state = _mm_getcsr();
	_mm_setcsr(state | 0x8040); /* flush to zero, denormals are zero */
	return state;
#else
	return 0;
#endif
}

static void lin_end(unsigned state)
{
#if defined(__SSE__)
	_mm_setcsr(state);
#else
	(void)state;
#endif
}

/* ---- scores: rows of the chunk against its keys ---- */

/* out[r][0..3] = x_r . k_0..3 */
MX_INLINE void dot_tile(const unsigned rows, const float *x, size_t ldx, const float *const *k,
                        uint32_t n, float *out)
{
	vf acc[DOT_ROWS][4];
	for (unsigned r = 0; r < rows; r++)
		for (unsigned j = 0; j < 4; j++)
			acc[r][j] = (vf){0};
	for (uint32_t i = 0; i < n; i += MX_W) {
		vf key[4];
		for (unsigned j = 0; j < 4; j++)
			key[j] = vf_load(k[j] + i);
		for (unsigned r = 0; r < rows; r++) {
			vf v = vf_load(x + r * ldx + i);
			for (unsigned j = 0; j < 4; j++)
				acc[r][j] = vf_fma(v, key[j], acc[r][j]);
		}
	}
	for (unsigned r = 0; r < rows; r++) {
		v4f sums = vf_sum4(acc[r][0], acc[r][1], acc[r][2], acc[r][3]);
		memcpy(out + r * Q, &sums, sizeof(sums));
	}
}

/* The keys that a row sees: up to its own, or those before it. */
MX_INLINE uint32_t visible(uint32_t r, bool past)
{
	return past ? r : r + 1;
}

/* One factor a token: the products are shared by all of k. */
static void scores_scalar(const struct lin_chunk *c, const float *x, uint32_t r0, uint32_t r1,
                          bool past, float *s, float *w)
{
	uint32_t r = r0, ld = c->ldk;
	for (; r + DOT_ROWS <= r1; r += DOT_ROWS)
		for (uint32_t j = 0; j < visible(r + DOT_ROWS - 1, past); j += 4)
			dot_tile(DOT_ROWS, x + (size_t)r * ld, ld, c->k + j, ld, s + r * Q + j);
	for (; r < r1; r++)
		for (uint32_t j = 0; j < visible(r, past); j += 4)
			dot_tile(1, x + (size_t)r * ld, ld, c->k + j, ld, s + r * Q + j);
	for (r = r0; r < r1; r++, w += ld) {
		float p = past ? *c->a[r] : 1;
		for (uint32_t j = visible(r, past); j-- > 0; p *= *c->a[j])
			s[r * Q + j] *= p;
		for (uint32_t i = 0; i < ld; i += MX_W)
			vf_store(w + i, vf_load(x + (size_t)r * ld + i) * vf_set(p));
	}
}

/* s[j] = w . k_j, then w *= a_j, for n tokens downwards: j = n - 1 .. 0. */
MX_INLINE void decayed_dots(const unsigned n, const float *const *k, const float *const *a,
                            uint32_t len, float *w, float *s)
{
	vf acc[4] = {{0}, {0}, {0}, {0}};
	for (uint32_t i = 0; i < len; i += MX_W) {
		vf v = vf_load(w + i);
		for (unsigned j = n; j-- > 0;) {
			acc[j] = vf_fma(v, vf_load(k[j] + i), acc[j]);
			v *= vf_load(a[j] + i);
		}
		vf_store(w + i, v);
	}
	v4f sums = vf_sum4(acc[0], acc[1], acc[2], acc[3]);
	memcpy(s, &sums, n * sizeof(*s));
}

static void scores_vector(const struct lin_chunk *c, const float *x, uint32_t r0, uint32_t r1,
                          bool past, float *s, float *w)
{
	uint32_t ld = c->ldk;
	for (uint32_t r = r0; r < r1; r++, w += ld) {
		uint32_t j = visible(r, past);
		for (uint32_t i = 0; i < ld; i += MX_W) {
			vf v = vf_load(x + (size_t)r * ld + i);
			vf_store(w + i, past ? v * vf_load(c->a[r] + i) : v);
		}
		for (; j >= 4; j -= 4)
			decayed_dots(4, c->k + j - 4, c->a + j - 4, ld, w, s + r * Q + j - 4);
		for (; j > 0; j--)
			decayed_dots(1, c->k + j - 1, c->a + j - 1, ld, w, s + r * Q + j - 1);
	}
}

static void scores(const struct lin_chunk *c, const float *x, uint32_t r0, uint32_t r1, bool past,
                   float *s, float *w)
{
	if (c->vector)
		scores_vector(c, x, r0, r1, past, s, w);
	else
		scores_scalar(c, x, r0, r1, past, s, w);
}

/* ---- keys of a whole chunk, for fold ---- */

static void keys(const struct lin_chunk *c, float *k, float *d)
{
	float p[Q + 1];
	p[Q] = 1;
	for (unsigned j = Q; !c->vector && j-- > 0;)
		p[j] = p[j + 1] * *c->a[j];
	for (uint32_t i = 0; i < c->ldk; i += MX_W) {
		vf v = vf_set(1);
		for (unsigned j = Q; j-- > 0;) {
			vf_store(k + (size_t)j * c->ldk + i, vf_load(c->k[j] + i) * v);
			v = c->vector ? v * vf_load(c->a[j] + i) : vf_set(p[j]);
		}
		vf_store(d + i, v);
	}
}

/* ---- S read: t[i] = S^T w[i] ---- */

MX_INLINE void read_tile(const unsigned rows, const unsigned vecs, uint32_t k_dim, const float *w,
                         size_t ldw, const float *S, uint32_t width, float *t)
{
	vf acc[TILE_ROWS][ROW_VECS];
	for (unsigned r = 0; r < rows; r++)
		for (unsigned v = 0; v < vecs; v++)
			acc[r][v] = (vf){0};
	for (uint32_t k = 0; k < k_dim; k++, S += width) {
		vf state[ROW_VECS];
		for (unsigned v = 0; v < vecs; v++)
			state[v] = vf_load(S + v * MX_W);
		for (unsigned r = 0; r < rows; r++) {
			vf x = vf_set(w[r * ldw + k]);
			for (unsigned v = 0; v < vecs; v++)
				acc[r][v] = vf_fma(x, state[v], acc[r][v]);
		}
	}
	for (unsigned r = 0; r < rows; r++)
		for (unsigned v = 0; v < vecs; v++)
			vf_store(t + r * LIN_COLS + v * MX_W, acc[r][v]);
}

MX_INLINE void read_rows(const unsigned rows, const unsigned vecs, uint32_t k_dim, const float *w,
                         size_t ldw, const float *S, uint32_t width, float *t)
{
	uint32_t v = 0;
	for (; v + vecs * MX_W <= width; v += vecs * MX_W)
		read_tile(rows, vecs, k_dim, w, ldw, S + v, width, t + v);
	for (; v < width; v += MX_W)
		read_tile(rows, 1, k_dim, w, ldw, S + v, width, t + v);
}

static void read_state(uint32_t k_dim, uint32_t n, const float *w, size_t ldw, const float *S,
                       uint32_t width, float *t)
{
	for (; n >= TILE_ROWS; n -= TILE_ROWS, w += TILE_ROWS * ldw, t += TILE_ROWS * LIN_COLS)
		read_rows(TILE_ROWS, TILE_VECS, k_dim, w, ldw, S, width, t);
	switch (n) {
	case 3: read_rows(3, TILE_VECS, k_dim, w, ldw, S, width, t); break;
	case 2: read_rows(2, TILE_VECS, k_dim, w, ldw, S, width, t); break;
	case 1: read_rows(1, ROW_VECS, k_dim, w, ldw, S, width, t); break;
	default: break;
	}
}

/* ---- the chunk's tokens: u of the delta rule, outputs ---- */

/* acc += sum of s[j] u_j, j < n, in columns col .. */
MX_INLINE void add_tokens(const unsigned vecs, const struct lin_chunk *c, uint32_t n, uint32_t col,
                          const float *s, vf *acc)
{
	for (uint32_t j = 0; j < n; j++) {
		vf x = vf_set(s[j]);
		for (unsigned v = 0; v < vecs; v++)
			acc[v] = vf_fma(x, vf_load(c->u[j] + col + v * MX_W), acc[v]);
	}
}

MX_INLINE void merge_row(const unsigned vecs, const struct lin_chunk *c, uint32_t n, uint32_t col,
                         const float *s, float *t)
{
	vf acc[ROW_VECS];
	for (unsigned v = 0; v < vecs; v++)
		acc[v] = vf_load(t + v * MX_W);
	add_tokens(vecs, c, n, col, s, acc);
	for (unsigned v = 0; v < vecs; v++)
		vf_store(t + v * MX_W, acc[v]);
}

static void merge(const struct lin_chunk *c, uint32_t r0, uint32_t r1, uint32_t col, uint32_t width,
                  const float *s, float *t)
{
	for (uint32_t r = r0; r < r1; r++, t += LIN_COLS) {
		uint32_t v = 0;
		for (; v + ROW_VECS * MX_W <= width; v += ROW_VECS * MX_W)
			merge_row(ROW_VECS, c, r + 1, col + v, s + r * Q, t + v);
		for (; v < width; v += MX_W)
			merge_row(1, c, r + 1, col + v, s + r * Q, t + v);
	}
}

MX_INLINE void delta_row(const unsigned vecs, const struct lin_chunk *c, uint32_t r, uint32_t col,
                         const float *s, const float *t, const float *v, float beta)
{
	vf acc[ROW_VECS];
	for (unsigned i = 0; i < vecs; i++)
		acc[i] = vf_load(t + i * MX_W);
	add_tokens(vecs, c, r, col, s, acc);
	for (unsigned i = 0; i < vecs; i++)
		vf_store(c->u[r] + col + i * MX_W, vf_set(beta) * (vf_load(v + col + i * MX_W) - acc[i]));
}

static void delta(const struct lin_chunk *c, uint32_t r0, uint32_t r1, uint32_t col, uint32_t width,
                  const float *s, const float *t, const float *v, size_t ldv, const float *beta)
{
	for (uint32_t r = r0; r < r1; r++, t += LIN_COLS) {
		const float *vr = v + r * ldv;
		uint32_t i = 0;
		for (; i + ROW_VECS * MX_W <= width; i += ROW_VECS * MX_W)
			delta_row(ROW_VECS, c, r, col + i, s + r * Q, t + i, vr, beta[r]);
		for (; i < width; i += MX_W)
			delta_row(1, c, r, col + i, s + r * Q, t + i, vr, beta[r]);
	}
}

/* ---- S takes up a chunk ---- */

MX_INLINE void fold_tile(const unsigned rows, const unsigned vecs, const struct lin_chunk *c,
                         const float *k, const float *d, uint32_t col, uint32_t width,
                         const float *S, float *to)
{
	vf acc[TILE_ROWS][TILE_VECS];
	for (unsigned r = 0; r < rows; r++)
		for (unsigned v = 0; v < vecs; v++)
			acc[r][v] = vf_set(d[r]) * vf_load(S + r * width + v * MX_W);
	for (unsigned j = 0; j < Q; j++, k += c->ldk) {
		vf u[TILE_VECS];
		for (unsigned v = 0; v < vecs; v++)
			u[v] = vf_load(c->u[j] + col + v * MX_W);
		for (unsigned r = 0; r < rows; r++) {
			vf x = vf_set(k[r]);
			for (unsigned v = 0; v < vecs; v++)
				acc[r][v] = vf_fma(x, u[v], acc[r][v]);
		}
	}
	for (unsigned r = 0; r < rows; r++)
		for (unsigned v = 0; v < vecs; v++)
			vf_store(to + r * width + v * MX_W, acc[r][v]);
}

MX_INLINE void fold_rows(const unsigned rows, const struct lin_chunk *c, const float *k,
                         const float *d, uint32_t col, uint32_t width, const float *S, float *to)
{
	uint32_t v = 0;
	for (; v + TILE_VECS * MX_W <= width; v += TILE_VECS * MX_W)
		fold_tile(rows, TILE_VECS, c, k, d, col + v, width, S + v, to + v);
	for (; v < width; v += MX_W)
		fold_tile(rows, 1, c, k, d, col + v, width, S + v, to + v);
}

static void fold(const struct lin_chunk *c, const float *k, const float *d, uint32_t col,
                 uint32_t width, const float *S, float *to)
{
	uint32_t i = 0;
	for (; i + TILE_ROWS <= c->k_dim; i += TILE_ROWS)
		fold_rows(TILE_ROWS, c, k + i, d + i, col, width, S + (size_t)i * width,
		          to + (size_t)i * width);
	for (; i < c->k_dim; i++)
		fold_rows(1, c, k + i, d + i, col, width, S + (size_t)i * width, to + (size_t)i * width);
}

/* ---- without keys: each channel on its own ---- */

static void scan(uint32_t n, uint32_t width, const float *a, size_t lda, const float *v, size_t ldv,
                 float *h, float *y, size_t ldy)
{
	for (uint32_t i = 0; i < width; i += MX_W) {
		size_t lanes = width - i < MX_W ? width - i : MX_W;
		bool all = lanes == MX_W;
		vf state = vf_load(h + i); /* padded */
		for (uint32_t t = 0; t < n; t++) {
			const float *at = a + t * lda + i, *vt = v + t * ldv + i;
			state = vf_fma(all ? vf_load(at) : vf_load_part(at, lanes, 0), state,
			               all ? vf_load(vt) : vf_load_part(vt, lanes, 0));
			if (y && all)
				vf_store(y + t * ldy + i, state);
			else if (y)
				vf_store_part(y + t * ldy + i, state, lanes);
		}
		vf_store(h + i, state);
	}
}

#undef Q
