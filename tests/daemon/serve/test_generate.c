/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Generations without HTTP: every allocation of the front end's side failing in
 * turn, readers that leave at any moment, and many at once.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "daemon/http/openai.h"
#include "engine/fake_engine.h"

/* ---- allocations of this thread that fail (jansson's own are its own affair) ---- */

static _Thread_local long fail_at; /* counts down; 0 = never */

static bool fails(void)
{
	return fail_at > 0 && --fail_at == 0;
}

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);

void *__wrap_malloc(size_t n)
{
	return fails() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
	return fails() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
	return fails() ? NULL : __real_realloc(p, n);
}

/* ---- a service on the fake engine ---- */

static struct mx_service service;
static struct mx_tokenizer *tokenizer;
static struct mx_chat_template *chat_template;
static struct mx_engine *engine;
static struct mx_api_error last; /* what run() was refused with */

static int start(void **state)
{
	(void)state;
	char dir[512];
	const char *src = getenv("srcdir");
	struct mx_err err = {0};
	snprintf(dir, sizeof(dir), "%s/models/demo", src ? src : ".");
	if (mx_tokenizer_load(dir, &tokenizer, &err) != MX_OK ||
	    mx_chat_template_load(dir, &chat_template, &err) != MX_OK ||
	    mx_service_init(&service, "0") != MX_OK)
		return -1;
	struct mx_served *m = mx_served_create("fake");
	const struct mx_listing list = {.model = m};
	if (!m || mx_service_publish(&service, &list, 1) != MX_OK)
		return -1;
	const struct mx_fake_config fake = {.name = "fake",
	                                    .vocab = (uint32_t)mx_tokenizer_size(tokenizer) + 8,
	                                    .max_context = 512,
	                                    .max_sequences = 16,
	                                    .step_tokens = 256,
	                                    .page_tokens = 16,
	                                    .n_pages = 256,
	                                    .prefix_cache = true,
	                                    .ns_per_step = 50000, /* so that generations meet */
	                                    .eos = -1};
	const struct mx_sched_config sched = {.max_sequences = 16, .step_tokens = 256, .queue = 64};
	if (mx_fake_engine_create(&fake, &engine) != MX_OK ||
	    mx_sched_create(engine, &sched, &m->sched) != MX_OK)
		return -1;
	engine->ops->info(engine, &m->info);
	m->tokenizer = tokenizer;
	m->chat_template = chat_template;
	mx_served_set_state(m, MX_SERVED_READY);
	return 0;
}

static int stop(void **state)
{
	(void)state;
	mx_sched_destroy(service.models[0]->sched);
	engine->ops->destroy(engine);
	mx_service_destroy(&service);
	mx_chat_template_destroy(chat_template);
	mx_tokenizer_destroy(tokenizer);
	return 0;
}

static void nap(void)
{
	const struct timespec t = {.tv_nsec = 50000};
	nanosleep(&t, NULL);
}

static void wait_idle(void)
{
	for (int i = 0; i < 200000 && !mx_sched_idle(service.models[0]->sched); i++)
		nap();
	assert_true(mx_sched_idle(service.models[0]->sched));
	struct mx_engine_usage usage;
	engine->ops->usage(engine, &usage);
	assert_int_equal(usage.pages_used, 0);
}

static void on_wake(void *arg)
{
	atomic_fetch_add((_Atomic unsigned *)arg, 1);
}

/* Starts a generation and its answer; `last` has the error. */
static mx_status generate(const struct mx_api_request *r, _Atomic unsigned *wakes,
                          struct mx_openai *out)
{
	struct mx_generation *g = NULL;
	mx_status st = mx_generate(&service, NULL, r, (struct mx_wake){on_wake, wakes}, &g, &last);
	if (st == MX_OK && (st = mx_openai_init(out, r, "id", g)) != MX_OK) {
		mx_openai_free(out);
		mx_generation_detach(g);
		mx_api_fail(&last, MX_FAULT_EXHAUSTED, "out_of_memory", NULL, "out of memory");
	}
	return st;
}

static void leave(struct mx_openai *w)
{
	mx_generation_detach(w->gen);
	mx_openai_free(w);
}

