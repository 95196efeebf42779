/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mixd-test-mixer: the generic mixer test for one module, with cases from a JSON file. Exit status
 * 0 if every check passed, 1 if one failed, 2 if the test could not be run. See mixd-test-mixer(1).
 */
#include <getopt.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "device/cpu/cpu.h"
#include "device/open.h"
#include "tools/test-mixer/cases_json.h"
#include "tools/test-mixer/dump.h"
#include "tools/test-mixer/trials.h"

struct options {
	const char *module, *cases;
	const char *device;    /* NULL = CPU */
	const char *dump_case; /* label; NULL = no dump */
	const char *dump_file;
	int isa; /* -1 = every level of this host */
	unsigned long threads, seed;
	bool quick;
};

static void usage(FILE *to)
{
	fputs(
		"usage: mixd-test-mixer [OPTION]... MODULE.so CASES.json\n"
		"       mixd-test-mixer [OPTION]... --dump LABEL FILE MODULE.so CASES.json\n"
		"Checks the equalities of the mixer contract for a module, see mixd-test-mixer(1).\n"
		"  --device NAME      cpu (default), cuda or cuda:N\n"
		"  --isa LEVEL        portable, avx2, avx512, avx512-bf16 or amx-bf16; every level of\n"
		"                     this host by default\n"
		"  --threads N        largest number of threads, 3 by default\n"
		"  --seed N           repeats a run (MIXD_TEST_SEED does too)\n"
		"  --quick            a part of the trials\n"
		"  --dump LABEL FILE  writes x, y and the tensors of a case to a safetensors file instead\n"
		"Exit status: 0 all checks passed, 1 a check failed, 2 the test could not be run.\n",
		to);
}

/* ---- command line ---- */

static bool read_number(const char *text, unsigned long *out)
{
	char *end;
	*out = strtoul(text, &end, 10);
	return *text >= '0' && *text <= '9' && !*end;
}

static bool read_isa(const char *name, int *out)
{
	*out = (int)mx_isa_parse(name);
	return !strcmp(mx_isa_name((enum mx_isa) * out), name) && *out <= (int)mx_cpu_isa();
}

static bool read_device(const char *name, const char **out)
{
	enum mx_device_kind kind;
	if (!mx_device_parse(name, &kind, NULL))
		return false;
	*out = kind == MX_DEVICE_CPU ? NULL : name;
	return true;
}

/* Reads one option. False with a message if its value is wrong. */
static bool read_option(int c, char **argv, struct options *o)
{
	bool ok = true;
	switch (c) {
	case 'd': ok = read_device(optarg, &o->device); break;
	case 'i': ok = read_isa(optarg, &o->isa); break;
	case 't': ok = read_number(optarg, &o->threads) && o->threads && o->threads <= 64; break;
	case 's': ok = read_number(optarg, &o->seed) && o->seed; break;
	case 'q': o->quick = true; break;
	case 'o':
		o->dump_case = optarg;
		o->dump_file = argv[optind] ? argv[optind++] : NULL;
		ok = o->dump_file != NULL;
		break;
	default: usage(stderr); return false;
	}
	if (!ok)
		fprintf(stderr, "mixd-test-mixer: \"%s\" is not possible here\n", optarg);
	return ok;
}

