/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the operators on rows of the CPU device (norms, activations, rope, embedding ...): every
 * instruction set of this machine against the reference, and the promise that a row's bits depend
 * on nothing but the row.
 *
 * Random inputs come from one seed, printed; MIXD_TEST_SEED replays it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "tests/device/ops_rig.h"

/* Compares n floats: |got - want| <= tolerance * (|want| + floor). */
static void check_close(const char *what, const char *level, const float *got, const float *want,
                        size_t n, float tolerance, float floor)
{
	for (size_t i = 0; i < n; i++)
		if (!(fabsf(got[i] - want[i]) <= tolerance * (fabsf(want[i]) + floor)))
			fail_msg("%s at %s: [%zu] = %.9g, not %.9g", what, level, i, (double)got[i],
			         (double)want[i]);
}

static const size_t widths[] = {1, 3, 7, 16, 31, 64, 100, 768, 1030, 2048};
#define N_WIDTHS (sizeof widths / sizeof *widths)

static void test_rmsnorm(void **state)
{
	(void)state;
	enum { N = 9 };
	for (size_t j = 0; j < N_WIDTHS; j++) {
		size_t w = widths[j], n = N * w;
		struct guarded gx = guard_floats(n), gr = guard_floats(n), gw = guard(w * sizeof(float)),
					   gy = guard_floats(n), sum = guard_floats(n);
		float *want = calloc(n, sizeof *want), *added = calloc(n, sizeof *added);
		fill_floats(gx.data, n);
		fill_floats(gr.data, n);
		fill_floats(gw.data, w);
		memcpy(added, gx.data, n * sizeof(float));
		devices[0]->ops->add_rmsnorm(devices[0], added, gr.data, gw.data, 1e-5f, N, w, want);
		FOR_LEVELS(l)
		{
			struct mx_device *d = devices[l];
			memcpy(sum.data, gx.data, n * sizeof(float));
			d->ops->add_rmsnorm(d, sum.data, gr.data, gw.data, 1e-5f, N, w, gy.data);
			assert_memory_equal(sum.data, added, n * sizeof(float));
			/* a handful of roundings of 2^-24 on top of that of the mean */
			check_close("add_rmsnorm", d->info.isa, gy.data, want, n, 1e-6f, 0);
			/* in place, without a residual, row by row: the same bits */
			for (size_t i = 0; i < N; i++) {
				float *row = (float *)sum.data + i * w;
				d->ops->rmsnorm(d, row, gw.data, 1e-5f, 1, w, row);
			}
			assert_memory_equal(sum.data, gy.data, n * sizeof(float));
		}
		free(want);
		free(added);
		unguard(&gx);
		unguard(&gr);
		unguard(&gw);
		unguard(&gy);
		unguard(&sum);
	}
}

