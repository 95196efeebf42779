/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host's part of sampling: sends parameters to the device and receives tokens.
 *
 * prepare writes descriptions of the rows into pinned memory and copies them to fixed
 * addresses on the device, where a recorded draw reads them. The pinned memory has two
 * halves, used in turn: a step can be prepared while the previous one runs. Lists (bias,
 * banned tokens, counts for the penalties) are copied in batches of BATCH words. A step
 * with more words than both batches hold waits until the first batch is copied, which
 * happens after the running step. On the device there is room for every row to list each
 * token of the vocabulary once, and ROW_WORDS words more. No request can exceed this;
 * prepare would return MX_E_RANGE. Sets of allowed tokens have memory of their own.
 *
 * sample_draw writes each token, with the serial number of its sample_prepare, to pinned memory,
 * where sample_drawn polls for it. If no sample_draw followed a sample_prepare, sample_drawn
 * notices when the stream is idle, and goes on to the next one or returns MX_E_INVALID.
 */
#include "device/cuda/sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "device/cpu/philox.h"

#define BATCH     (256u * 1024)
#define ROW_WORDS 4096u
/* How often drawn checks for its tokens before it queries the stream. */
#define LOOKS 4096

struct mx_cuda_sampler {
	size_t max_rows, max_words, mask_words;
	void *device, *pinned;    /* the two allocations, which contain all memory below */
	struct mx_draw_row *rows; /* on the device [max_rows] */
	uint32_t *words;          /* on the device [max_words] */
	uint32_t *masks;          /* on the device [max_rows][mask_words] */
	struct mx_draw_row *host_rows[2];
	uint32_t *host_words[2]; /* [BATCH] */
	uint32_t *host_masks[2]; /* [max_rows][mask_words] */
	cudaEvent_t rows_copied[2], words_copied[2];
	int turn;                    /* index of the half of host_words in use */
	uint64_t *tokens;            /* pinned [2][max_rows], see sample.h */
	struct mx_logprob_ask *asks; /* pinned [max_rows] */
	struct mx_logprob *probs;    /* pinned [max_rows] */
	size_t n_rows;               /* rows from n_rows on are MX_DRAW_NOTHING on the device */
	uint32_t prepared, taken;    /* serial numbers of the last prepare and of the last drawn */
};

/* ---- life ---- */

/* Takes `bytes` of a memory block at *at and returns their address; NULL if block is NULL, to add
 * up sizes only. */
static void *take(unsigned char *block, size_t *at, size_t bytes)
{
	void *p = block ? block + *at : NULL;
	*at += mx_round_up(bytes, 256);
	return p;
}

static size_t lay_out_device(struct mx_cuda_sampler *s)
{
	size_t at = 0;
	s->rows = take(s->device, &at, s->max_rows * sizeof *s->rows);
	s->words = take(s->device, &at, s->max_words * sizeof *s->words);
	s->masks = take(s->device, &at, s->max_rows * s->mask_words * sizeof *s->masks);
	return at;
}

static size_t lay_out_pinned(struct mx_cuda_sampler *s)
{
	size_t at = 0;
	for (int i = 0; i < 2; i++) {
		s->host_rows[i] = take(s->pinned, &at, s->max_rows * sizeof *s->rows);
		s->host_words[i] = take(s->pinned, &at, BATCH * sizeof *s->words);
		s->host_masks[i] = take(s->pinned, &at, s->max_rows * s->mask_words * sizeof *s->masks);
	}
	s->tokens = take(s->pinned, &at, 2 * s->max_rows * sizeof *s->tokens);
	s->asks = take(s->pinned, &at, s->max_rows * sizeof *s->asks);
	s->probs = take(s->pinned, &at, s->max_rows * sizeof *s->probs);
	return at;
}

static struct mx_cuda_sampler sized(const struct mx_cuda_limits *l)
{
	return (struct mx_cuda_sampler){.max_rows = l->max_samples,
	                                .max_words = (size_t)l->max_samples * (l->vocab + ROW_WORDS),
	                                .mask_words = mx_mask_words(l->vocab)};
}

