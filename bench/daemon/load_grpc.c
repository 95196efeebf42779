/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A load client for mixd.v1.Inference, by gRPC's C core: what load.c is for REST.
 *
 *   load_grpc --address 127.0.0.1:50051 --streams 8 --requests 64 --prompt-tokens 128 --max-tokens
 * 128
 *
 * One thread and one completion queue. A stream makes a call of Complete, and its next
 * one when that has ended; --channels spreads them over connections. --whole asks for
 * answers in one message, --ids for token ids instead of texts. Tokens are counted by
 * the server's usage.
 */
#include <getopt.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/mem.h"
#include "proto/pb/mixd/v1/inference.pb-c.h"

#define MAX_CHANNELS 64

struct options {
	const char *address, *model;
	unsigned streams, requests, prompt_tokens, max_tokens, vocab, channels;
	bool whole, ids, ignore_eos;
	uint64_t seed;
};

/* Growing list of seconds. */
struct samples {
	double *v;
	size_t n, cap;
};

enum step { BEGUN, RECEIVED, ENDED, STEPS };

struct stream;
struct tag {
	struct stream *stream;
	enum step step;
};

struct stream {
	struct tag tags[STEPS];
	unsigned channel;
	grpc_call *call;
	grpc_metadata_array head, trailer;
	grpc_byte_buffer *message;
	grpc_status_code status;
	grpc_slice details;
	unsigned left; /* operations that are under way */
	double start, last;
	uint64_t tokens;
};

struct run {
	struct options o;
	grpc_completion_queue *queue;
	grpc_channel *channels[MAX_CHANNELS];
	struct stream *streams;
	uint64_t rng;
	unsigned started, running, ended, errors;
	uint64_t tokens, messages, bytes;
	struct samples ttft, gap, e2e;
};

static double now_s(void)
{
	return (double)mx_now_ns() * 1e-9;
}

static void die(const char *what)
{
	fprintf(stderr, "load_grpc: %s\n", what);
	exit(1);
}

static void add(struct samples *s, double v)
{
	if (s->n == s->cap) {
		s->cap = s->cap ? s->cap * 2 : 1024;
		s->v = mx_realloc(s->v, s->cap, sizeof(*s->v));
		if (!s->v)
			die("memory");
	}
	s->v[s->n++] = v;
}

