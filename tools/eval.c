/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mixd-eval: measures how well a model predicts a text. This defines the figure,
 * so that another program can reproduce it:
 *
 *   The text (cut to --limit bytes, at a character) is tokenised as a whole,
 *   without the tokens that a post-processor would add. If the tokenizer or the
 *   config names a BOS, a window holds context - 1 ids and the BOS precedes it.
 *   Else a window holds context ids, and the first id of the text is not
 *   predicted. Window k begins at id k * stride (the stride is the length of a
 *   window unless given) and ends at the end of the text at the latest. The
 *   first window that reaches the end is the last. In a window, every id that
 *   has an id before it is predicted from all ids before it in the window. An id
 *   that an earlier window predicted is not counted again.
 *   nats = minus the sum of the log-probabilities; perplexity = exp(nats /
 *   predicted ids); bits per byte = nats / ln 2 / bytes of the text.
 */
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "model/tokenizer/tokenizer.h"
#include "tools/open_model.h"

struct options {
	const char *model, *text, *device;
	char *layers;
	unsigned long context, stride, limit, threads, bits;
	bool deterministic, positions;
	int kv_dtype; /* enum mx_dtype, or -1 */
};

struct tally {
	double nats;
	uint64_t predicted;
};

#define FIRST_PART 1024 /* positions of a window; a further part is as long as those before */
#define PARTS      23

/* The sums of a text, of tokens by their position in the window. */
struct tallies {
	struct tally parts[PARTS];
};

/* Returns the first position of a part. */
static uint32_t part_begin(uint32_t part)
{
	return part ? (uint32_t)FIRST_PART << (part - 1) : 0;
}

static uint32_t part_of(uint32_t pos)
{
	uint32_t part = 0;
	while (part + 1 < PARTS && pos >= part_begin(part + 1))
		part++;
	return part;
}

static struct tally sum_of(const struct tallies *t)
{
	struct tally sum = {0};
	for (uint32_t i = 0; i < PARTS; i++) {
		sum.nats += t->parts[i].nats;
		sum.predicted += t->parts[i].predicted;
	}
	return sum;
}

static void usage(FILE *to)
{
	fputs(
		"usage: mixd-eval --model DIR --text FILE [--context N] [--stride N] [--limit BYTES]\n"
		"                 [--threads N] [--device cpu|cuda|cuda:N] [--deterministic]\n"
		"                 [--kv-fp8|--kv-int8] [--weights 8|4]\n"
		"                 [--layers LAYERS:MIXER[:NAME=VALUE]...] [--positions]\n"
		"Perplexity and bits per byte of a text (\"-\": standard input) under a model.\n"
		"  --context N    tokens of a window, the model's own by default\n"
		"  --stride N     ids from one window to the next, a whole window by default\n"
		"  --limit BYTES  of the text\n"
		"  --threads N    one per CPU by default\n"
		"  --device NAME  cpu by default\n"
		"  --deterministic, --kv-fp8, --kv-int8  as deterministic: true and kv_dtype: fp8 or int8\n"
		"                 in mixd.yaml\n"
		"  --weights BITS as weights: int8 or int4 in mixd.yaml\n"
		"  --layers WHICH another mixer for some layers: all:dci:top_k=100, as layers in "
		"mixd.yaml\n"
		"  --positions    nats also by position in the window\n",
		to);
}

static bool read_number(const char *text, unsigned long *out)
{
	char *end;
	*out = strtoul(text, &end, 10);
	return *text >= '0' && *text <= '9' && !*end;
}