size_t mx_cuda_sampler_bytes(const struct mx_cuda_limits *l)
{
	struct mx_cuda_sampler s = sized(l);
	return lay_out_device(&s);
}

static mx_status create_events(struct mx_device *d, struct mx_cuda_sampler *s)
{
	mx_status st = MX_OK;
	for (int i = 0; i < 2 && st == MX_OK; i++) {
		st = mx_cuda_check(d, cudaEventCreateWithFlags(&s->rows_copied[i], cudaEventDisableTiming),
		                   "an event");
		if (st == MX_OK)
			st = mx_cuda_check(
				d, cudaEventCreateWithFlags(&s->words_copied[i], cudaEventDisableTiming),
				"an event");
	}
	return st;
}

mx_status mx_cuda_sampler_create(struct mx_device *d, struct mx_err *err)
{
	const struct mx_cuda_limits *l = &mx_cuda(d)->limits;
	if (!l->vocab || l->vocab > MX_CUDA_MAX_VOCAB || !l->max_samples ||
	    (size_t)l->max_samples * (l->vocab + ROW_WORDS) > UINT32_MAX)
		return mx_fail(err, MX_E_RANGE, "cannot sample %u rows of %u tokens", l->max_samples,
		               l->vocab);
	struct mx_cuda_sampler *s = malloc(sizeof *s);
	if (!s)
		return mx_fail(err, MX_E_NOMEM, "no memory for the sampler");
	*s = sized(l);
	mx_cuda(d)->sampler = s; /* destroy frees it also if only part of it exists */
	size_t bytes = lay_out_device(s), pinned = lay_out_pinned(s);
	mx_status st = mx_cuda_alloc(d, bytes, &s->device);
	if (st == MX_OK)
		st = mx_cuda_host_alloc(d, pinned, &s->pinned);
	if (st == MX_OK) {
		lay_out_device(s);
		lay_out_pinned(s);
		memset(s->tokens, 0, 2 * s->max_rows * sizeof *s->tokens);
		st = mx_cuda_zero(d, s->rows, s->max_rows * sizeof *s->rows);
	}
	if (st == MX_OK)
		st = create_events(d, s);
	if (st == MX_OK)
		st = mx_cuda_check(d, mx_cuda_draw_setup(d), "the sampler's shared memory");
	if (st == MX_OK)
		st = mx_cuda_check(d, mx_cuda_logprobs_setup(d), "the sampler's shared memory");
	if (st != MX_OK)
		return mx_fail(err, st, "%s: no memory for the sampler (%zu bytes, %zu pinned)",
		               d->info.name, bytes, pinned);
	return MX_OK;
}

void mx_cuda_sampler_destroy(struct mx_device *d)
{
	struct mx_cuda_sampler *s = mx_cuda(d)->sampler;
	if (!s)
		return;
	for (int i = 0; i < 2; i++) {
		if (s->rows_copied[i])
			cudaEventDestroy(s->rows_copied[i]);
		if (s->words_copied[i])
			cudaEventDestroy(s->words_copied[i]);
	}
	mx_cuda_release(d, s->device);
	mx_cuda_host_release(d, s->pinned);
	free(s);
	mx_cuda(d)->sampler = NULL;
}

/* ---- prepare ---- */

/* Lists on their way to the device. */
struct lists {
	struct mx_device *d;
	struct mx_cuda_sampler *s;
	uint32_t vocab;
	size_t at, n; /* words copied, and words in the current batch */
	mx_status status;
};

static void flush(struct lists *l)
{
	struct mx_cuda_sampler *s = l->s;
	if (!l->n || l->status != MX_OK)
		return;
	l->status =
		mx_cuda_upload(l->d, s->words + l->at, s->host_words[s->turn], l->n * sizeof *s->words);
	if (l->status == MX_OK)
		l->status = mx_cuda_check(
			l->d, cudaEventRecord(s->words_copied[s->turn], mx_cuda_stream(l->d)), "lists");
	l->at += l->n;
	l->n = 0;
	s->turn ^= 1;
}