/* Parses, generates and reads the answer to its end; the fault. */
static enum mx_fault run(enum mx_api_kind kind, const char *body, struct mx_buf *out)
{
	struct mx_api_request r = {0};
	last = (struct mx_api_error){0};
	struct mx_openai g = {0};
	_Atomic unsigned wakes = 0;
	if (mx_api_parse(kind, body, strlen(body), NULL, &r, &last) != MX_OK)
		return last.fault;
	mx_status st = generate(&r, &wakes, &g);
	bool stream = r.stream;
	mx_api_request_free(&r);
	if (st != MX_OK)
		return last.fault;
	if (stream) {
		while (!mx_openai_stream(&g, out))
			nap();
	} else {
		while (!mx_generation_finished(g.gen))
			nap();
		for (bool end = false; !end;)
			if (mx_openai_response(&g, out, &end, &last) != MX_OK) {
				leave(&g);
				return last.fault;
			}
	}
	leave(&g);
	return out->failed ? MX_FAULT_EXHAUSTED : MX_FAULT_NONE;
}

static const struct {
	enum mx_api_kind kind;
	const char *body;
} bodies[] = {
	{MX_API_COMPLETION, "{\"prompt\":[\"one two\",[300,301,302]],\"n\":2,\"max_tokens\":20,"
                        "\"seed\":1,\"echo\":true,\"logprobs\":3,\"stop\":[\"zzzz\",\"q\"],"
                        "\"logit_bias\":{\"5\":1},\"return_token_ids\":true}"},
	{MX_API_COMPLETION, "{\"prompt\":\"one two\",\"max_tokens\":30,\"stream\":true,\"seed\":2,"
                        "\"stream_options\":{\"include_usage\":true},\"logprobs\":1}"},
	{MX_API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":"
                  "\"hi\"}]}],\"max_tokens\":10,\"logprobs\":true,\"top_logprobs\":2,\"seed\":3}"},
};

/* An answer from its choices to its usage: the rest tells of time and of the cache. */
static void check_same(const struct mx_buf *want, const struct mx_buf *got)
{
	const char *a = strstr(mx_buf_str(want), "\"choices\""),
			   *b = strstr(mx_buf_str(got), "\"choices\"");
	const char *end = strstr(a, "\"usage\"");
	assert_non_null(b);
	if (strncmp(a, b, (size_t)(end - a)))
		fail_msg("%s\n%s", a, b);
}

static void every_allocation_may_fail(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(bodies) / sizeof(*bodies); i++) {
		struct mx_buf want = {0}, got = {0};
		assert_int_equal(run(bodies[i].kind, bodies[i].body, &want), MX_FAULT_NONE);
		enum mx_fault fault = MX_FAULT_NONE;
		long n = 0;
		long left = 0;
		do {
			mx_buf_free(&got);
			fail_at = ++n;
			fault = run(bodies[i].kind, bodies[i].body, &got);
			left = fail_at;
			fail_at = 0;
			if (fault == MX_FAULT_NONE && !strstr(bodies[i].body, "stream"))
				check_same(&want, &got);
			/* Refused for the moment, or the failed allocation was not needed. */
			if (fault != MX_FAULT_EXHAUSTED && fault != MX_FAULT_NONE && fault != MX_FAULT_INTERNAL)
				fail_msg("allocation %ld of request %zu: %d %s", n, i, fault, last.message);
		} while (left == 0 && n < 100000);
		assert_int_equal(fault, MX_FAULT_NONE);
		assert_true(n > 10);
		print_message("request %zu: %ld allocations\n", i, n - 1);
		mx_buf_free(&want);
		mx_buf_free(&got);
		wait_idle();
	}
}

