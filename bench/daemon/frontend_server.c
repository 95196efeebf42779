/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The front ends on an engine that computes nothing: to measure the front end
 * alone, and as a server for end-to-end tests that need no weights.
 *
 *   frontend_server --tokenizer DIR [--listen ADDRESS] [--name NAME] [options]
 *
 * Prints "listening on ADDRESS" (and "gRPC on ADDRESS", if it is to be served: MIXD_FRONT_PATH
 * names the folder of its module), and serves until SIGTERM or SIGINT.
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "daemon/grpc/front.h"
#include "daemon/http/server.h"
#include "engine/fake_engine.h"

struct options {
	const char *tokenizer, *listen, *grpc, *name, *alias, *say;
	struct mx_fake_config engine;
	struct mx_sched_config sched;
	struct mx_http_config http;
	double notice_s, drain_s;
	uint64_t answer_memory; /* 0 = the service's default */
	bool hold;
	int n_models;
};

static void usage(void)
{
	fprintf(stderr, "usage: frontend_server --tokenizer DIR [options]\n"
	                "  --listen ADDRESS       127.0.0.1:0\n"
	                "  --grpc ADDRESS         gRPC too\n"
	                "  --name NAME            of the model (fake)\n"
	                "  --alias NAME           another name of it\n"
	                "  --models N             1; further ones are NAME2, NAME3, ...\n"
	                "  --context N            tokens (2048)\n"
	                "  --sequences N          at a time (64)\n"
	                "  --step-tokens N        per step (512)\n"
	                "  --pages N              of 16 tokens (enough for all sequences)\n"
	                "  --queue N              waiting requests (1024)\n"
	                "  --step-ns N            time of a step (0)\n"
	                "  --token-ns N           time of each token in it (0)\n"
	                "  --eos-one-in N         about one token in N ends a text (never)\n"
	                "  --say FILE             all answers are this text\n"
	                "  --threads N            HTTP threads (2)\n"
	                "  --workers N            for short bodies (2)\n"
	                "  --max-body N           bytes\n"
	                "  --body-memory N        bytes of all bodies (64 MiB)\n"
	                "  --answer-memory N      bytes of all answers (64 MiB)\n"
	                "  --max-connections N    (1024)\n"
	                "  --idle-timeout N       seconds (75)\n"
	                "  --header-timeout N     seconds (10)\n"
	                "  --tls-cert FILE        with --tls-key FILE: HTTPS\n"
	                "  --tls-client-ca FILE   of the certificates that clients must show\n"
	                "  --tls-min-version N    12 or 13 (12)\n"
	                "  --keep-alive S         seconds of silence before a comment (5)\n"
	                "  --hold 1               load only when SIGHUP comes\n"
	                "  --page 1               serve the page at /\n"
	                "  --notice S             seconds between SIGTERM and the drain (0)\n"
	                "  --drain S              seconds to drain after SIGTERM (0)\n");
	exit(2);
}

static void set_option(struct options *o, int c, const char *v)
{
	unsigned long n = strtoul(v, NULL, 10);
	switch (c) {
	case 't': o->tokenizer = v; break;
	case 'l': o->listen = v; break;
	case 'g': o->grpc = v; break;
	case 'n': o->name = v; break;
	case 'a': o->alias = v; break;
	case 'M': o->n_models = (int)n; break;
	case 'c': o->engine.max_context = (uint32_t)n; break;
	case 's': o->engine.max_sequences = (uint32_t)n; break;
	case 'S': o->engine.step_tokens = (uint32_t)n; break;
	case 'p': o->engine.n_pages = (uint32_t)n; break;
	case 'q': o->sched.queue = (uint32_t)n; break;
	case 'x': o->engine.ns_per_step = n; break;
	case 'y': o->engine.ns_per_token = n; break;
	case 'e': o->engine.eos_one_in = (uint32_t)n; break;
	case 'Y': o->say = v; break;
	case 'h': o->http.threads = (unsigned)n; break;
	case 'w': o->http.workers = (unsigned)n; break;
	case 'b': o->http.max_body_bytes = n; break;
	case 'B': o->http.body_memory = n; break;
	case 'A': o->answer_memory = n; break;
	case 'm': o->http.max_connections = (unsigned)n; break;
	case 'T': o->http.header_timeout_s = (unsigned)n; break;
	case 'i': o->http.idle_timeout_s = (unsigned)n; break;
	case 'C': o->http.tls.cert = v; break;
	case 'K': o->http.tls.key = v; break;
	case 'Z': o->http.tls.client_ca = v; break;
	case 'V': o->http.tls_min_version = (int)n; break;
	case 'k': o->http.keep_alive_s = strtod(v, NULL); break;
	case 'H': o->hold = n; break;
	case 'P': o->http.page = n; break;
	case 'D': o->drain_s = strtod(v, NULL); break;
	case 'N': o->notice_s = strtod(v, NULL); break;
	default: usage();
	}
}