/* From the sums in double: the reference and every level. */
static void test_layernorm(void **state)
{
	(void)state;
	enum { N = 9 };
	for (size_t j = 0; j < N_WIDTHS; j++) {
		size_t w = widths[j], n = N * w;
		struct guarded gx = guard_floats(n), gr = guard_floats(n), gw = guard(w * sizeof(float)),
					   gb = guard(w * sizeof(float)), gy = guard_floats(n), sum = guard_floats(n);
		float *x = gx.data, *r = gr.data, *weight = gw.data, *bias = gb.data, *y = gy.data;
		float *added = calloc(n, sizeof *added);
		fill_floats(x, n);
		fill_floats(r, n);
		fill_floats(weight, w);
		fill_floats(bias, w);
		for (size_t i = 0; i < n; i++) {
			x[i] += i / w % 2 ? 3 : 0; /* half of the rows are off centre */
			added[i] = x[i] + r[i];
		}
		for (int l = 0; l <= (int)mx_cpu_isa_max() + 1; l++) {
			struct mx_device *d = devices[l];
			memcpy(sum.data, x, n * sizeof(float));
			d->ops->layernorm(d, sum.data, r, weight, bias, 1e-5f, N, w, y);
			assert_memory_equal(sum.data, added, n * sizeof(float));
			for (size_t i = 0; i < N; i++) {
				const float *row = added + i * w;
				double mean = 0, var = 0;
				for (size_t k = 0; k < w; k++)
					mean += (double)row[k] / (double)w;
				for (size_t k = 0; k < w; k++)
					var += ((double)row[k] - mean) * ((double)row[k] - mean) / (double)w;
				double scale = 1 / sqrt(var + 1e-5);
				for (size_t k = 0; k < w; k++) {
					double v = scale * (double)weight[k];
					double want = ((double)row[k] - mean) * v + (double)bias[k];
					/* |x| < 5: a few roundings of 2^-24 of that in the mean, and of the result */
					double tolerance = 1e-6 * (fabs(want) + fabs((double)bias[k]) + 5 * fabs(v));
					if (!(fabs((double)y[i * w + k] - want) <= tolerance))
						fail_msg("layernorm at level %d, width %zu: [%zu][%zu] = %.9g, not %.9g", l,
						         w, i, k, (double)y[i * w + k], want);
				}
			}
			/* in place, without a residual, row by row: the same bits */
			for (size_t i = 0; i < N; i++) {
				float *row = (float *)sum.data + i * w;
				d->ops->layernorm(d, row, NULL, weight, bias, 1e-5f, 1, w, row);
			}
			assert_memory_equal(sum.data, y, n * sizeof(float));
		}
		free(added);
		unguard(&gx);
		unguard(&gr);
		unguard(&gw);
		unguard(&gb);
		unguard(&gy);
		unguard(&sum);
	}
}

static void test_gelu_tanh(void **state)
{
	(void)state;
	enum { N = 10001 }; /* more than one task's */
	struct guarded gx = guard(N * sizeof(float)), gy = guard(N * sizeof(float));
	float *x = gx.data, *y = gy.data;
	for (size_t i = 0; i < N; i++)
		x[i] = uniform() * (i % 4 ? 6 : 40);
	x[0] = 0, x[1] = 1e10f, x[2] = -1e10f;
	for (int l = 0; l <= (int)mx_cpu_isa_max() + 1; l++) {
		struct mx_device *d = devices[l];
		memcpy(y, x, N * sizeof(float));
		d->ops->gelu_tanh(d, y, N);
		for (size_t i = 0; i < N; i++) {
			double v = (double)x[i], u = sqrt(2 / acos(-1)) * (v + 0.044715 * v * v * v);
			double want = v / (1 + exp(-2 * u));
			/* four roundings of 2^-24 in 2 u, which exp makes relative ones where it is large, and
			 * a few more; exp stops at 88, leaving under 1e-28 of x */
			double tolerance = 2.4e-7 * (2 + fmin(fabs(2 * u), 88)) * fabs(want) + 1e-28 * fabs(v);
			if (!(fabs((double)y[i] - want) <= tolerance))
				fail_msg("gelu_tanh at level %d of %.9g: %.9g, not %.9g", l, v, (double)y[i], want);
		}
		for (size_t n = 1, first = 0; first + n < N;
		     first += n, n += 7) { /* among any number of others */
			float part[512];
			memcpy(part, x + first, n * sizeof(float));
			d->ops->gelu_tanh(d, part, n);
			assert_memory_equal(part, y + first, n * sizeof(float));
		}
	}
	for (unsigned t = 1; t <= 3; t++) { /* y is what the best level made of it */
		struct guarded g = guard(N * sizeof(float));
		memcpy(g.data, x, N * sizeof(float));
		with_threads[t]->ops->gelu_tanh(with_threads[t], g.data, N);
		assert_memory_equal(g.data, y, N * sizeof(float));
		unguard(&g);
	}
	unguard(&gx);
	unguard(&gy);
}