static void put(struct lists *l, uint32_t word)
{
	struct mx_cuda_sampler *s = l->s;
	if (l->n == BATCH)
		flush(l);
	if (l->n == 0 && l->status == MX_OK) /* the copy may still read the last batch in this half */
		l->status = mx_cuda_check(l->d, cudaEventSynchronize(s->words_copied[s->turn]), "lists");
	if (l->at + l->n == s->max_words)
		l->status = MX_E_RANGE;
	if (l->status == MX_OK)
		s->host_words[s->turn][l->n++] = word;
}

static uint32_t bits_of(float f)
{
	uint32_t u;
	memcpy(&u, &f, sizeof u);
	return u;
}

static bool known(const struct lists *l, int32_t token)
{
	return (uint32_t)token < l->vocab;
}

static void put_counts(struct lists *l, const struct mx_sample_row *row, struct mx_draw_row *out)
{
	for (size_t i = 0; i < row->n_counts; i++) {
		const struct mx_token_count *c = &row->counts[i];
		if (!known(l, c->token))
			continue;
		if (c->output >= MX_DRAW_MANY) {
			out->n_many++;
			continue;
		}
		put(l, (uint32_t)c->token << MX_DRAW_COUNT_BITS | c->output);
		out->n_counts++;
	}
	for (size_t i = 0; i < row->n_counts && out->n_many; i++) {
		const struct mx_token_count *c = &row->counts[i];
		if (!known(l, c->token) || c->output < MX_DRAW_MANY)
			continue;
		put(l, (uint32_t)c->token);
		put(l, c->output);
	}
}

static void put_row(struct lists *l, const struct mx_sample_row *row, uint32_t serial,
                    struct mx_draw_row *out)
{
	const struct mx_sampling *q = row->sampling;
	const bool random = q->temperature >= MX_MIN_TEMPERATURE;
	*out =
		(struct mx_draw_row){.mode = random ? MX_DRAW_RANDOM : MX_DRAW_LARGEST,
	                         .min_p = fminf(q->min_p, 1), /* the likeliest token is never removed */
	                         .top_p = q->top_p,
	                         .top_k = q->top_k > 0 ? (uint32_t)q->top_k : 0,
	                         .repetition = q->repetition_penalty,
	                         .presence = q->presence_penalty,
	                         .frequency = q->frequency_penalty,
	                         .serial = serial,
	                         .first = (uint32_t)(l->at + l->n)};
	if (random) {
		out->inv_temperature = 1 / q->temperature;
		out->uniform = mx_uniform(q->seed, row->position);
	}
	for (size_t i = 0; i < q->n_bias; i++) {
		if (!known(l, q->bias[i].token))
			continue;
		put(l, (uint32_t)q->bias[i].token);
		put(l, bits_of(q->bias[i].bias));
		out->n_bias++;
	}
	for (size_t i = 0; i < row->n_banned; i++) {
		if (!known(l, row->banned[i]))
			continue;
		put(l, (uint32_t)row->banned[i]);
		out->n_banned++;
	}
	if (out->repetition != 1 || out->presence != 0 || out->frequency != 0)
		put_counts(l, row, out);
}

/* Copies the rows' sets of allowed tokens to the device. out[n] get their numbers. */
static mx_status put_masks(struct mx_device *d, const struct mx_sample_row *rows, size_t n,
                           uint32_t serial, struct mx_draw_row *out)
{
	struct mx_cuda_sampler *s = mx_cuda(d)->sampler;
	uint32_t *host = s->host_masks[serial % 2], n_masks = 0;
	for (size_t i = 0; i < n; i++) {
		if (!rows[i].allowed)
			continue;
		memcpy(host + n_masks * s->mask_words, rows[i].allowed, s->mask_words * sizeof *host);
		out[i].mask = ++n_masks;
	}
	return n_masks ? mx_cuda_upload(d, s->masks, host, n_masks * s->mask_words * sizeof *host)
	               : MX_OK;
}

