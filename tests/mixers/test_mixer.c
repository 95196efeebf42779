/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The generic mixer test (tools/test-mixer) on every module of some folders, with the cases of
 * mixer_cases.h, at every instruction set of this host.
 *
 *   test_mixer [DIR[:DIR...] [TEST]]   modules, default mixers/.libs; name of one test
 *
 * MIXD_TEST_SEED=n repeats a run. MIXD_TEST_CASE=text leaves out the cases in whose name, "mixer,
 * label", it is not. With MIXD_TEST_DEVICE=cuda:0 only the modules for CUDA devices
 * are tried, on that device, with `deterministic` on (tests/gpu/test_mixer).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/paths.h"
#include "device/cpu/cpu.h"
#include "tests/mixers/mixer_cases.h"
#include "tests/mixers/ranked.h"
#include "tools/test-mixer/trials.h"

static struct mx_registry *registry;
static const char *gpu; /* MIXD_TEST_DEVICE */
static uint64_t seed;

static void failed(const char *text)
{
	fail_msg("%s", text);
}

static struct rig_options options_of(const struct mixer_set *set)
{
	return (struct rig_options){
		.registry = registry, .mixer = set->mixer, .device = gpu, .seed = seed};
}

static bool wanted(const char *mixer, const struct mixer_case *c)
{
	char name[256];
	const char *text = getenv("MIXD_TEST_CASE");
	snprintf(name, sizeof name, "%s, %s", mixer, c->label);
	return !text || strstr(name, text);
}

/* The highest level of this host gets all trials. The others have other kernels, but the same code
 * around them, and get a part; so do builds with a sanitizer. */
static void run_isa(enum mx_isa isa)
{
	if (isa > mx_cpu_isa())
		skip();
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	if (isa < mx_cpu_isa())
		skip(); /* an order slower; what a sanitizer finds is the same at every level */
#endif
	for (const struct mixer_set *const *set = mixer_sets; *set; set++) {
		struct rig_options o = options_of(*set);
		o.isa = isa;
		o.thorough = isa == mx_cpu_isa() && !RUN_SLOWLY;
		for (size_t i = 0; i < (*set)->n_cases; i++)
			if (wanted(o.mixer, &(*set)->cases[i]) &&
			    mx_registry_find(registry, o.mixer, MX_DEVICE_CPU, NULL))
				trials_run(&o, *set, &(*set)->cases[i]);
	}
}

#define TEST_ISA(name, isa)                                                                        \
	static void test_##name(void **state)                                                          \
	{                                                                                              \
		(void)state;                                                                               \
		run_isa(isa);                                                                              \
	}
TEST_ISA(portable, MX_ISA_PORTABLE)
TEST_ISA(avx2, MX_ISA_AVX2)
TEST_ISA(avx512, MX_ISA_AVX512)
TEST_ISA(avx512_bf16, MX_ISA_AVX512_BF16)
TEST_ISA(amx_bf16, MX_ISA_AMX_BF16)

/* True if the ranks can share the case's layer. */
static bool splits(const struct mx_mixer_ops *ops, const struct mixer_case *c)
{
	const struct mx_layer_desc layer = {
		.index = CASE_LAYER,
		.n_layers = CASE_LAYERS,
		.width = c->width,
		.max_context = c->tokens,
		.max_rows = c->tokens,
		.max_spans = 1,
		.ranks = 1,
		.weight_dtype = c->weight_dtype,
		.state_dtype = c->state_dtype,
		.params = {c->params, c->n_params},
	};
	struct mx_device *d;
	assert_int_equal(mx_cpu_create(1, mx_cpu_isa(), c->tokens, c->width, &d, NULL), MX_OK);
	mx_status st = ops->probe(&layer, d, NULL);
	d->ops->destroy(d);
	assert_true(st == MX_OK || st == MX_E_UNSUPPORTED);
	return st == MX_OK;
}

