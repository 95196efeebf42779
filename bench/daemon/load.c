/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A load client for servers that speak OpenAI's completions API: ours, and
 * llama-server or others as peers, measured by the same code.
 *
 *   load --url 127.0.0.1:8080 --streams 8 --requests 64 --prompt-tokens 128 --max-tokens 128
 *
 * One thread and one epoll set; a stream is a keep-alive connection that sends
 * its next request when the last one has ended (closed loop), or when a Poisson
 * clock says so (--rate). --stagger-ms spreads the beginnings; --vary draws the
 * lengths, and --abandon lets clients leave before their answer is complete.
 *
 * --disturb-tokens sends long prompts of its own beside the streams. They are
 * not among the requests, but their times ("long") are told, and the streams'
 * gaps that end while one of them is computed ("slowed").
 *
 * TTFT is from the request's first byte to the first event with text, the gap
 * (inter-token latency) between events with text; tokens are counted by the
 * server's usage.
 */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "proto/json_out.h"

struct options {
	const char *url, *path, *model, *prompt;
	unsigned streams, requests, prompt_tokens, vocab, max_tokens, disturb_tokens;
	double rate, stagger_ms, disturb_s, duration_s, abandon, abandon_s;
	bool stream, ignore_eos, same_prompt, json, vary, disturb_once;
	uint64_t seed;
};

/* Growing list of seconds. */
struct samples {
	double *v;
	size_t n, cap;
};

enum phase { IDLE, CONNECTING, SENDING, HEADER, BODY };

struct conn {
	int fd;
	enum phase phase;
	bool disturber;    /* sends the long prompts */
	bool reused;       /* the request went out on a connection that had served another */
	double next_s;     /* when the next request is to be sent; INFINITY = at the end of this one */
	double abandon_s;  /* when the client leaves; INFINITY = when it has its answer */
	struct mx_buf out; /* to send, from `sent` */
	size_t sent;
	struct mx_buf in; /* received and not parsed yet */
	struct mx_buf line;
	bool chunked, failed;
	long long left; /* of the body or chunk; -1 = before a chunk's size */
	double start, last_text;
	bool got_text;
	unsigned long long tokens;
};

struct run {
	struct options o;
	struct addrinfo *address;
	int epoll;
	uint64_t rng;
	struct conn *conns;
	unsigned n_conns;
	unsigned started, ended, errors, abandoned;
	unsigned n_long; /* long prompts being computed */
	unsigned long long tokens, events;
	struct samples ttft, gap, e2e, tpot, slowed, longs;
	double begin;
};

static double now_s(void)
{
	return (double)mx_now_ns() * 1e-9;
}