static uint64_t next_random(struct run *r)
{
	uint64_t z = r->rng += 0x9e3779b97f4a7c15u;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

/* ---- calls ---- */

static grpc_byte_buffer *make_request(struct run *r)
{
	const struct options *o = &r->o;
	Mixd__V1__CompleteRequest m = MIXD__V1__COMPLETE_REQUEST__INIT;
	Mixd__V1__Prompt prompt = MIXD__V1__PROMPT__INIT, *prompts[] = {&prompt};
	Mixd__V1__TokenIds tokens = MIXD__V1__TOKEN_IDS__INIT;
	Mixd__V1__Sampling sampling = MIXD__V1__SAMPLING__INIT;
	Mixd__V1__Stopping stopping = MIXD__V1__STOPPING__INIT;
	Mixd__V1__Output output = MIXD__V1__OUTPUT__INIT;
	uint32_t *ids = mx_calloc(o->prompt_tokens, sizeof(*ids));
	if (!ids)
		die("memory");
	/* the lowest ids are often special tokens */
	for (unsigned i = 0; i < o->prompt_tokens; i++)
		ids[i] = (uint32_t)(300 + next_random(r) % (o->vocab - 300));
	tokens.n_ids = o->prompt_tokens;
	tokens.ids = ids;
	prompt.prompt_case = MIXD__V1__PROMPT__PROMPT_TOKENS;
	prompt.tokens = &tokens;
	sampling.has_temperature_case = MIXD__V1__SAMPLING__HAS_TEMPERATURE_TEMPERATURE;
	stopping.has_max_tokens_case = MIXD__V1__STOPPING__HAS_MAX_TOKENS_MAX_TOKENS;
	stopping.max_tokens = o->max_tokens;
	stopping.ignore_eos = o->ignore_eos;
	output.whole = o->whole;
	output.no_text = output.token_ids = o->ids;
	m.model = (ProtobufCBinaryData){strlen(o->model), (uint8_t *)(uintptr_t)o->model};
	m.n_prompts = 1;
	m.prompts = prompts;
	m.sampling = &sampling;
	m.stopping = &stopping;
	m.output = &output;
	grpc_slice slice = grpc_slice_malloc(mixd__v1__complete_request__get_packed_size(&m));
	mixd__v1__complete_request__pack(&m, GRPC_SLICE_START_PTR(slice));
	grpc_byte_buffer *bytes = grpc_raw_byte_buffer_create(&slice, 1);
	grpc_slice_unref(slice);
	free(ids);
	return bytes;
}

static void start_ops(struct stream *s, const grpc_op *ops, size_t n, enum step step)
{
	s->tags[step] = (struct tag){s, step};
	s->left++;
	if (grpc_call_start_batch(s->call, ops, n, &s->tags[step], NULL) != GRPC_CALL_OK)
		die("the library refuses an operation");
}

static void receive(struct stream *s)
{
	grpc_op op = {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &s->message};
	start_ops(s, &op, 1, RECEIVED);
}

static void start_call(struct run *r, struct stream *s)
{
	if (r->started == r->o.requests)
		return;
	r->started++;
	r->running++;
	s->start = s->last = now_s();
	s->tokens = 0;
	grpc_metadata_array_init(&s->head);
	grpc_metadata_array_init(&s->trailer);
	s->call =
		grpc_channel_create_call(r->channels[s->channel], NULL, GRPC_PROPAGATE_DEFAULTS, r->queue,
	                             grpc_slice_from_static_string("/mixd.v1.Inference/Complete"), NULL,
	                             gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
	grpc_byte_buffer *request = make_request(r);
	grpc_op status = {.op = GRPC_OP_RECV_STATUS_ON_CLIENT};
	status.data.recv_status_on_client.trailing_metadata = &s->trailer;
	status.data.recv_status_on_client.status = &s->status;
	status.data.recv_status_on_client.status_details = &s->details;
	const grpc_op ops[] = {{.op = GRPC_OP_SEND_INITIAL_METADATA},
	                       {.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = request},
	                       {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT},
	                       {.op = GRPC_OP_RECV_INITIAL_METADATA,
	                        .data.recv_initial_metadata.recv_initial_metadata = &s->head}};
	start_ops(s, &status, 1, ENDED);
	start_ops(s, ops, sizeof(ops) / sizeof(ops[0]), BEGUN);
	receive(s);
	grpc_byte_buffer_destroy(request);
}

/* Returns the tokens of the usage that a message ends with, 0 if it has none: its fields are passed
 * over, since to unpack them all would cost more than to serve them. */
static uint64_t find_usage(const uint8_t *p, size_t n)
{
	for (size_t at = 0; at < n;) {
		uint64_t key = p[at++], len = 0;
		for (int shift = 0; at < n; shift += 7) {
			len |= (uint64_t)(p[at] & 127) << shift;
			if (!(p[at++] & 128))
				break;
		}
		if ((key & 7) != 2 || len > n - at)
			return 0;
		if (key >> 3 == 3) {
			Mixd__V1__Usage *u = mixd__v1__usage__unpack(NULL, len, p + at);
			uint64_t tokens = u ? u->completion_tokens : 0;
			mixd__v1__usage__free_unpacked(u, NULL);
			return tokens;
		}
		at += len;
	}
	return 0;
}

static void take_message(struct run *r, struct stream *s)
{
	grpc_byte_buffer_reader reader;
	double t = now_s();
	if (!grpc_byte_buffer_reader_init(&reader, s->message))
		die("a message cannot be read");
	grpc_slice slice = grpc_byte_buffer_reader_readall(&reader);
	s->tokens += find_usage(GRPC_SLICE_START_PTR(slice), GRPC_SLICE_LENGTH(slice));
	r->bytes += GRPC_SLICE_LENGTH(slice);
	r->messages++;
	add(s->last == s->start ? &r->ttft : &r->gap, t - s->last);
	s->last = t;
	grpc_slice_unref(slice);
	grpc_byte_buffer_reader_destroy(&reader);
	grpc_byte_buffer_destroy(s->message);
	s->message = NULL;
}

static void end_call(struct run *r, struct stream *s)
{
	if (s->status != GRPC_STATUS_OK && !r->errors++)
		fprintf(stderr, "load_grpc: status %d: %.*s\n", (int)s->status,
		        (int)GRPC_SLICE_LENGTH(s->details), (const char *)GRPC_SLICE_START_PTR(s->details));
	r->tokens += s->tokens;
	add(&r->e2e, now_s() - s->start);
	grpc_metadata_array_destroy(&s->head);
	grpc_metadata_array_destroy(&s->trailer);
	grpc_slice_unref(s->details);
	grpc_call_unref(s->call);
	r->ended++;
	r->running--;
	start_call(r, s);
}

static void drive(struct run *r)
{
	for (unsigned i = 0; i < r->o.streams; i++) {
		r->streams[i].channel = i % r->o.channels;
		start_call(r, &r->streams[i]);
	}
	while (r->running) {
		grpc_event e =
			grpc_completion_queue_next(r->queue, gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
		struct tag *tag = e.tag;
		struct stream *s = tag->stream;
		s->left--;
		if (tag->step == RECEIVED && s->message) {
			take_message(r, s);
			receive(s);
		}
		if (!s->left)
			end_call(r, s);
	}
}

/* ---- the report ---- */

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static double at_part(struct samples *s, double part)
{
	if (!s->n)
		return 0;
	qsort(s->v, s->n, sizeof(*s->v), compare);
	return s->v[(size_t)(part * (double)(s->n - 1))];
}

static void print_samples(const char *name, struct samples *s)
{
	printf("  %-10s median %8.3f ms, p99 %8.3f ms\n", name, at_part(s, 0.5) * 1e3,
	       at_part(s, 0.99) * 1e3);
}

static void report(struct run *r, double seconds)
{
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	double cpu = (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	             (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
	printf("%u requests (%u errors) in %.2f s: %.0f requests/s, %.0f tokens/s, %.0f messages/s, "
	       "%.1f MB/s\n",
	       r->ended, r->errors, seconds, r->ended / seconds, (double)r->tokens / seconds,
	       (double)r->messages / seconds, (double)r->bytes * 1e-6 / seconds);
	printf("  %.2f tokens a message, %.2f s of CPU in the client\n",
	       (double)r->tokens / (double)(r->messages ? r->messages : 1), cpu);
	print_samples("first", &r->ttft);
	print_samples("gap", &r->gap);
	print_samples("whole", &r->e2e);
}

static struct options parse(int argc, char **argv)
{
	static const struct option longs[] = {
		{"address", 1, NULL, 'a'},    {"model", 1, NULL, 'm'},    {"streams", 1, NULL, 's'},
		{"requests", 1, NULL, 'r'},   {"channels", 1, NULL, 'c'}, {"prompt-tokens", 1, NULL, 'p'},
		{"max-tokens", 1, NULL, 't'}, {"vocab", 1, NULL, 'v'},    {"seed", 1, NULL, 'x'},
		{"whole", 0, NULL, 'w'},      {"ids", 0, NULL, 'i'},      {NULL, 0, NULL, 0}};
	struct options o = {.model = "fake",
	                    .streams = 8,
	                    .requests = 64,
	                    .prompt_tokens = 16,
	                    .max_tokens = 128,
	                    .vocab = 4096,
	                    .channels = 1,
	                    .ignore_eos = true,
	                    .seed = 1};
	int c;
	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		unsigned n = optarg ? (unsigned)strtoul(optarg, NULL, 10) : 0;
		switch (c) {
		case 'a': o.address = optarg; break;
		case 'm': o.model = optarg; break;
		case 's': o.streams = n; break;
		case 'r': o.requests = n; break;
		case 'c': o.channels = n; break;
		case 'p': o.prompt_tokens = n; break;
		case 't': o.max_tokens = n; break;
		case 'v': o.vocab = n; break;
		case 'x': o.seed = n; break;
		case 'w': o.whole = true; break;
		case 'i': o.ids = true; break;
		default: exit(2);
		}
	}
	if (!o.address || !o.streams || !o.channels || o.channels > MAX_CHANNELS || o.vocab <= 300 ||
	    !o.prompt_tokens || optind != argc)
		die("usage: load_grpc --address HOST:PORT [--streams N] [--requests N] [--channels N]\n"
		    "  [--prompt-tokens N] [--max-tokens N] [--vocab N] [--model NAME] [--whole] [--ids]");
	return o;
}

int main(int argc, char **argv)
{
	struct run r = {.o = parse(argc, argv)};
	grpc_init();
	r.rng = r.o.seed;
	r.queue = grpc_completion_queue_create_for_next(NULL);
	r.streams = mx_calloc(r.o.streams, sizeof(*r.streams));
	if (!r.streams)
		die("memory");
	grpc_arg own = {.type = GRPC_ARG_INTEGER,
	                .key = (char *)(uintptr_t)GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL,
	                .value.integer = 1};
	const grpc_channel_args args = {1, &own};
	grpc_channel_credentials *creds = grpc_insecure_credentials_create();
	for (unsigned i = 0; i < r.o.channels; i++)
		r.channels[i] = grpc_channel_create(r.o.address, creds, &args);
	double start = now_s();
	drive(&r);
	report(&r, now_s() - start);
	grpc_channel_credentials_release(creds);
	for (unsigned i = 0; i < r.o.channels; i++)
		grpc_channel_destroy(r.channels[i]);
	grpc_completion_queue_shutdown(r.queue);
	grpc_completion_queue_destroy(r.queue);
	free(r.streams);
	grpc_shutdown();
	return r.errors != 0;
}