/* Every mixer on several ranks: split by heads or channels, and with pages that ranks share. */
static void test_ranks(void **state)
{
	static const uint32_t layouts[][2] = {{2, 1}, {3, 1}, {4, 1}, {1, 2}, {1, 4}, {2, 2}};
	(void)state;
	if (gpu)
		skip();
	/* a sanitizer sees the same in every layout */
	for (size_t l = RUN_SLOWLY ? 5 : 0; l < sizeof layouts / sizeof *layouts; l++)
		for (const struct mixer_set *const *set = mixer_sets; *set; set++) {
			const uint32_t tensor = layouts[l][0], context = layouts[l][1];
			struct rig_options o = options_of(*set);
			const struct mx_mixer_ops *ops =
				mx_registry_find(registry, o.mixer, MX_DEVICE_CPU, NULL);
			uint32_t n = 0;
			if (!ops || !(ops->caps & MX_MIXER_RANKS) ||
			    (context > 1 && !(ops->caps & MX_MIXER_CONTEXT)))
				continue;
			o.isa = mx_cpu_isa();
			o.ops = ranked(ops, tensor, context, o.isa);
			/* three ranks and four take a half of the cases each */
			const size_t first = tensor == 4, by = tensor > 2 ? 2 : 1;
			for (size_t i = first; i < (*set)->n_cases; i += by)
				if (wanted(o.mixer, &(*set)->cases[i]) && splits(o.ops, &(*set)->cases[i])) {
					trials_run(&o, *set, &(*set)->cases[i]);
					n++;
				}
			print_message("%s, tensor %u, context %u: %u of %zu cases\n", o.mixer, tensor, context,
			              n, (*set)->n_cases);
			assert_true(n || getenv("MIXD_TEST_CASE"));
		}
}

/* True if the CUDA side has no such layer: its module says so. */
static bool on_cpus_only(const char *mixer, const struct mixer_case *c)
{
	static const char *const cases[] = {"attention, keys and values in int8", "mla, head_gate"};
	char name[256];
	snprintf(name, sizeof name, "%s, %s", mixer, c->label);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		if (!strncmp(name, cases[i], strlen(cases[i])))
			return true;
	return false;
}

/* Modules for the device of MIXD_TEST_DEVICE. */
static void test_device(void **state)
{
	(void)state;
	if (!gpu)
		skip();
	for (const struct mixer_set *const *set = mixer_sets; *set; set++) {
		const struct rig_options o = options_of(*set);
		for (size_t i = 0; i < (*set)->n_cases; i++)
			if (wanted(o.mixer, &(*set)->cases[i]) &&
			    mx_registry_find(registry, o.mixer, MX_DEVICE_CUDA, NULL)) {
				const struct mixer_case *c = &(*set)->cases[i];
				print_message("%s, %s\n", o.mixer, c->label);
				if (on_cpus_only(o.mixer, c))
					rig_refuses(c, &o);
				else
					trials_run(&o, *set, c);
			}
	}
}

static void test_tables(void **state)
{
	const char *path;
	const struct mx_mixer_ops *ops;
	(void)state;
	assert_non_null(mx_registry_at(registry, 0, NULL));
	for (size_t i = 0; (ops = mx_registry_at(registry, i, &path)); i++) {
		trials_table(ops);
		print_message("%s: %s (%s)\n", ops->name, ops->summary, path);
	}
}

/* Probe names the parameter that is wrong. */
static void test_probe(void **state)
{
	(void)state;
	for (const struct mixer_set *const *set = mixer_sets; *set; set++) {
		const struct rig_options o = options_of(*set);
		if (mx_registry_find(registry, o.mixer, MX_DEVICE_CPU, NULL))
			trials_wrongs(&o, *set);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_tables),   cmocka_unit_test(test_probe),
		cmocka_unit_test(test_portable), cmocka_unit_test(test_avx2),
		cmocka_unit_test(test_avx512),   cmocka_unit_test(test_avx512_bf16),
		cmocka_unit_test(test_amx_bf16), cmocka_unit_test(test_ranks),
		cmocka_unit_test(test_device),
	};
	const char *dirs = argc > 1 ? argv[1] : "mixers/.libs", *s = getenv("MIXD_TEST_SEED");
	struct mx_err err = {0};

	seed = s ? strtoull(s, NULL, 10) : (uint64_t)time(NULL);
	seed = seed ? seed : 1; /* xorshift never leaves 0 */
	printf("seed %llu (MIXD_TEST_SEED repeats it)\n", (unsigned long long)seed);
	test_failed = failed;
	gpu = getenv("MIXD_TEST_DEVICE");
	if (gpu && !rig_can_open(gpu))
		return 77;
	if (mx_registry_create(&registry) != MX_OK)
		return 1;
	char dir[4096];
	while (mx_paths_next(&dirs, dir, sizeof(dir)))
		if (mx_registry_load_dir(registry, dir, &err) != MX_OK) {
			fprintf(stderr, "%s: %s\n", err.where, err.text);
			return 1;
		}
	if (gpu && mx_registry_load_cuda(registry, &err) != MX_OK) {
		fprintf(stderr, "%s: %s\n", err.where, err.text);
		return 1;
	}
	if (argc > 2 || gpu)
		cmocka_set_test_filter(gpu ? "test_device" : argv[2]);
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	mx_registry_destroy(registry);
	return failed;
}
