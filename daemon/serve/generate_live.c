/* SPDX-License-Identifier: Apache-2.0 */
/* Lists and ends generations for an operator. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "daemon/serve/generate_impl.h"
#include "proto/json_out.h"

static void describe(struct mx_generation *g, uint64_t now, struct mx_live_request *out)
{
	struct mx_generation_figures f;
	struct mx_api_error err;
	mx_generation_figures(g, &f, &err);
	*out =
		(struct mx_live_request){.age_ns = now - g->named_ns,
	                             .prompt_tokens = f.prompt_tokens,
	                             .output_tokens = f.output_tokens,
	                             .first_ns = f.first_token_ns ? f.first_token_ns - g->named_ns : 0,
	                             .stream = g->stream};
	memcpy(out->id, g->id, sizeof(out->id));
	snprintf(out->model, sizeof(out->model), "%s", f.model);
}

/* Lists the generations of a principal (NULL: of everybody), those that came last first, at most
 * `cap`; returns their number. *out_all: the number of all of them. */
static size_t list_live(struct mx_service *s, const struct mx_principal *who,
                        struct mx_live_request *out, size_t cap, size_t *out_all)
{
	struct mx_generation *g;
	size_t n = 0, all = 0;
	pthread_mutex_lock(&s->live.lock);
	uint64_t now = mx_now_ns();
	TAILQ_FOREACH(g, &s->live.list, live_link)
	{
		if (who && g->who != who)
			continue;
		all++;
		if (n < cap)
			describe(g, now, &out[n++]);
	}
	pthread_mutex_unlock(&s->live.lock);
	*out_all = all;
	return n;
}

static void write_request(struct mx_buf *b, const struct mx_live_request *r)
{
	mx_buf_puts(b, "{\"id\":");
	mx_json_cstring(b, r->id);
	mx_buf_puts(b, ",\"model\":");
	mx_json_cstring(b, r->model);
	mx_buf_printf(b, ",\"age_s\":%.3f,\"first_token_s\":", (double)r->age_ns / 1e9);
	if (r->first_ns)
		mx_buf_printf(b, "%.3f", (double)r->first_ns / 1e9);
	else
		mx_buf_puts(b, "null");
	mx_buf_printf(b, ",\"stream\":%s,\"prompt_tokens\":%llu,\"output_tokens\":%llu}",
	              r->stream ? "true" : "false", (unsigned long long)r->prompt_tokens,
	              (unsigned long long)r->output_tokens);
}

void mx_live_write(struct mx_service *s, const struct mx_principal *who, struct mx_buf *out)
{
	size_t all = 0;
	struct mx_live_request *r = mx_calloc(MX_LIVE_LISTED, sizeof *r);
	size_t n = r ? list_live(s, who, r, MX_LIVE_LISTED, &all) : 0;
	out->failed |= !r;
	mx_buf_printf(out, "{\"all\":%zu,\"requests\":[", all);
	for (size_t i = 0; i < n; i++) {
		mx_buf_puts(out, i ? "," : "");
		write_request(out, &r[i]);
	}
	mx_buf_puts(out, "]}");
	free(r);
}

/* Returns a generation of that id that is not cancelled yet, with a reference; NULL if there is
 * none. */
static struct mx_generation *find(struct mx_live *live, const char *id)
{
	struct mx_generation *g;
	pthread_mutex_lock(&live->lock);
	TAILQ_FOREACH(g, &live->list, live_link)
	if (!strcmp(g->id, id) && !atomic_exchange(&g->cancelled, true))
		break;
	if (g)
		atomic_fetch_add(&g->refs, 1); /* the reader has one as long as it is listed */
	pthread_mutex_unlock(&live->lock);
	return g;
}

unsigned mx_live_cancel(struct mx_service *s, const char *id)
{
	unsigned n = 0;
	for (struct mx_generation *g; (g = find(&s->live, id)) != NULL; n++) {
		mx_gen_cancel(g, MX_CANCEL_API);
		mx_gen_unref(g);
	}
	return n;
}