static void a_reader_may_leave_at_any_moment(void **state)
{
	(void)state;
	for (int round = 0; round < 300; round++) {
		struct mx_api_request r = {0};
		struct mx_api_error err = {0};
		struct mx_openai g = {0};
		_Atomic unsigned wakes = 0;
		static const char body[] =
			"{\"prompt\":\"x\",\"n\":3,\"max_tokens\":400,\"stream\":true,\"ignore_eos\":true}";
		assert_int_equal(mx_api_parse(MX_API_COMPLETION, body, sizeof(body) - 1, NULL, &r, &err),
		                 MX_OK);
		assert_int_equal(generate(&r, &wakes, &g), MX_OK);
		mx_api_request_free(&r);
		struct mx_buf out = {0};
		for (int i = 0; i < round % 7; i++) {
			mx_openai_stream(&g, &out);
			nap();
		}
		if (round % 3 == 0)
			mx_generation_abort(g.gen);
		if (round % 6 == 0) {
			mx_buf_clear(&out);
			assert_true(mx_openai_stream(&g, &out));
			assert_non_null(strstr(mx_buf_str(&out), "shutting_down"));
		}
		leave(&g);
		/* no wake call comes any more: the counter is about to be freed */
		unsigned seen = atomic_load(&wakes);
		nap();
		assert_int_equal(atomic_load(&wakes), seen);
		mx_buf_free(&out);
	}
	wait_idle();
}

/* ---- events ---- */

static unsigned count(const struct mx_buf *b, const char *what)
{
	unsigned n = 0;
	for (const char *at = mx_buf_str(b); (at = strstr(at, what)); at += strlen(what))
		n++;
	return n;
}

/* Streams an answer to a reader that comes only when it is complete. `more`: further fields.
 * Returns the number of reads. */
static unsigned read_late(enum mx_api_kind kind, const char *prompt, const char *more,
                          struct mx_buf *out)
{
	struct mx_api_request r = {0};
	struct mx_openai g = {0};
	_Atomic unsigned wakes = 0;
	struct mx_buf body = {0};
	mx_buf_printf(&body, "{%s,\"stream\":true,\"ignore_eos\":true,\"seed\":4%s}", prompt, more);
	mx_buf_clear(out);
	assert_int_equal(mx_api_parse(kind, mx_buf_str(&body), body.len, NULL, &r, &last), MX_OK);
	assert_int_equal(generate(&r, &wakes, &g), MX_OK);
	mx_api_request_free(&r);
	while (!mx_generation_finished(g.gen))
		nap();
	unsigned reads = 1;
	for (; !mx_openai_stream(&g, out); reads++) {
		/* a read is bounded, whatever is there */
		assert_true(out->len / reads < 256 << 10);
	}
	leave(&g);
	mx_buf_free(&body);
	return reads;
}

static void a_backlog_of_32_tokens_is_joined(void **state)
{
	(void)state;
	static const char prompt[] = "\"prompt\":\"one\"";
	static const char chat[] = "\"messages\":[{\"role\":\"user\",\"content\":\"one\"}]";
	const struct mx_served *m = service.models[0];
	struct mx_buf out = {0};
	const struct {
		unsigned n_tokens, n_events, n_joined;
	} cases[] = {{1, 1, 0}, {2, 2, 0}, {30, 30, 0}, {33, 33, 0}, {34, 33, 1}, {400, 33, 1}};
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		uint64_t events = atomic_load(&m->stream_events), joined = atomic_load(&m->stream_joined);
		char more[96];
		snprintf(more, sizeof(more), ",\"max_tokens\":%u,\"return_token_ids\":true",
		         cases[i].n_tokens);
		read_late(MX_API_COMPLETION, prompt, more, &out);
		/* the last token and the end share an event */
		assert_int_equal(count(&out, "\"token_ids\":["), cases[i].n_events);
		assert_int_equal(count(&out, "data: {"), cases[i].n_events);
		assert_int_equal(atomic_load(&m->stream_events) - events, cases[i].n_events);
		assert_int_equal(atomic_load(&m->stream_joined) - joined, cases[i].n_joined);
		/* in a chat the role comes first, and the end is an event of its own */
		snprintf(more, sizeof(more), ",\"max_tokens\":%u", cases[i].n_tokens);
		read_late(MX_API_CHAT, chat, more, &out);
		assert_int_equal(count(&out, "data: {"), cases[i].n_events + 2);
		assert_int_equal(atomic_load(&m->stream_events) - events, 2 * cases[i].n_events);
	}
	mx_buf_free(&out);
}