static void die(const char *what)
{
	fprintf(stderr, "load: %s: %s\n", what, strerror(errno));
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

/* Uniform in [0, 1). */
static double random_part(struct run *r)
{
	return (double)(next_random(r) >> 11) * 0x1p-53;
}

/* ---- requests ---- */

/* A length, or up to it. */
static unsigned draw_length(struct run *r, unsigned n)
{
	return r->o.vary && n > 1 ? 1 + (unsigned)(next_random(r) % n) : n;
}

static void write_prompt(struct run *r, struct mx_buf *b, unsigned n)
{
	if (r->o.prompt) {
		mx_json_cstring(b, r->o.prompt);
		return;
	}
	uint64_t saved = r->rng;
	if (r->o.same_prompt)
		r->rng = r->o.seed;
	/* the lowest ids are often special tokens */
	for (unsigned i = 0; i < n; i++) {
		mx_buf_putc(b, i ? ',' : '[');
		mx_json_int(b, (int64_t)(300 + next_random(r) % (r->o.vocab - 300)));
	}
	mx_buf_putc(b, ']');
	if (r->o.same_prompt)
		r->rng = saved;
}

static void write_request(struct run *r, struct conn *c)
{
	const struct options *o = &r->o;
	struct mx_buf body = {0};
	bool stream = o->stream && !c->disturber;
	mx_buf_printf(&body, "{\"model\":\"%s\",\"max_tokens\":%u,\"temperature\":0,\"stream\":%s%s%s,",
	              o->model, c->disturber ? 1 : draw_length(r, o->max_tokens),
	              stream ? "true" : "false",
	              stream ? ",\"stream_options\":{\"include_usage\":true}" : "",
	              o->ignore_eos ? ",\"ignore_eos\":true" : "");
	mx_buf_puts(&body, "\"prompt\":");
	write_prompt(r, &body, c->disturber ? o->disturb_tokens : draw_length(r, o->prompt_tokens));
	mx_buf_putc(&body, '}');
	mx_buf_clear(&c->out);
	mx_buf_printf(&c->out,
	              "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n"
	              "Content-Length: %zu\r\n\r\n",
	              o->path, o->url, body.len);
	mx_buf_append(&c->out, mx_buf_str(&body), body.len);
	mx_buf_free(&body);
	c->sent = 0;
}

static void watch(struct run *r, struct conn *c, uint32_t events, int op)
{
	struct epoll_event e = {.events = events, .data.ptr = c};
	if (epoll_ctl(r->epoll, op, c->fd, &e))
		die("epoll");
}

static void open_conn(struct run *r, struct conn *c)
{
	c->fd = socket(r->address->ai_family, SOCK_STREAM | SOCK_NONBLOCK, 0);
	if (c->fd < 0)
		die("socket");
	int on = 1;
	setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	if (connect(c->fd, r->address->ai_addr, r->address->ai_addrlen) && errno != EINPROGRESS)
		die("connect");
	watch(r, c, EPOLLOUT | EPOLLIN, EPOLL_CTL_ADD);
}

static void send_some(struct run *r, struct conn *c)
{
	while (c->sent < c->out.len) {
		ssize_t n = send(c->fd, c->out.data + c->sent, c->out.len - c->sent, MSG_NOSIGNAL);
		if (n < 0 && errno == EAGAIN) {
			watch(r, c, EPOLLOUT | EPOLLIN, EPOLL_CTL_MOD);
			return;
		}
		if (n < 0)
			return; /* closed by the server: the event that says so follows */
		c->sent += (size_t)n;
	}
	if (c->phase == SENDING) {
		c->phase = HEADER;
		watch(r, c, EPOLLIN, EPOLL_CTL_MOD);
	}
}

static bool wants_more(const struct run *r)
{
	if (r->o.duration_s > 0)
		return now_s() - r->begin < r->o.duration_s;
	return r->started < r->o.requests;
}

static void start_request(struct run *r, struct conn *c)
{
	if (!c->disturber) {
		if (!wants_more(r)) {
			c->next_s = INFINITY;
			return;
		}
		r->started++;
	}
	write_request(r, c);
	mx_buf_clear(&c->in);
	mx_buf_clear(&c->line);
	c->got_text = c->failed = c->chunked = false;
	c->tokens = 0;
	c->start = now_s();
	/* when to send the next one: a Poisson clock, or the end of this one */
	c->next_s = c->abandon_s = INFINITY;
	if (c->disturber) {
		r->n_long++;
		if (!r->o.disturb_once)
			c->next_s = c->start + r->o.disturb_s;
	} else if (random_part(r) < r->o.abandon) {
		c->abandon_s = c->start + random_part(r) * r->o.abandon_s;
	}
	c->reused = c->fd >= 0;
	if (!c->reused) {
		c->phase = CONNECTING;
		open_conn(r, c);
		return;
	}
	c->phase = SENDING;
	send_some(r, c);
}

/* ---- answers ---- */

static void end_request(struct run *r, struct conn *c)
{
	double t = now_s();
	c->phase = IDLE;
	if (c->disturber) {
		r->n_long--;
		r->errors += c->failed;
		if (!c->failed)
			add(&r->longs, t - c->start);
		return;
	}
	r->ended++;
	if (t >= c->abandon_s) {
		r->abandoned++;
	} else if (c->failed) {
		r->errors++;
	} else {
		r->tokens += c->tokens;
		add(&r->e2e, t - c->start);
		if (c->got_text && c->tokens > 1 && r->o.stream)
			add(&r->tpot,
			    (c->last_text - c->start - r->ttft.v[r->ttft.n - 1]) / (double)(c->tokens - 1));
	}
	if (r->o.rate <= 0)
		c->next_s = t;
	else
		c->next_s = t - log(1 - random_part(r)) * (double)r->o.streams / r->o.rate;
}

/* The client leaves. */
static void abandon(struct run *r, struct conn *c)
{
	close(c->fd);
	c->fd = -1;
	end_request(r, c);
}

/* A line of the body: an event, or all of a plain answer. */
static void take_line(struct run *r, struct conn *c, const char *s)
{
	const char *usage = strstr(s, "\"completion_tokens\":");
	if (usage)
		c->tokens = strtoull(usage + strlen("\"completion_tokens\":"), NULL, 10);
	if (strstr(s, "\"error\":{"))
		c->failed = true;
	if (strncmp(s, "data: {", 7))
		return;
	const char *text = strstr(s, "\"text\":\"");
	text = text ? text + 8 : strstr(s, "\"content\":\"") ? strstr(s, "\"content\":\"") + 11 : NULL;
	if (!text || *text == '"' || c->disturber)
		return;
	double t = now_s();
	r->events++;
	if (c->got_text) {
		add(&r->gap, t - c->last_text);
		if (r->n_long)
			add(&r->slowed, t - c->last_text);
	} else {
		add(&r->ttft, t - c->start);
	}
	c->got_text = true;
	c->last_text = t;
}

static void take_body(struct run *r, struct conn *c, const char *data, size_t n)
{
	while (n) {
		const char *end = memchr(data, '\n', n);
		size_t k = end ? (size_t)(end - data) : n;
		mx_buf_append(&c->line, data, k);
		if (!end)
			return;
		take_line(r, c, mx_buf_str(&c->line));
		mx_buf_clear(&c->line);
		data += k + 1;
		n -= k + 1;
	}
}

static bool take_header(struct conn *c)
{
	char *end = c->in.data ? strstr(c->in.data, "\r\n\r\n") : NULL;
	if (!end)
		return false;
	*end = 0;
	if (strncmp(c->in.data, "HTTP/1.1 200", 12))
		c->failed = true;
	c->chunked = strcasestr(c->in.data, "\r\ntransfer-encoding: chunked") != NULL;
	const char *length = strcasestr(c->in.data, "\r\ncontent-length:");
	c->left = c->chunked ? -1 : length ? strtoll(length + 17, NULL, 10) : 0;
	mx_buf_consume(&c->in, (size_t)(end - c->in.data) + 4);
	c->phase = BODY;
	return true;
}

/* Parses what was received. True if the answer is complete. */
static bool take_some(struct run *r, struct conn *c)
{
	if (c->phase == HEADER && !take_header(c))
		return false;
	size_t at = 0;
	bool done = false;
	while (!done && at < c->in.len) {
		if (c->left < 0) {
			const char *eol = strstr(c->in.data + at, "\r\n");
			if (!eol)
				break;
			c->left = strtoll(c->in.data + at, NULL, 16);
			if (c->left == 0) {
				if (!strstr(eol, "\r\n\r\n")) {
					c->left = -1;
					break;
				}
				done = true;
			}
			at = (size_t)(eol - c->in.data) + 2;
			c->left += 2; /* the line end after the chunk */
			continue;
		}
		size_t n = c->in.len - at;
		if ((long long)n > c->left)
			n = (size_t)c->left;
		/* the chunk's own line end is not body */
		size_t body = !c->chunked                   ? n
		              : c->left - (long long)n >= 2 ? n
		              : c->left > 2                 ? (size_t)(c->left - 2)
		                                            : 0;
		take_body(r, c, c->in.data + at, body);
		at += n;
		c->left -= (long long)n;
		if (c->left == 0) {
			if (c->chunked)
				c->left = -1;
			else
				done = true;
		}
	}
	mx_buf_consume(&c->in, at);
	if (!done && !c->chunked && c->left == 0 && c->phase == BODY)
		done = true;
	if (done && c->line.len)
		take_line(r, c, mx_buf_str(&c->line));
	return done;
}

static void closed(struct run *r, struct conn *c)
{
	close(c->fd);
	c->fd = -1;
	if (c->phase != IDLE && c->phase != BODY && c->reused && !c->in.len) {
		/* A server may close a connection between two requests: ask again on a new one. */
		c->reused = false;
		c->sent = 0;
		c->phase = CONNECTING;
		open_conn(r, c);
	} else if (c->phase != IDLE) {
		c->failed = true;
		end_request(r, c);
	}
}

static void receive(struct run *r, struct conn *c)
{
	char data[65536];
	for (;;) {
		ssize_t n = recv(c->fd, data, sizeof(data), 0);
		if (n < 0 && errno == EAGAIN)
			return;
		if (n <= 0) {
			closed(r, c);
			return;
		}
		mx_buf_append(&c->in, data, (size_t)n);
		if (c->phase >= HEADER && take_some(r, c))
			end_request(r, c);
		if ((size_t)n < sizeof(data))
			return;
	}
}

static void on_event(struct run *r, struct conn *c, uint32_t events)
{
	if (c->phase == CONNECTING && events & (EPOLLOUT | EPOLLERR)) {
		int e = 0;
		socklen_t len = sizeof(e);
		getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &e, &len);
		errno = e;
		if (e)
			die("connect");
		c->phase = SENDING;
	}
	if (c->phase == SENDING && events & EPOLLOUT)
		send_some(r, c);
	if (events & (EPOLLIN | EPOLLHUP | EPOLLERR))
		receive(r, c);
}