mx_status mx_cuda_sample_prepare(struct mx_device *d, const struct mx_sample_row *rows, size_t n)
{
	struct mx_cuda_sampler *s = mx_cuda(d)->sampler;
	if (n > s->max_rows)
		return MX_E_RANGE;
	const uint32_t serial = ++s->prepared;
	/* rows that only the last step had are switched off; row 0 always has this step's serial number
	 */
	const size_t before = s->n_rows ? s->n_rows : 1, copied = n > before ? n : before;
	struct mx_draw_row *out = s->host_rows[serial % 2];
	struct lists l = {.d = d, .s = s, .vocab = mx_cuda(d)->limits.vocab};
	l.status = mx_cuda_bind(d);
	if (l.status == MX_OK)
		l.status = mx_cuda_check(d, cudaEventSynchronize(s->rows_copied[serial % 2]), "parameters");
	for (size_t i = 0; i < n && l.status == MX_OK; i++)
		put_row(&l, &rows[i], serial, &out[i]);
	for (size_t i = n; i < copied; i++)
		out[i] = (struct mx_draw_row){.mode = MX_DRAW_NOTHING, .serial = serial};
	flush(&l);
	if (l.status == MX_E_RANGE)
		mx_error("cuda", "%s: the lists of %zu rows to sample have more than %zu words",
		         d->info.name, n, s->max_words);
	if (l.status == MX_OK)
		l.status = put_masks(d, rows, n, serial, out);
	if (l.status == MX_OK)
		l.status = mx_cuda_upload(d, s->rows, out, copied * sizeof *out);
	if (l.status == MX_OK)
		l.status = mx_cuda_check(d, cudaEventRecord(s->rows_copied[serial % 2], mx_cuda_stream(d)),
		                         "parameters");
	if (l.status == MX_OK)
		s->n_rows = n;
	return l.status;
}

/* ---- draw, drawn ---- */

mx_status mx_cuda_sample_draw(struct mx_device *d, float *logits, size_t ld, size_t n,
                              uint32_t vocab)
{
	const struct mx_cuda_sampler *s = mx_cuda(d)->sampler;
	if (n > s->max_rows || !vocab || vocab > mx_cuda(d)->limits.vocab)
		return MX_E_RANGE;
	if (!n)
		return MX_OK;
	return mx_cuda_check(d,
	                     mx_cuda_draw_launch(d, logits, ld, n, vocab, s->rows, s->words, s->masks,
	                                         s->mask_words, s->tokens, s->max_rows),
	                     "sampling");
}

/* Returns the first of rows first .. n - 1 whose token of step `serial` has not arrived, or n. */
static size_t arrived(const struct mx_cuda_sampler *s, uint32_t serial, size_t first, size_t n)
{
	const uint64_t *tokens = s->tokens + serial % 2 * s->max_rows;
	while (first < n && __atomic_load_n(&tokens[first], __ATOMIC_ACQUIRE) >> 32 == serial)
		first++;
	return first;
}

/* Waits for the tokens of the oldest step that was drawn but not returned by drawn. */
static mx_status await(struct mx_device *d, size_t n, uint32_t *out_serial)
{
	struct mx_cuda_sampler *s = mx_cuda(d)->sampler;
	uint32_t serial = s->prepared - s->taken > 2 ? s->prepared - 1 : s->taken + 1;
	size_t at = 0;
	for (unsigned looks = 1; (at = arrived(s, serial, at, n)) < n; looks++) {
		if (looks % LOOKS)
			continue;
		cudaError_t e = cudaStreamQuery(mx_cuda_stream(d));
		if (e == cudaErrorNotReady)
			continue;
		mx_status st = mx_cuda_check(d, e, "waiting for tokens");
		if (st != MX_OK)
			return st;
		if ((at = arrived(s, serial, at, n)) == n)
			break;
		/* this step was never drawn */
		if (serial == s->prepared) {
			mx_error("cuda", "%s: no tokens were drawn", d->info.name);
			return MX_E_INVALID;
		}
		serial++;
		at = 0;
	}
	*out_serial = serial;
	return MX_OK;
}