/* An echo with log-probabilities is written a part at a time, in one event or more. */
static void a_large_echo_takes_many_reads(void **state)
{
	(void)state;
	struct mx_buf prompt = {0}, out = {0};
	mx_buf_puts(&prompt, "\"prompt\":[[1");
	for (int i = 1; i < 400; i++)
		mx_buf_printf(&prompt, ",%d", i % 3 ? 300 + i : i % 256);
	mx_buf_puts(&prompt, "]]");
	unsigned reads = read_late(MX_API_COMPLETION, mx_buf_str(&prompt),
	                           ",\"max_tokens\":40,\"echo\":true,\"logprobs\":20", &out);
	assert_true(reads > 4);
	/* 400 entries of the prompt in events of 32, the first token with the last of them */
	assert_int_equal(count(&out, "data: {"), 400 / 32 + 33);
	assert_int_equal(count(&out, "\"finish_reason\":\"length\""), 1);
	mx_buf_free(&prompt);
	mx_buf_free(&out);
}

/* What a reader that writes no JSON gets of a choice. */
struct read {
	struct mx_buf text;
	size_t n_ids, n_tokens, n_prompt_ids;
	unsigned n_events, n_opens, n_ends;
};

/* Reads all events of a generation, with a nap where there is none; *out [n_choices]. */
static void read_events(const char *body, enum mx_api_kind kind, struct read *out,
                        struct mx_api_usage *usage)
{
	struct mx_api_request r = {0};
	struct mx_generation *g = NULL;
	_Atomic unsigned wakes = 0;
	assert_int_equal(mx_api_parse(kind, body, strlen(body), NULL, &r, &last), MX_OK);
	assert_int_equal(mx_generate(&service, NULL, &r, (struct mx_wake){on_wake, &wakes}, &g, &last),
	                 MX_OK);
	mx_api_request_free(&r);
	assert_string_equal(mx_generation_model(g), "fake");
	struct mx_gen_event e;
	enum mx_gen_next next;
	while ((next = mx_generation_next(g, &e, &last)) != MX_GEN_END) {
		assert_int_not_equal(next, MX_GEN_ERROR);
		if (next == MX_GEN_WAIT) {
			nap();
			continue;
		}
		struct read *c = &out[e.choice.index];
		assert_int_equal(c->n_ends, 0); /* nothing follows the end */
		mx_buf_append(&c->text, e.choice.text ? e.choice.text : "", e.choice.len);
		c->n_ids += e.choice.n_ids;
		c->n_tokens += e.choice.n_tokens;
		c->n_prompt_ids += e.choice.n_prompt_ids;
		c->n_events++;
		c->n_opens += e.opens;
		c->n_ends += e.choice.finish_reason != NULL;
	}
	assert_int_equal(mx_generation_next(g, &e, &last), MX_GEN_END);
	*usage = mx_generation_usage(g);
	mx_generation_detach(g);
}

/* A front end that does not speak JSON reads the same output, streamed or not. */
static void events_have_what_answers_have(void **state)
{
	(void)state;
	static const char *const forms[] = {
		"{\"prompt\":\"one two\",\"n\":3,\"max_tokens\":40,\"seed\":1,\"logprobs\":2,"
		"\"ignore_eos\":true,\"return_token_ids\":true%s}",
		"{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"n\":3,\"max_tokens\":40,"
		"\"seed\":1,\"logprobs\":true,\"ignore_eos\":true,\"return_token_ids\":true%s}",
	};
	for (int k = 0; k < 2; k++) {
		struct read whole[3] = {0}, part[3] = {0};
		struct mx_api_usage u[2];
		char body[512];
		enum mx_api_kind kind = k ? MX_API_CHAT : MX_API_COMPLETION;
		snprintf(body, sizeof body, forms[k], "");
		read_events(body, kind, whole, &u[0]);
		snprintf(body, sizeof body, forms[k], ",\"stream\":true");
		read_events(body, kind, part, &u[1]);
		for (int i = 0; i < 3; i++) {
			assert_int_equal(whole[i].n_events, 1);
			assert_int_equal(whole[i].n_opens, 0);
			assert_in_range(part[i].n_events, 3, 42);
			assert_int_equal(part[i].n_opens, k);
			assert_string_equal(mx_buf_str(&part[i].text), mx_buf_str(&whole[i].text));
			const struct read *both[] = {&whole[i], &part[i]};
			for (int j = 0; j < 2; j++) {
				assert_int_equal(both[j]->n_ids, 40);
				assert_int_equal(both[j]->n_tokens, 40);
				assert_int_equal(both[j]->n_prompt_ids, u[0].prompt);
				assert_int_equal(both[j]->n_ends, 1);
			}
			mx_buf_free(&whole[i].text);
			mx_buf_free(&part[i].text);
		}
		assert_int_equal(u[0].completion, 120);
		assert_int_equal(u[1].completion, 120);
		assert_int_equal(u[1].prompt, u[0].prompt);
	}
	wait_idle();
	assert_int_equal(mx_budget_used(&service.answers), 0);
}