/* Returns the exit status, or -1 to go on. */
static int read_options(int argc, char **argv, struct options *o)
{
	static const struct option options[] = {
		{"device", required_argument, NULL, 'd'},  {"isa", required_argument, NULL, 'i'},
		{"threads", required_argument, NULL, 't'}, {"seed", required_argument, NULL, 's'},
		{"quick", no_argument, NULL, 'q'},         {"dump", required_argument, NULL, 'o'},
		{"help", no_argument, NULL, 'h'},          {NULL, 0, NULL, 0}};
	const char *seed = getenv("MIXD_TEST_SEED");
	if (!seed || !read_number(seed, &o->seed) || !o->seed)
		o->seed = (unsigned long)time(NULL);
	for (int c; (c = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
		if (c == 'h') {
			usage(stdout);
			return 0;
		}
		if (!read_option(c, argv, o))
			return 2;
	}
	if (argc - optind != 2) {
		usage(stderr);
		return 2;
	}
	o->module = argv[optind];
	o->cases = argv[optind + 1];
	return -1;
}

/* ---- results ---- */

static jmp_buf after_failure;
static bool line_open; /* a line has the name of a check, but no result */
static unsigned failures;

static void end_line(void)
{
	if (line_open)
		printf("ok\n");
	line_open = false;
}

/* The name of a check is written before it runs, so that a crash shows where it was. */
static void begin_check(const struct rig *r, const char *check)
{
	end_line();
	printf("%s, %s, %u thread%s: %s: ", r->c->label,
	       r->o.device ? r->o.device : mx_isa_name(r->o.isa), r->o.threads,
	       r->o.threads == 1 ? "" : "s", check);
	fflush(stdout);
	line_open = true;
}

static void failed(const char *text)
{
	printf("FAILED: %s\n", text);
	fflush(stdout);
	line_open = false;
	failures++;
	longjmp(after_failure, 1);
}

/* ---- the test ---- */

/* Runs one case; a failure ends it, and what it had open is lost. */
static void run_case(const struct rig_options *o, const struct mixer_set *set,
                     const struct mixer_case *c)
{
	if (!setjmp(after_failure)) {
		trials_run(o, set, c);
		end_line();
	}
}

static void run_cases(const struct options *o, struct rig_options *to, const struct mixer_set *set)
{
	int first = o->isa < 0 ? MX_ISA_PORTABLE : o->isa,
		last = o->isa < 0 ? (int)mx_cpu_isa() : first;
	if (o->device)
		first = last = MX_ISA_PORTABLE;
	for (int isa = first; isa <= last; isa++) {
		to->isa = (enum mx_isa)isa;
		to->thorough = isa == last && !o->quick && !o->device;
		for (size_t i = 0; i < set->n_cases; i++)
			run_case(to, set, &set->cases[i]);
	}
}

static int test(const struct options *o, const struct mx_mixer_ops *ops, struct rig_options *to,
                const struct mixer_set *set)
{
	printf("%s: %s\nseed %lu\n", ops->name, ops->summary, o->seed);
	to->begin = begin_check;
	if (!setjmp(after_failure)) {
		trials_table(ops);
		trials_wrongs(to, set);
		end_line();
	}
	run_cases(o, to, set);
	if (!(ops->caps & MX_MIXER_DRAFT))
		printf("drafts: not taken by this mixer, not tested\n");
	if (failures)
		printf("%u FAILED (--seed %lu repeats the run)\n", failures, o->seed);
	else
		printf("all checks passed\n");
	return failures ? 1 : 0;
}

static const struct mixer_case *find_case(const struct mixer_set *set, const char *label)
{
	for (size_t i = 0; i < set->n_cases; i++)
		if (!strcmp(set->cases[i].label, label))
			return &set->cases[i];
	return NULL;
}

static int dump(const struct options *o, struct rig_options *to, const struct mixer_set *set)
{
	struct mx_err err = {0};
	const struct mixer_case *c = find_case(set, o->dump_case);
	if (!c) {
		fprintf(stderr, "mixd-test-mixer: %s has no case \"%s\"\n", o->cases, o->dump_case);
		return 2;
	}
	to->threads = 1;
	if (setjmp(after_failure))
		return 2;
	if (dump_case(o->dump_file, to, c, &err) != MX_OK) {
		fprintf(stderr, "mixd-test-mixer: %s\n", err.text);
		return 2;
	}
	return 0;
}

/* Loads the module and the cases. */
static mx_status load(const struct options *o, struct mx_registry **out, struct case_file *cases,
                      struct mx_err *err)
{
	mx_status st = mx_registry_create(out);
	if (st == MX_OK)
		st = mx_registry_load_file(*out, o->module, err);
	if (st == MX_OK)
		st = cases_read(o->cases, cases, err);
	if (st != MX_OK)
		return st;
	const struct mx_mixer_ops *ops = mx_registry_at(*out, 0, NULL);
	if (strcmp(ops->name, cases->set.mixer))
		return mx_fail(err, MX_E_INVALID, "%s is for mixer %s, the module has mixer %s", o->cases,
		               cases->set.mixer, ops->name);
	if (!(ops->caps & (o->device ? MX_MIXER_CUDA : MX_MIXER_CPU)))
		return mx_fail(err, MX_E_INVALID, "the module runs on %s: --device %s",
		               o->device ? "CPUs" : "CUDA devices", o->device ? "cpu" : "cuda:0");
	return MX_OK;
}

static int run(const struct options *o, struct mx_registry *registry, const struct mixer_set *set)
{
	struct rig_options to = {
		.registry = registry,
		.mixer = set->mixer,
		.device = o->device,
		.isa = o->isa < 0 ? mx_cpu_isa() : (enum mx_isa)o->isa,
		.threads = (unsigned)o->threads,
		.seed = o->seed,
		.strict = true,
	};
	int status =
		o->dump_case ? dump(o, &to, set) : test(o, mx_registry_at(registry, 0, NULL), &to, set);
	if (failures) { /* what the failed cases had open is neither freed nor looked for */
		fflush(stdout);
		_exit(status);
	}
	return status;
}

int main(int argc, char **argv)
{
	struct options o = {.isa = -1};
	struct case_file cases = {0};
	struct mx_registry *registry = NULL;
	struct mx_err err = {0};
	int status = read_options(argc, argv, &o);
	if (status >= 0)
		return status;
	mx_log_set_level(MX_LOG_WARNING);
	test_failed = failed;
	status = 2;
	if (load(&o, &registry, &cases, &err) == MX_OK)
		status = run(&o, registry, &cases.set);
	else
		fprintf(stderr, "mixd-test-mixer: %s%s%s\n", err.where, *err.where ? ": " : "", err.text);
	cases_free(&cases);
	mx_registry_destroy(registry);
	return status;
}