static struct options parse(int argc, char **argv)
{
	static const struct option longs[] = {{"tokenizer", 1, NULL, 't'},
	                                      {"listen", 1, NULL, 'l'},
	                                      {"grpc", 1, NULL, 'g'},
	                                      {"name", 1, NULL, 'n'},
	                                      {"alias", 1, NULL, 'a'},
	                                      {"models", 1, NULL, 'M'},
	                                      {"context", 1, NULL, 'c'},
	                                      {"sequences", 1, NULL, 's'},
	                                      {"step-tokens", 1, NULL, 'S'},
	                                      {"pages", 1, NULL, 'p'},
	                                      {"queue", 1, NULL, 'q'},
	                                      {"step-ns", 1, NULL, 'x'},
	                                      {"token-ns", 1, NULL, 'y'},
	                                      {"eos-one-in", 1, NULL, 'e'},
	                                      {"say", 1, NULL, 'Y'},
	                                      {"threads", 1, NULL, 'h'},
	                                      {"workers", 1, NULL, 'w'},
	                                      {"max-body", 1, NULL, 'b'},
	                                      {"body-memory", 1, NULL, 'B'},
	                                      {"answer-memory", 1, NULL, 'A'},
	                                      {"max-connections", 1, NULL, 'm'},
	                                      {"idle-timeout", 1, NULL, 'i'},
	                                      {"header-timeout", 1, NULL, 'T'},
	                                      {"tls-cert", 1, NULL, 'C'},
	                                      {"tls-key", 1, NULL, 'K'},
	                                      {"tls-client-ca", 1, NULL, 'Z'},
	                                      {"tls-min-version", 1, NULL, 'V'},
	                                      {"keep-alive", 1, NULL, 'k'},
	                                      {"hold", 1, NULL, 'H'},
	                                      {"page", 1, NULL, 'P'},
	                                      {"drain", 1, NULL, 'D'},
	                                      {"notice", 1, NULL, 'N'},
	                                      {NULL, 0, NULL, 0}};
	struct options o = {.listen = "127.0.0.1:0",
	                    .name = "fake",
	                    .n_models = 1,
	                    .engine = {.max_context = 2048,
	                               .max_sequences = 64,
	                               .step_tokens = 512,
	                               .page_tokens = 16,
	                               .prefix_cache = true,
	                               .eos = -1},
	                    .sched = {.queue = 1024},
	                    .http = {.idle_timeout_s = 75}};
	int c;
	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1)
		set_option(&o, c, optarg);
	if (!o.tokenizer || optind != argc)
		usage();
	if (!o.engine.n_pages)
		o.engine.n_pages = o.engine.max_sequences * (o.engine.max_context / 16 + 1);
	o.sched.max_sequences = o.engine.max_sequences;
	o.sched.step_tokens = o.engine.step_tokens;
	return o;
}

static void check(mx_status st, const struct mx_err *err, const char *what)
{
	if (st == MX_OK)
		return;
	fprintf(stderr, "%s: %s: %s %s\n", what, mx_status_str(st), err->where, err->text);
	exit(1);
}

/* One model: real tokenizer and template, fake engine. */
struct loaded {
	struct mx_tokenizer *tokenizer;
	struct mx_chat_template *chat_template;
	struct mx_engine *engine;
	struct mx_sched *sched;
	int32_t eos;
	struct mx_tokens script;
};