/* Sends the requests whose time has come. Returns the seconds until the next one, at most one. */
static double start_due(struct run *r)
{
	double t = now_s(), soonest = t + 1;
	for (unsigned i = 0; i < r->n_conns; i++) {
		struct conn *c = &r->conns[i];
		if (c->phase == IDLE && c->next_s <= t)
			start_request(r, c);
		if (c->phase == IDLE && c->next_s < soonest)
			soonest = c->next_s;
		if (c->phase != IDLE && c->abandon_s <= t)
			abandon(r, c);
		else if (c->phase != IDLE && c->abandon_s < soonest)
			soonest = c->abandon_s;
	}
	return soonest - t;
}

static void run_all(struct run *r)
{
	struct epoll_event events[256];
	r->begin = now_s();
	for (unsigned i = 0; i < r->n_conns; i++) {
		struct conn *c = &r->conns[i];
		c->fd = -1;
		c->left = -1;
		c->disturber = i >= r->o.streams;
		c->next_s = r->begin + (c->disturber ? r->o.disturb_s : i * r->o.stagger_ms * 1e-3);
		if (!c->disturber && r->o.rate > 0)
			c->next_s -= log(1 - random_part(r)) * (double)r->o.streams / r->o.rate;
	}
	for (;;) {
		double wait = start_due(r);
		if ((r->ended == r->started && !wants_more(r)) || (r->o.disturb_once && r->longs.n))
			return;
		int ms = wait <= 0 ? 0 : (int)ceil(wait * 1000);
		int n = epoll_wait(r->epoll, events, 256, ms);
		for (int i = 0; i < n; i++)
			on_event(r, events[i].data.ptr, events[i].events);
	}
}