static struct mx_sched_stats stats(void)
{
	struct mx_sched_stats v;
	mx_sched_stats(service.models[0]->sched, &v);
	return v;
}

/* n short prompts with that many tokens each; the fault. */
static enum mx_fault run_prompts(int n, int max_tokens)
{
	struct mx_buf body = {0}, out = {0};
	mx_buf_printf(&body, "{\"max_tokens\":%d,\"ignore_eos\":true,\"prompt\":[\"a\"", max_tokens);
	for (int i = 1; i < n; i++)
		mx_buf_puts(&body, ",\"a\"");
	mx_buf_puts(&body, "]}");
	enum mx_fault fault = run(MX_API_COMPLETION, mx_buf_str(&body), &out);
	mx_buf_free(&body);
	mx_buf_free(&out);
	return fault;
}

static void the_queue_takes_all_prompts_or_none(void **state)
{
	(void)state;
	struct mx_sched_stats before = stats();
	/* 64 wait while 16 run: more can never be taken, so trying again would be in vain */
	assert_int_equal(run_prompts(81, 4), MX_FAULT_INVALID);
	assert_string_equal(last.param, "prompt");
	assert_non_null(strstr(last.message, "80"));
	assert_false(last.retry);
	struct mx_buf out = {0};
	assert_int_equal(
		run(MX_API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"n\":81}", &out),
		MX_FAULT_INVALID);
	assert_string_equal(last.param, "n");
	assert_int_equal(run_prompts(80, 4), MX_FAULT_NONE);
	/* one place is taken: refused for now, without other effects */
	static const char body[] = "{\"prompt\":\"x\",\"max_tokens\":480,\"ignore_eos\":true}";
	struct mx_api_request r = {0};
	struct mx_openai g = {0};
	_Atomic unsigned wakes = 0;
	assert_int_equal(mx_api_parse(MX_API_COMPLETION, body, sizeof(body) - 1, NULL, &r, &last),
	                 MX_OK);
	struct mx_sched *sched = service.models[0]->sched;
	enum mx_fault fault = MX_FAULT_NONE;
	/* until it meets the other one running */
	for (int i = 0; i < 100 && fault != MX_FAULT_EXHAUSTED; i++) {
		wait_idle();
		before = stats();
		assert_int_equal(generate(&r, &wakes, &g), MX_OK);
		fault = run_prompts(80, 1);
		while (!mx_generation_finished(g.gen))
			nap();
		leave(&g);
	}
	mx_api_request_free(&r);
	assert_int_equal(fault, MX_FAULT_EXHAUSTED);
	wait_idle();
	struct mx_sched_stats after = stats();
	assert_true(mx_sched_idle(sched));
	assert_int_equal(after.rejected_queue, before.rejected_queue + 1);
	assert_int_equal(after.finished[MX_FINISH_LENGTH], before.finished[MX_FINISH_LENGTH] + 1);
	assert_int_equal(after.finished[MX_FINISH_ABORT], before.finished[MX_FINISH_ABORT]);
	mx_buf_free(&out);
}

static void a_prompt_that_is_too_long_is_counted(void **state)
{
	(void)state;
	uint64_t before = stats().rejected_length;
	struct mx_buf body = {0}, out = {0};
	mx_buf_puts(&body, "{\"prompt\":\"");
	for (int i = 0; i < 5000; i++)
		mx_buf_puts(&body, "word ");
	mx_buf_puts(&body, "\"}");
	const char *const refused[] = {"{\"prompt\":[300,301],\"max_tokens\":511}",
	                               "{\"prompt\":[\"a\",[300,301]],\"max_tokens\":511}",
	                               mx_buf_str(&body)};
	for (uint64_t i = 0; i < 3; i++) {
		assert_int_equal(run(MX_API_COMPLETION, refused[i], &out), MX_FAULT_INVALID);
		assert_string_equal(last.code, "context_length_exceeded");
		assert_int_equal(stats().rejected_length, before + i + 1);
	}
	assert_int_equal(run(MX_API_COMPLETION, "{\"prompt\":[300,301],\"max_tokens\":0}", &out),
	                 MX_FAULT_INVALID);
	assert_int_equal(stats().rejected_length, before + 3);
	mx_buf_free(&body);
	mx_buf_free(&out);
}