/* Makes the text of --say the output of every sequence. */
static void read_script(const char *path, struct loaded *l, struct mx_fake_config *config)
{
	char text[65536];
	struct mx_err err = {0};
	FILE *f = fopen(path, "r");
	size_t n = f ? fread(text, 1, sizeof(text), f) : 0;
	if (!f || n == sizeof(text)) {
		fprintf(stderr, "%s: cannot be read, or is too long\n", path);
		exit(1);
	}
	fclose(f);
	check(mx_tokenizer_encode(l->tokenizer, text, n, false, 0, &l->script, &err), &err, path);
	config->script = l->script.ids;
	config->n_script = (uint32_t)l->script.n;
	config->eos = l->eos;
}

/* Chooses how calls and reasoning are told from the rest of the answers, by the template. */
static void choose_formats(const struct loaded *l, struct mx_served *m)
{
	size_t len = 0;
	const char *text = l->chat_template ? mx_chat_template_source(l->chat_template, &len) : "";
	m->calls = mx_tool_format_of(text, len);
	m->reasoning = mx_reasoning_format_of(text, len);
}

static void load(const struct options *o, struct mx_served *m, struct loaded *l)
{
	struct mx_err err = {0};
	check(mx_tokenizer_load(o->tokenizer, &l->tokenizer, &err), &err, "tokenizer");
	if (mx_chat_template_load(o->tokenizer, &l->chat_template, &err) != MX_OK)
		snprintf(m->chat_template_error, sizeof(m->chat_template_error), "%s", err.text);
	struct mx_fake_config config = o->engine;
	const char *eos = mx_tokenizer_special(l->tokenizer, "eos_token");
	l->eos = eos ? mx_tokenizer_id(l->tokenizer, eos) : -1;
	config.name = m->name;
	config.vocab = (uint32_t)mx_tokenizer_size(l->tokenizer);
	config.eos = config.eos_one_in ? l->eos : -1;
	if (o->say)
		read_script(o->say, l, &config);
	check(mx_fake_engine_create(&config, &l->engine), &err, "engine");
	check(mx_sched_create(l->engine, &o->sched, &l->sched), &err, "scheduler");
	m->tokenizer = l->tokenizer;
	m->chat_template = l->chat_template;
	choose_formats(l, m);
	m->eos = &l->eos;
	m->pooling = (struct mx_served_pooling){.kind = MX_POOLING_LAST, .normalize = true};
	m->n_eos = config.eos >= 0; /* without EOS no token may end a text by chance */
	m->sched = l->sched;
	l->engine->ops->info(l->engine, &m->info);
	mx_served_set_state(m, MX_SERVED_READY);
}