mx_status mx_cuda_sample_drawn(struct mx_device *d, size_t n, int32_t *out_tokens)
{
	struct mx_cuda_sampler *s = mx_cuda(d)->sampler;
	uint32_t serial;
	if (n > s->max_rows || s->taken == s->prepared)
		return MX_E_RANGE;
	mx_status st = await(d, n, &serial);
	if (st != MX_OK)
		return st;
	s->taken = serial;
	for (size_t i = 0; i < n; i++) {
		out_tokens[i] = (int32_t)(uint32_t)s->tokens[serial % 2 * s->max_rows + i];
		if (out_tokens[i] < 0)
			st = MX_E_INTERNAL;
	}
	return st;
}

mx_status mx_cuda_sample(struct mx_device *d, float *logits, size_t ld, size_t n, uint32_t vocab,
                         const struct mx_sample_row *rows, int32_t *out_tokens)
{
	if (!vocab || vocab > mx_cuda(d)->limits.vocab)
		return MX_E_RANGE;
	mx_status st = mx_cuda_sample_prepare(d, rows, n);
	if (st == MX_OK)
		st = mx_cuda_sample_draw(d, logits, ld, n, vocab);
	if (st == MX_OK)
		st = mx_cuda_sample_drawn(d, n, out_tokens);
	return st;
}

/* ---- log-probabilities ---- */

/* Up to max_rows rows. */
static mx_status logprobs_part(struct mx_device *d, const float *logits, size_t ld, size_t n,
                               uint32_t vocab, const int32_t *tokens, const uint32_t *n_top,
                               struct mx_logprob *out)
{
	const struct mx_cuda_sampler *s = mx_cuda(d)->sampler;
	for (size_t i = 0; i < n; i++)
		s->asks[i] = (struct mx_logprob_ask){tokens[i], n_top[i]};
	mx_status st = mx_cuda_check(
		d, mx_cuda_logprobs_launch(d, logits, ld, n, vocab, s->asks, s->probs), "logprobs");
	if (st == MX_OK)
		st = mx_cuda_wait(d);
	for (size_t i = 0; i < n && st == MX_OK; i++) {
		out[i] = (struct mx_logprob){.token = tokens[i],
		                             .logprob = s->probs[i].logprob,
		                             .rank = s->probs[i].rank,
		                             .n_top = s->probs[i].n_top};
		memcpy(out[i].top, s->probs[i].top, s->probs[i].n_top * sizeof *out[i].top);
	}
	return st;
}

mx_status mx_cuda_logprobs(struct mx_device *d, const float *logits, size_t ld, size_t n,
                           uint32_t vocab, const int32_t *tokens, const uint32_t *n_top,
                           struct mx_logprob *out)
{
	const size_t most = mx_cuda(d)->sampler->max_rows;
	if (!vocab || vocab > mx_cuda(d)->limits.vocab)
		return MX_E_RANGE;
	for (size_t i = 0; i < n; i++)
		if (tokens[i] < 0 || (uint32_t)tokens[i] >= vocab)
			return MX_E_RANGE;
	mx_status st = MX_OK;
	for (size_t at = 0; at < n && st == MX_OK; at += most)
		st = logprobs_part(d, logits + at * ld, ld, n - at < most ? n - at : most, vocab,
		                   tokens + at, n_top + at, out + at);
	for (size_t i = 0; i < n && st == MX_OK; i++)
		if (isnan(out[i].logprob))
			st = MX_E_INTERNAL;
	return st;
}