/* Parses the options. Returns an exit status, or -1 to continue. */
static int read_options(int argc, char **argv, struct options *o)
{
	static const struct option options[] = {{"model", required_argument, NULL, 'm'},
	                                        {"text", required_argument, NULL, 't'},
	                                        {"context", required_argument, NULL, 'c'},
	                                        {"stride", required_argument, NULL, 's'},
	                                        {"limit", required_argument, NULL, 'l'},
	                                        {"threads", required_argument, NULL, 'j'},
	                                        {"device", required_argument, NULL, 'd'},
	                                        {"deterministic", no_argument, NULL, 'e'},
	                                        {"kv-fp8", no_argument, NULL, 'k'},
	                                        {"kv-int8", no_argument, NULL, 'i'},
	                                        {"weights", required_argument, NULL, 'w'},
	                                        {"layers", required_argument, NULL, 'y'},
	                                        {"positions", no_argument, NULL, 'p'},
	                                        {"help", no_argument, NULL, 'h'},
	                                        {NULL, 0, NULL, 0}};
	for (int c; (c = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
		bool ok = true;
		switch (c) {
		case 'm': o->model = optarg; break;
		case 't': o->text = optarg; break;
		case 'c': ok = read_number(optarg, &o->context); break;
		case 's': ok = read_number(optarg, &o->stride); break;
		case 'l': ok = read_number(optarg, &o->limit); break;
		case 'j': ok = read_number(optarg, &o->threads); break;
		case 'd': o->device = optarg; break;
		case 'w': ok = read_number(optarg, &o->bits) && (o->bits == 8 || o->bits == 4); break;
		case 'e': o->deterministic = true; break;
		case 'k': o->kv_dtype = MX_F8E4M3; break;
		case 'i': o->kv_dtype = MX_I8; break;
		case 'y': o->layers = optarg; break;
		case 'p': o->positions = true; break;
		case 'h': usage(stdout); return 0;
		default: usage(stderr); return 2;
		}
		if (!ok) {
			fprintf(stderr, "mixd-eval: \"%s\" is not such a number\n", optarg);
			return 2;
		}
	}
	if (!o->model || !o->text || optind != argc) {
		usage(stderr);
		return 2;
	}
	return -1;
}

/* Returns n without the bytes of a truncated last character. */
static size_t whole_characters(const char *s, size_t n)
{
	size_t tail = 0;
	while (tail < n && tail < 3 && ((unsigned char)s[n - 1 - tail] & 0xc0) == 0x80)
		tail++;
	if (tail == n)
		return n;
	unsigned char lead = (unsigned char)s[n - 1 - tail];
	size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
	return length > tail + 1 ? n - 1 - tail : n;
}

static mx_status read_text(const char *path, size_t limit, struct mx_buf *out, struct mx_err *err)
{
	FILE *f = strcmp(path, "-") ? fopen(path, "re") : stdin;
	if (!f)
		return mx_fail_at(err, MX_E_IO, path, "cannot be opened");
	char block[65536];
	size_t n;
	while ((!limit || out->len < limit) && (n = fread(block, 1, sizeof block, f)) > 0)
		mx_buf_append(out, block, limit && n > limit - out->len ? limit - out->len : n);
	bool bad = ferror(f);
	if (f != stdin)
		fclose(f);
	if (bad || out->failed)
		return mx_fail_at(err, MX_E_IO, path, "cannot be read");
	if (limit && out->len == limit)
		out->len = whole_characters(out->data, out->len);
	return MX_OK;
}

/* Returns the id that precedes each window, or -1. */
static int32_t find_bos(const struct mx_tokenizer *t, const struct mx_plan *plan)
{
	const char *piece = mx_tokenizer_special(t, "bos_token");
	int32_t id = piece ? mx_tokenizer_id(t, piece) : -1;
	return id >= 0 ? id : plan->bos;
}

/* Adds the log-probabilities of the positions of one window from `first` on. */
static mx_status score(struct mx_engine *e, const int32_t *ids, uint32_t n, uint32_t first,
                       uint32_t step_tokens, struct tallies *out)
{
	const struct mx_seq_params params = {
		.sampling = {.top_p = 1, .repetition_penalty = 1},
		.max_len = n,
		.logprobs = -1,
		.prompt_logprobs = 0,
		.no_prefix_cache = true,
	};
	struct mx_seq *s;
	uint32_t done;
	mx_status st = e->ops->open(e, ids, n, &params, &s);
	if (st != MX_OK)
		return st;
	st = e->ops->attach(e, s, &done);
	if (st == MX_OK)
		st = e->ops->reserve(e, s, n);
	while (st == MX_OK && done < n) {
		struct mx_step_item item = {
			.seq = s, .n = n - done < step_tokens ? n - done : step_tokens, .sample = false};
		struct mx_step_result r;
		struct mx_step_times times;
		st = e->ops->step(e, &item, 1, &r, &times);
		if (st == MX_OK)
			st = r.status;
		for (uint32_t i = 0; st == MX_OK && i < r.prompt_n; i++) {
			if (r.prompt_first + i < first)
				continue;
			struct tally *part = &out->parts[part_of(r.prompt_first + i)];
			part->nats -= (double)r.prompt[i].logprob;
			part->predicted++;
		}
		done += item.n;
	}
	e->ops->close(e, s);
	return st;
}

static mx_status run(const struct options *o, struct mx_engine *e, const struct mx_tokens *ids,
                     int32_t bos, struct tallies *out)
{
	struct mx_engine_info info;
	e->ops->info(e, &info);
	uint32_t extra = bos >= 0, window = info.max_context - extra;
	size_t stride = o->stride && o->stride < window ? o->stride : window, predicted = 0;
	int32_t *buffer = calloc(info.max_context, sizeof *buffer);
	mx_status st = buffer ? MX_OK : MX_E_NOMEM;
	for (size_t at = 0; st == MX_OK && predicted < ids->n; at += stride) {
		size_t n = ids->n - at < window ? ids->n - at : window;
		buffer[0] = bos;
		memcpy(buffer + extra, ids->ids + at, n * sizeof *buffer);
		size_t first = predicted > at ? predicted - at : 0;
		st = score(e, buffer, (uint32_t)(n + extra), (uint32_t)(first + extra), info.step_tokens,
		           out);
		predicted = at + n;
	}
	free(buffer);
	return st;
}

/* Gives layers another mixer: "8-31:dci:top_k=100:visits=400". Changes `text`. */
static mx_status set_layers(char *text, struct mx_plan *plan, struct mx_err *err)
{
	struct mx_param params[16];
	struct mx_plan_override o = {.origin = "--layers", .params = {params, 0}};
	char *rest = text;
	o.layers = strsep(&rest, ":");
	o.mixer = strsep(&rest, ":");
	if (!o.mixer || !*o.mixer)
		return mx_fail_at(err, MX_E_INVALID, o.origin, "must be LAYERS:MIXER[:NAME=VALUE]...");
	while (rest) {
		char *value = strsep(&rest, ":"), *name = strsep(&value, "=");
		if (!value || o.params.n == sizeof params / sizeof *params)
			return mx_fail_at(err, MX_E_INVALID, o.origin, "must be NAME=VALUE at \"%.40s\"", name);
		mx_param_of_text(name, value, &params[o.params.n++]);
	}
	return mx_plan_override(plan, &o, err);
}

static mx_status evaluate(const struct options *o, struct opened_model *m,
                          struct mx_tokenizer **tokenizer, struct mx_tokens *ids,
                          struct mx_buf *text, struct mx_err *err)
{
	mx_status st = read_text(o->text, o->limit, text, err);
	if (st == MX_OK)
		st = opened_model_open(o->model, m, err);
	if (st == MX_OK && o->layers)
		st = set_layers(o->layers, m->plan, err);
	if (st == MX_OK)
		st = mx_tokenizer_load(o->model, tokenizer, err);
	if (st == MX_OK)
		st = mx_tokenizer_encode(*tokenizer, mx_buf_str(text), text->len, false, 0, ids, err);
	const struct mx_engine_config config = {
		.name = o->model,
		.device = o->device,
		.deterministic = o->deterministic,
		.threads = (unsigned)o->threads,
		.max_context = (uint32_t)o->context,
		.max_sequences = 1,
		.step_tokens = 512,
		.weight_bits = (int)o->bits,
		.kv_dtype = o->kv_dtype,
	};
	if (st == MX_OK)
		st = opened_model_load(m, &config, err);
	if (st != MX_OK)
		return st;
	struct tallies tallies = {0};
	uint64_t begin = mx_now_ns();
	st = run(o, m->engine, ids, find_bos(*tokenizer, m->plan), &tallies);
	if (st != MX_OK)
		return mx_fail(err, st, "the model cannot be run: %s", mx_status_str(st));
	const struct tally tally = sum_of(&tallies);
	if (!tally.predicted || !text->len)
		return mx_fail(err, MX_E_INVALID, "the text is too short");
	double per_token = tally.nats / (double)tally.predicted;
	printf("tokens %llu\nbytes %zu\nnats_per_token %.6f\nperplexity %.5f\nbits_per_byte %.6f\n"
	       "tokens_per_second %.0f\n",
	       (unsigned long long)tally.predicted, text->len, per_token, exp(per_token),
	       tally.nats / log(2) / (double)text->len,
	       (double)tally.predicted * 1e9 / (double)(mx_now_ns() - begin));
	for (uint32_t i = 0; o->positions && i < PARTS; i++)
		if (tallies.parts[i].predicted)
			printf("nats_from_%u %.6f\n", part_begin(i),
			       tallies.parts[i].nats / (double)tallies.parts[i].predicted);
	return MX_OK;
}

int main(int argc, char **argv)
{
	struct options o = {.kv_dtype = -1};
	int status = read_options(argc, argv, &o);
	if (status >= 0)
		return status;
	mx_log_set_level(MX_LOG_WARNING);
	struct mx_err err = {0};
	struct opened_model m = {0};
	struct mx_tokenizer *tokenizer = NULL;
	struct mx_tokens ids = {0};
	struct mx_buf text = {0};
	mx_status st = evaluate(&o, &m, &tokenizer, &ids, &text, &err);
	if (st != MX_OK)
		fprintf(stderr, "mixd-eval: %s%s%s\n", err.where, *err.where ? ": " : "",
		        *err.text ? err.text : mx_status_str(st));
	opened_model_close(&m);
	mx_tokenizer_destroy(tokenizer);
	mx_tokens_free(&ids);
	mx_buf_free(&text);
	return st == MX_OK ? 0 : 1;
}