static double activation(enum mx_act act, double x)
{
	switch (act) {
	case MX_ACT_SILU: return x / (1 + exp(-x));
	case MX_ACT_GELU_TANH:
		return x / (1 + exp(-2 * sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
	case MX_ACT_GELU: return x / 2 * erfc(-x / sqrt(2));
	case MX_ACT_RELU2: break;
	}
	return x > 0 ? x * x : 0;
}

/* Every activation, gated and not: against double precision, and a row alone against the row among
 * others. */
static void test_act_mul(void **state)
{
	(void)state;
	enum { N = 7 };
	for (size_t j = 0; j < N_WIDTHS; j++) {
		size_t w = widths[j], ld = 2 * w + 1;
		struct guarded gx = guard_floats(N * ld), gy = guard_floats(N * w);
		struct guarded alone = guard_floats(w);
		float *x = gx.data, *y = gy.data;
		for (size_t i = 0; i < N * ld; i++)
			x[i] = uniform() * (i % 4 ? 4 : 30);
		for (int l = 0; l <= (int)mx_cpu_isa_max() + 1; l++)
			for (int act = MX_ACT_SILU; act <= MX_ACT_RELU2; act++)
				for (int gated = 0; gated < 2; gated++) {
					struct mx_device *d = devices[l];
					const float *up = gated ? x + w : NULL;
					d->ops->act_mul(d, (enum mx_act)act, x, ld, up, ld, N, w, y, w);
					for (size_t i = 0; i < N * w; i++) {
						double g = (double)x[i / w * ld + i % w];
						double u = gated ? (double)x[i / w * ld + w + i % w] : 1;
						double want = activation((enum mx_act)act, g) * u;
						/* roundings of the exponent's argument; the error function has 1.5e-7 */
						double tolerance = 4e-7 * (2 + fmin(fabs(2 * g), 88)) * fabs(want) +
						                   3e-7 * fabs(g * u) + 1e-28;
						if (!(fabs((double)y[i] - want) <= tolerance))
							fail_msg("activation %d at level %d, width %zu: [%zu] of %.9g = %.9g, "
							         "not %.9g",
							         act, l, w, i, g, (double)y[i], want);
					}
					d->ops->act_mul(d, (enum mx_act)act, x + 3 * ld, ld, up ? up + 3 * ld : NULL,
					                ld, 1, w, alone.data, w);
					assert_memory_equal(alone.data, y + 3 * w, w * sizeof(float));
				}
		unguard(&gx);
		unguard(&gy);
		unguard(&alone);
	}
}

static void test_softcap_logits(void **state)
{
	(void)state;
	enum { N = 3, VOCAB = 5003, LD = 5008 };
	struct guarded gx = guard_floats((size_t)N * LD), gy = guard_floats((size_t)N * LD);
	float *x = gx.data, *y = gy.data;
	for (size_t i = 0; i < (size_t)N * LD; i++)
		x[i] = uniform() * (i % 8 ? 60 : 1e5f);
	for (int l = 0; l <= (int)mx_cpu_isa_max() + 1; l++) {
		memcpy(y, x, (size_t)N * LD * sizeof(float));
		devices[l]->ops->softcap_logits(devices[l], y, LD, N, VOCAB, 30);
		for (size_t i = 0; i < (size_t)N * LD; i++) {
			bool used = i % LD < VOCAB;
			double want = used ? 30 * tanh((double)x[i] / 30) : (double)x[i];
			if (!(fabs((double)y[i] - want) <= (used ? 1e-5 : 0)))
				fail_msg("softcap at level %d of %.9g: %.9g, not %.9g", l, (double)x[i],
				         (double)y[i], want);
		}
	}
	unguard(&gx);
	unguard(&gy);
}

static void test_silu_mul(void **state)
{
	(void)state;
	enum { N = 7 };
	for (size_t j = 0; j < N_WIDTHS; j++) {
		size_t w = widths[j], ld = 2 * w + 1;
		struct guarded gx = guard_floats(N * ld), gy = guard_floats(N * w);
		float *x = gx.data, *want = calloc(N * w, sizeof *want);
		fill_floats(x, N * ld);
		for (size_t i = 0; i < N * ld; i++)
			x[i] *= rng() % 4 ? 8 : 120;
		devices[0]->ops->act_mul(devices[0], MX_ACT_SILU, x, ld, x + w, ld, N, w, want, w);
		FOR_LEVELS(l)
		{
			struct mx_device *d = devices[l];
			d->ops->silu_mul(d, x, ld, x + w, ld, N, w, gy.data, w);
			/* exp to 2 ulp; for gates below -88 exp stops there, leaving under 1e-34 */
			check_close("silu_mul", d->info.isa, gy.data, want, N * w, 1e-6f, 1e-28f);
			float *y = gy.data;
			for (size_t i = 0; i < w; i++) { /* each element alone: the same bits */
				float one[16];
				d->ops->act_mul(d, MX_ACT_SILU, x + i, ld, x + w + i, ld, 1, 1, one, 1);
				assert_memory_equal(one, y + i, sizeof(float));
			}
		}
		free(want);
		unguard(&gx);
		unguard(&gy);
	}
}

static void test_rope(void **state)
{
	(void)state;
	static const uint32_t dims[][2] = {{2, 2}, {8, 8}, {20, 32}, {64, 64}, {96, 128}};
	enum { N = 6, HEADS = 3 };
	for (size_t j = 0; j < sizeof dims / sizeof *dims; j++) {
		uint32_t dim = dims[j][0], hd = dims[j][1];
		float freq[64], norm[128], y[N * HEADS * 128], x[N * HEADS * 128], want[N * HEADS * 128];
		uint32_t pos[N] = {0, 1, 7, 4095, 131071, 1048575};
		size_t ld = HEADS * hd, n = N * ld;
		for (uint32_t i = 0; i < dim / 2; i++)
			freq[i] = powf(10000.0f, -2.0f * (float)i / (float)dim);
		fill_floats(x, n);
		fill_floats(norm, hd);
		struct mx_rope r = {.inv_freq = freq, .dim = dim, .scale = 1.25f};
		for (int normed = 0; normed < 2; normed++) {
			memcpy(want, x, sizeof x);
			devices[0]->ops->rope(devices[0], want, ld, N, HEADS, hd, &r, pos, normed ? norm : NULL,
			                      1e-6f);
			FOR_LEVELS(l)
			{
				struct mx_device *d = devices[l];
				memcpy(y, x, sizeof x);
				assert_int_equal(
					d->ops->rope(d, y, ld, N, HEADS, hd, &r, pos, normed ? norm : NULL, 1e-6f),
					MX_OK);
				/* two products and a sum, each rounded, of sines good to 1 ulp */
				check_close("rope", d->info.isa, y, want, n, 1e-6f, 1);
				for (size_t i = 0; i < N; i++) { /* each row alone, other positions before it */
					float row[HEADS * 128];
					memcpy(row, x + i * ld, ld * sizeof(float));
					d->ops->rope(d, row, ld, 1, HEADS, hd, &r, pos + i, normed ? norm : NULL,
					             1e-6f);
					assert_memory_equal(row, y + i * ld, ld * sizeof(float));
				}
			}
		}
	}
}

/* The angle is rounded to f32 as the Hugging Face models do; its sine is then exact to an ulp. */
static void test_rope_accuracy(void **state)
{
	(void)state;
	FOR_LEVELS(l)
	{
		for (int i = 0; i < 2000; i++) {
			float freq = powf(10.0f, -6.0f * (float)(rng() % 1000) / 1000), cs[2];
			uint32_t pos = rng() % (1u << 20);
			tables[l].rope_table(pos, &freq, 1, 1.0f, cs);
			double angle = (double)((float)pos * freq);
			assert_true(fabs((double)cs[0] - cos(angle)) <= 7e-8);
			assert_true(fabs((double)cs[1] - sin(angle)) <= 7e-8);
		}
	}
}

static void test_embed(void **state)
{
	(void)state;
	static const int32_t ids[] = {0, 9, 4, 9, 10};
	for (int t = MX_F32; t <= MX_BF16; t++) {
		for (size_t j = 0; j < N_WIDTHS; j++) {
			struct mx_weight w;
			struct guarded g = random_weight((enum mx_dtype)t, 11, (uint32_t)widths[j], &w);
			struct guarded gy = guard_floats(5 * widths[j]);
			float *y = gy.data;
			FOR_LEVELS(l)
			{
				struct mx_device *d = devices[l];
				assert_int_equal(d->ops->embed(d, &w, ids, 5, y), MX_OK);
				for (size_t i = 0; i < 5 * widths[j]; i++)
					assert_true(y[i] ==
					            weight_at(&w, (size_t)ids[i / widths[j]] * w.cols + i % widths[j]));
				int32_t bad = 11;
				assert_int_equal(d->ops->embed(d, &w, &bad, 1, y), MX_E_RANGE);
				bad = -1;
				assert_int_equal(d->ops->embed(d, &w, &bad, 1, y), MX_E_RANGE);
			}
			unguard(&g);
			unguard(&gy);
		}
	}
}

/* Every half there is, and infinities. */
static void test_convert_all(void **state)
{
	(void)state;
	static uint16_t all[65536];
	static float y[65536];
	for (uint32_t i = 0; i < 65536; i++)
		all[i] = (uint16_t)i;
	FOR_LEVELS(l)
	{
		for (int t = MX_F16; t <= MX_BF16; t++) {
			tables[l].convert(all, (enum mx_dtype)t, 65536, y);
			for (uint32_t i = 0; i < 65536; i++) {
				float want = t == MX_F16 ? mx_f16_to_f32(all[i]) : mx_bf16_to_f32(all[i]);
				assert_true(isnan(want) ? isnan(y[i]) : !memcmp(&want, &y[i], 4));
			}
		}
	}
}

static void test_exp_max(void **state)
{
	(void)state;
	enum { N = 2500 };
	struct guarded gx = guard(N * sizeof(float)), gy = guard(N * sizeof(float));
	float *x = gx.data, *y = gy.data;
	double sums[3];
	for (size_t i = 0; i < N; i++)
		x[i] = uniform() * 90;
	FOR_LEVELS(l)
	{
		for (size_t n = 1; n < N; n += 1 + n / 3) {
			float max = tables[l].max(x, n);
			assert_true(max == tables[0].max(x, n));
			tables[l].exp_sums(x, n, max, 0.5f, y, sums);
			double total = 0, want = 0;
			for (size_t i = 0; i < n; i++) {
				double e = exp((double)((x[i] - max) * 0.5f));
				/* 2 ulp of 2^-24, or 0 below the normal numbers */
				assert_true(fabs((double)y[i] - e) <= e * 2.4e-7 + 1.3e-38);
				want += e;
			}
			for (size_t b = 0; b * MX_SUM_BLOCK < n; b++)
				total += sums[b];
			assert_true(fabs(total - want) <= 1e-6 * want);
		}
		float keep = x[77];
		x[77] = NAN;
		assert_true(isnan(tables[l].max(x, 100)));
		assert_true(isnan(tables[l].max(x + 76, 2)));
		x[77] = keep;
	}
	unguard(&gx);
	unguard(&gy);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rmsnorm),  cmocka_unit_test(test_layernorm),
		cmocka_unit_test(test_silu_mul), cmocka_unit_test(test_gelu_tanh),
		cmocka_unit_test(test_act_mul),  cmocka_unit_test(test_softcap_logits),
		cmocka_unit_test(test_rope),     cmocka_unit_test(test_rope_accuracy),
		cmocka_unit_test(test_embed),    cmocka_unit_test(test_convert_all),
		cmocka_unit_test(test_exp_max),
	};
	return cmocka_run_group_tests(tests, ops_setup, ops_teardown);
}