static void nap(double seconds)
{
	struct timespec t = {.tv_sec = (time_t)seconds,
	                     .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
	nanosleep(&t, NULL);
}

/* The front end, once it has started. */
static _Atomic(struct mx_front *) started;

/* A short metrics text, to see that the hook is called, and the front end's own. */
static const char *metrics(void *arg, const char *accept, struct mx_buf *out)
{
	struct mx_service *s = arg;
	(void)accept;
	struct mx_sched_stats stats;
	mx_buf_printf(out,
	              "# TYPE events counter\nevents_total %llu\n# TYPE joined counter\n"
	              "joined_total %llu\n",
	              (unsigned long long)atomic_load(&s->models[0]->stream_events),
	              (unsigned long long)atomic_load(&s->models[0]->stream_joined));
	if (mx_served_state(s->models[0]) == MX_SERVED_READY) {
		mx_sched_stats(s->models[0]->sched, &stats);
		mx_buf_printf(out, "# TYPE running gauge\nrunning %u\n# TYPE waiting gauge\nwaiting %u\n",
		              stats.running, stats.waiting);
		mx_buf_printf(out, "# TYPE cancelled counter\ncancelled_total %llu\n",
		              (unsigned long long)(stats.cancelled[0][0] + stats.cancelled[0][1]));
		mx_buf_printf(out, "# TYPE answers gauge\nanswers %llu\n",
		              (unsigned long long)mx_budget_used(&s->answers));
		mx_buf_printf(out, "# TYPE finished counter\nfinished_total %llu\n",
		              (unsigned long long)(stats.finished[MX_FINISH_STOP] +
		                                   stats.finished[MX_FINISH_LENGTH]));
	}
	struct mx_metrics_writer w = {.out = out};
	struct mx_front *front = atomic_load(&started);
	if (front)
		front->ops->stats(front, &w);
	return "text/plain; version=0.0.4; charset=utf-8";
}

/* Starts gRPC; NULL if it is not wanted. */
static struct mx_front *start_grpc(const struct options *o, struct mx_service *service)
{
	struct mx_err err = {0};
	const struct mx_grpc_table *table;
	struct mx_front *grpc = NULL;
	const struct mx_grpc_config config = {.listen = &o->grpc,
	                                      .n_listen = 1,
	                                      .max_message_bytes = 8 << 20,
	                                      .max_calls = 1024,
	                                      .idle_timeout_s = 75,
	                                      .threads = o->http.threads};
	if (!o->grpc)
		return NULL;
	check(mx_grpc_load(&table, &err), &err, "gRPC");
	check(table->create(&config, service, &grpc, &err), &err, "gRPC");
	printf("gRPC on %s\n", grpc->ops->address(grpc, 0));
	fflush(stdout);
	return grpc;
}

int main(int argc, char **argv)
{
	struct options o = parse(argc, argv);
	struct mx_err err = {0};
	mx_heap_setup();
	sigset_t signals;
	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGHUP);
	pthread_sigmask(SIG_BLOCK, &signals, NULL);

	struct mx_service service;
	check(mx_service_init(&service, "0"), &err, "service");
	if (o.answer_memory)
		service.answers.limit = o.answer_memory;
	struct mx_listing list[MX_SERVICE_MODELS] = {
		{.aliases = &o.alias, .n_aliases = o.alias != NULL}};
	for (int i = 0; i < o.n_models && i < MX_SERVICE_MODELS; i++) {
		char name[128];
		snprintf(name, sizeof(name), i ? "%.100s%d" : "%.100s", o.name, i + 1);
		list[i].model = mx_served_create(name);
	}
	check(mx_service_publish(&service, list, (size_t)o.n_models), &err, "models");
	struct mx_front *http = NULL;
	o.http.listen = &o.listen;
	o.http.n_listen = 1;
	o.http.metrics = metrics;
	o.http.metrics_arg = &service;
	const struct mx_service_limits limits = mx_http_limits(&o.http);
	check(mx_service_start(&service, &limits, &err), &err, "service");
	check(mx_http_create(&o.http, &service, &http, &err), &err, "http");
	atomic_store(&started, http);
	struct mx_front *grpc = start_grpc(&o, &service);
	printf("listening on %s\n", http->ops->address(http, 0));
	fflush(stdout);

	int sig = 0;
	while (o.hold && sig != SIGHUP)
		sigwait(&signals, &sig);
	struct loaded *loaded = calloc((size_t)o.n_models, sizeof(*loaded));
	if (!loaded)
		return 1;
	for (int i = 0; i < o.n_models; i++)
		load(&o, service.models[i], &loaded[i]);
	do
		sigwait(&signals, &sig);
	while (sig == SIGHUP);

	/* in mixd's order: first not ready, then no new clients */
	mx_service_leave(&service);
	nap(o.notice_s);
	mx_service_drain(&service);
	http->ops->stop_accepting(http);
	if (grpc)
		grpc->ops->stop_accepting(grpc);
	for (double t = 0; t < o.drain_s && (http->ops->active(http) || !mx_service_idle(&service));
	     t += 0.01)
		nap(0.01);
	http->ops->destroy(http);
	if (grpc)
		grpc->ops->destroy(grpc);
	for (int i = 0; i < o.n_models; i++) {
		mx_sched_destroy(loaded[i].sched);
		loaded[i].engine->ops->destroy(loaded[i].engine);
		mx_chat_template_destroy(loaded[i].chat_template);
		mx_tokenizer_destroy(loaded[i].tokenizer);
		mx_tokens_free(&loaded[i].script);
	}
	free(loaded);
	mx_service_destroy(&service);
	return 0;
}