static void tokens_the_model_lacks_are_refused(void **state)
{
	(void)state;
	struct mx_buf out = {0};
	assert_int_equal(
		run(MX_API_COMPLETION, "{\"prompt\":\"a\",\"stop_token_ids\":[5,99999999]}", &out),
		MX_FAULT_INVALID);
	assert_string_equal(last.param, "stop_token_ids");
	assert_non_null(strstr(last.message, "99999999"));
	/* a tokenizer that knows more than the model, as those with tokens added later do */
	struct mx_engine_info *info = &service.models[0]->info;
	uint32_t vocab = info->vocab;
	struct mx_tokens t = {0};
	assert_int_equal(mx_tokenizer_encode(tokenizer, "zq", 2, false, 0, &t, NULL), MX_OK);
	int32_t top = t.ids[0];
	for (size_t i = 1; i < t.n; i++)
		top = t.ids[i] > top ? t.ids[i] : top;
	info->vocab = (uint32_t)top;
	enum mx_fault fault =
		run(MX_API_COMPLETION, "{\"prompt\":\"zq\",\"add_special_tokens\":false}", &out);
	info->vocab = vocab;
	assert_int_equal(fault, MX_FAULT_INVALID);
	assert_string_equal(last.param, "prompt");
	assert_non_null(strstr(last.message, mx_tokenizer_piece(tokenizer, top)));
	assert_non_null(strstr(last.message, "vocabulary"));
	mx_tokens_free(&t);
	mx_buf_free(&out);
}

/* Starts a generation of a body that is accepted by the parser; the fault. */
static enum mx_fault begin(const char *body, struct mx_openai *g, _Atomic unsigned *wakes)
{
	struct mx_api_request r = {0};
	assert_int_equal(mx_api_parse(MX_API_COMPLETION, body, strlen(body), NULL, &r, &last), MX_OK);
	mx_status st = generate(&r, wakes, g);
	mx_api_request_free(&r);
	return st == MX_OK ? MX_FAULT_NONE : last.fault;
}

/* A body of four prompts of 400 ids with all that can be asked of them. */
static void long_body(struct mx_buf *body, bool stream)
{
	mx_buf_puts(body, "{\"prompt\":[");
	for (int p = 0; p < 4; p++) {
		mx_buf_puts(body, p ? ",[300" : "[300");
		for (int i = 1; i < 400; i++)
			mx_buf_printf(body, ",%d", 300 + i % 50);
		mx_buf_putc(body, ']');
	}
	mx_buf_printf(body,
	              "],\"echo\":true,\"logprobs\":20,\"max_tokens\":40,\"ignore_eos\":true,"
	              "\"return_token_ids\":true,\"seed\":1,\"stream\":%s}",
	              stream ? "true" : "false");
}

static void long_answers_come_in_small_pieces(void **state)
{
	(void)state;
	for (int stream = 0; stream < 2; stream++) {
		struct mx_buf body = {0}, piece = {0};
		struct mx_openai g = {0};
		_Atomic unsigned wakes = 0;
		long_body(&body, stream);
		assert_int_equal(begin(mx_buf_str(&body), &g, &wakes), MX_FAULT_NONE);
		while (!mx_generation_finished(g.gen)) /* a reader that lags as much as it can */
			nap();
		wait_idle();
		size_t total = 0, largest = 0, n = 0;
		for (bool end = false; !end; n++) {
			mx_buf_clear(&piece);
			if (stream)
				end = mx_openai_stream(&g, &piece);
			else
				assert_int_equal(mx_openai_response(&g, &piece, &end, &last), MX_OK);
			total += piece.len;
			largest = piece.len > largest ? piece.len : largest;
		}
		print_message("%zu bytes in %zu pieces of at most %zu\n", total, n, largest);
		assert_true(total > 500000);
		/* a piece may end with a token and its alternatives, and the end of an event */
		assert_true(largest < MX_API_PIECE + 4096);
		leave(&g);
		assert_int_equal(mx_budget_used(&service.answers), 0);
		mx_buf_free(&body);
		mx_buf_free(&piece);
	}
}