/* ---- report ---- */

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

static double quantile(const struct samples *s, double q)
{
	if (!s->n)
		return NAN;
	size_t i = (size_t)(q * (double)(s->n - 1) + 0.5);
	return s->v[i];
}

static void report_one(const struct options *o, const char *name, struct samples *s, bool last)
{
	if (s->n)
		qsort(s->v, s->n, sizeof(*s->v), compare);
	double p[4] = {quantile(s, .5), quantile(s, .9), quantile(s, .99), quantile(s, 1)};
	if (o->json)
		printf("\"%s_ms\":{\"p50\":%.4f,\"p90\":%.4f,\"p99\":%.4f,\"max\":%.4f,\"n\":%zu}%s", name,
		       s->n ? p[0] * 1e3 : 0, s->n ? p[1] * 1e3 : 0, s->n ? p[2] * 1e3 : 0,
		       s->n ? p[3] * 1e3 : 0, s->n, last ? "" : ",");
	else if (s->n)
		printf("%-6s ms  p50 %9.3f  p90 %9.3f  p99 %9.3f  max %9.3f  (%zu)\n", name, p[0] * 1e3,
		       p[1] * 1e3, p[2] * 1e3, p[3] * 1e3, s->n);
}

static void report(struct run *r, double seconds)
{
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	double cpu = (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	             (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
	unsigned good = (unsigned)r->e2e.n;
	if (r->o.json)
		printf("{\"seconds\":%.4f,\"requests\":%u,\"errors\":%u,\"abandoned\":%u,\"requests_per_"
		       "s\":%.2f,"
		       "\"tokens\":%llu,\"tokens_per_s\":%.2f,\"events\":%llu,\"client_cpu_s\":%.3f,",
		       seconds, good, r->errors, r->abandoned, good / seconds, r->tokens,
		       (double)r->tokens / seconds, r->events, cpu);
	else
		printf("%u requests in %.2f s, %u errors, %u abandoned: %.1f requests/s, %.1f tokens/s "
		       "(%llu tokens in %llu events; client %.2f s of CPU)\n",
		       good, seconds, r->errors, r->abandoned, good / seconds, (double)r->tokens / seconds,
		       r->tokens, r->events, cpu);
	report_one(&r->o, "ttft", &r->ttft, false);
	report_one(&r->o, "gap", &r->gap, false);
	report_one(&r->o, "tpot", &r->tpot, false);
	report_one(&r->o, "slowed", &r->slowed, false);
	report_one(&r->o, "long", &r->longs, false);
	report_one(&r->o, "e2e", &r->e2e, true);
	if (r->o.json)
		printf("}\n");
}

/* ---- command line ---- */

static void usage(void)
{
	fprintf(stderr,
	        "usage: load --url HOST:PORT [options]\n"
	        "  --path PATH          /v1/completions\n"
	        "  --model NAME         demo\n"
	        "  --streams N          connections (8)\n"
	        "  --requests N         in all (64)\n"
	        "  --duration S         instead: start requests for S seconds\n"
	        "  --prompt-tokens N    random ids (128)\n"
	        "  --vocab N            ids are below N (4096)\n"
	        "  --same-prompt        the same ids every time\n"
	        "  --prompt TEXT        instead of ids\n"
	        "  --max-tokens N       (128)\n"
	        "  --plain              no streaming\n"
	        "  --honour-eos         ignore_eos is not sent\n"
	        "  --rate R             requests per second, Poisson, in place of closed loops\n"
	        "  --stagger-ms MS      between the beginnings of the streams\n"
	        "  --vary               lengths are drawn, from 1 to those given\n"
	        "  --abandon P          that share of the clients leaves early\n"
	        "  --abandon-s S        within S seconds, at a random time (2)\n"
	        "  --disturb-tokens N   prompts of N tokens beside them\n"
	        "  --disturb-s S        one of those every S seconds (1)\n"
	        "  --disturb-once       a single one; the run ends when it is answered\n"
	        "  --seed N             of prompts and arrivals (1)\n"
	        "  --json               one line of JSON\n");
	exit(2);
}

static void set_option(struct options *o, int c, const char *v)
{
	switch (c) {
	case 'u': o->url = v; break;
	case 'p': o->path = v; break;
	case 'M': o->model = v; break;
	case 's': o->streams = (unsigned)strtoul(v, NULL, 10); break;
	case 'n': o->requests = (unsigned)strtoul(v, NULL, 10); break;
	case 'D': o->duration_s = strtod(v, NULL); break;
	case 't': o->prompt_tokens = (unsigned)strtoul(v, NULL, 10); break;
	case 'V': o->vocab = (unsigned)strtoul(v, NULL, 10); break;
	case 'S': o->same_prompt = true; break;
	case 'P': o->prompt = v; break;
	case 'm': o->max_tokens = (unsigned)strtoul(v, NULL, 10); break;
	case 'l': o->stream = false; break;
	case 'e': o->ignore_eos = false; break;
	case 'r': o->rate = strtod(v, NULL); break;
	case 'g': o->stagger_ms = strtod(v, NULL); break;
	case 'd': o->disturb_tokens = (unsigned)strtoul(v, NULL, 10); break;
	case 'y': o->disturb_s = strtod(v, NULL); break;
	case 'o': o->disturb_once = true; break;
	case 'v': o->vary = true; break;
	case 'a': o->abandon = strtod(v, NULL); break;
	case 'A': o->abandon_s = strtod(v, NULL); break;
	case 'x': o->seed = strtoull(v, NULL, 10); break;
	case 'j': o->json = true; break;
	default: usage();
	}
}

static struct options parse(int argc, char **argv)
{
	static const struct option longs[] = {
		{"url", 1, NULL, 'u'},           {"path", 1, NULL, 'p'},
		{"model", 1, NULL, 'M'},         {"streams", 1, NULL, 's'},
		{"requests", 1, NULL, 'n'},      {"duration", 1, NULL, 'D'},
		{"prompt-tokens", 1, NULL, 't'}, {"vocab", 1, NULL, 'V'},
		{"same-prompt", 0, NULL, 'S'},   {"prompt", 1, NULL, 'P'},
		{"max-tokens", 1, NULL, 'm'},    {"plain", 0, NULL, 'l'},
		{"honour-eos", 0, NULL, 'e'},    {"rate", 1, NULL, 'r'},
		{"stagger-ms", 1, NULL, 'g'},    {"disturb-tokens", 1, NULL, 'd'},
		{"disturb-s", 1, NULL, 'y'},     {"seed", 1, NULL, 'x'},
		{"vary", 0, NULL, 'v'},          {"abandon", 1, NULL, 'a'},
		{"abandon-s", 1, NULL, 'A'},     {"disturb-once", 0, NULL, 'o'},
		{"json", 0, NULL, 'j'},          {NULL, 0, NULL, 0}};
	struct options o = {.path = "/v1/completions",
	                    .model = "demo",
	                    .streams = 8,
	                    .requests = 64,
	                    .prompt_tokens = 128,
	                    .vocab = 4096,
	                    .max_tokens = 128,
	                    .stream = true,
	                    .ignore_eos = true,
	                    .disturb_s = 1,
	                    .abandon_s = 2,
	                    .seed = 1};
	int c;
	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1)
		set_option(&o, c, optarg);
	if (!o.url || optind != argc || o.vocab <= 300 || !o.streams)
		usage();
	return o;
}

static void free_all(struct run *r)
{
	struct samples *const all[] = {&r->ttft, &r->gap, &r->e2e, &r->tpot, &r->slowed, &r->longs};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		free(all[i]->v);
	for (unsigned i = 0; i < r->n_conns; i++) {
		mx_buf_free(&r->conns[i].out);
		mx_buf_free(&r->conns[i].in);
		mx_buf_free(&r->conns[i].line);
	}
	free(r->conns);
	freeaddrinfo(r->address);
}

int main(int argc, char **argv)
{
	struct run r = {.o = parse(argc, argv)};
	r.rng = r.o.seed;
	char host[256];
	const char *colon = strrchr(r.o.url, ':');
	if (!colon || (size_t)(colon - r.o.url) >= sizeof(host))
		usage();
	memcpy(host, r.o.url, (size_t)(colon - r.o.url));
	host[colon - r.o.url] = 0;
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
	int rc = getaddrinfo(host, colon + 1, &hints, &r.address);
	if (rc) {
		fprintf(stderr, "load: %s: %s\n", r.o.url, gai_strerror(rc));
		return 1;
	}
	r.epoll = epoll_create1(EPOLL_CLOEXEC);
	r.n_conns = r.o.streams + (r.o.disturb_tokens > 0);
	r.conns = mx_calloc(r.n_conns, sizeof(*r.conns));
	if (r.epoll < 0 || !r.conns)
		die("start");
	run_all(&r);
	report(&r, now_s() - r.begin);
	free_all(&r);
	return r.errors ? 1 : 0;
}