static void answers_stay_within_their_budget(void **state)
{
	(void)state;
	struct mx_buf body = {0}, out = {0};
	struct mx_openai g = {0}, h = {0};
	_Atomic unsigned wakes = 0;
	uint64_t limit = service.answers.limit;
	long_body(&body, false);

	/* 4 x 440 tokens of 16 + 20 x 8 bytes: 300 KiB */
	service.answers.limit = 256 << 10;
	assert_int_equal(begin(mx_buf_str(&body), &g, &wakes), MX_FAULT_INVALID);
	assert_string_equal(last.code, "answer_too_large");
	assert_non_null(strstr(last.message, "http.answer_memory"));
	assert_false(last.retry);

	service.answers.limit = 512 << 10;
	assert_int_equal(begin(mx_buf_str(&body), &g, &wakes), MX_FAULT_NONE);
	uint64_t used = mx_budget_used(&service.answers);
	assert_in_range(used, 300 << 10, 400 << 10);
	assert_int_equal(begin(mx_buf_str(&body), &h, &wakes), MX_FAULT_EXHAUSTED);
	assert_string_equal(last.code, "server_overloaded");
	assert_true(last.retry);
	/* what was reserved is enough: it grows by the generated text at most */
	while (!mx_generation_finished(g.gen))
		nap();
	assert_in_range(mx_budget_used(&service.answers), used, used + (64 << 10));
	leave(&g);
	wait_idle();
	assert_int_equal(mx_budget_used(&service.answers), 0);

	/* text that nobody reserved: it ends when the budget does, and so does only this one */
	static const char unread[] = "{\"prompt\":[300],\"max_tokens\":500,\"ignore_eos\":true,"
								 "\"logprobs\":5,\"stream\":true,\"n\":8}";
	static const char small[] = "{\"prompt\":[300],\"max_tokens\":1,\"ignore_eos\":true}";
	service.answers.limit = 128 << 10;
	assert_int_equal(begin(unread, &g, &wakes), MX_FAULT_NONE);
	wait_idle(); /* the engine waits for nobody */
	assert_true(mx_openai_stream(&g, &out));
	assert_non_null(strstr(mx_buf_str(&out), "http.answer_memory"));
	assert_non_null(strstr(mx_buf_str(&out), "[DONE]"));
	leave(&g);
	assert_int_equal(mx_budget_used(&service.answers), 0);
	assert_int_equal(run(MX_API_COMPLETION, small, &out), MX_FAULT_NONE);

	service.answers.limit = limit;
	mx_buf_free(&body);
	mx_buf_free(&out);
}

/* A model's vocabulary is often padded: it has more ids than its tokenizer. */
static void tokens_without_text_are_reported(void **state)
{
	(void)state;
	char body[256];
	struct mx_buf out = {0};
	snprintf(body, sizeof body,
	         "{\"prompt\":[300,%zu,301],\"max_tokens\":1,\"echo\":true,\"logprobs\":0}",
	         mx_tokenizer_size(tokenizer) + 2);
	assert_int_equal(run(MX_API_COMPLETION, body, &out), MX_FAULT_NONE);
	assert_non_null(strstr(mx_buf_str(&out), ",\"\",")); /* its name, between two others */
	mx_buf_free(&out);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_allocation_may_fail),
		cmocka_unit_test(a_reader_may_leave_at_any_moment),
		cmocka_unit_test(events_have_what_answers_have),
		cmocka_unit_test(a_backlog_of_32_tokens_is_joined),
		cmocka_unit_test(a_large_echo_takes_many_reads),
		cmocka_unit_test(the_queue_takes_all_prompts_or_none),
		cmocka_unit_test(a_prompt_that_is_too_long_is_counted),
		cmocka_unit_test(tokens_the_model_lacks_are_refused),
		cmocka_unit_test(tokens_without_text_are_reported),
		cmocka_unit_test(long_answers_come_in_small_pieces),
		cmocka_unit_test(answers_stay_within_their_budget),
	};
	return cmocka_run_group_tests(tests, start, stop);
}
