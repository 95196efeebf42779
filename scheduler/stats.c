/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/stats.h"

#include <string.h>

#include "base/clock.h"

/* Seconds. The bounds are vLLM's, for which its Grafana board is made, with finer ones below 10 ms
 * for small models. */
static const double ttft_bounds[] = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                     1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
static const double itl_bounds[] = {.0005, .001, .002, .005, .01, .025, .05, .075, .1, .15, .2, .3,
                                    .4,    .5,   .75,  1,    2.5, 5,    7.5, 10,   20, 40,  80};
static const double request_bounds[] = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                        30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
static const double step_bounds[] = {1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 3e-5, 5e-5, 1e-4,
                                     2e-4, 5e-4, .001, .002, .005, .01,  .02,  .05,
                                     .1,   .2,   .5,   1,    2,    5,    10};
/* Tokens. */
static const double step_tokens_bounds[] = {1,   8,    16,   32,   64,   128,  256,
                                            512, 1024, 2048, 4096, 8192, 16384};

#define COUNT(a) ((uint32_t)(sizeof(a) / sizeof *(a)))
_Static_assert(COUNT(itl_bounds) <= MX_HIST_MAX && COUNT(ttft_bounds) <= MX_HIST_MAX &&
                   COUNT(request_bounds) <= MX_HIST_MAX && COUNT(step_bounds) <= MX_HIST_MAX,
               "bounds fit");

void mx_stats_init(struct mx_stats *s, uint32_t max_context)
{
	memset(s, 0, sizeof *s);
	pthread_mutex_init(&s->lock, NULL);
	const double *const tokens_bounds = s->token_bounds;
	const uint32_t n_tokens = mx_hist_bounds_125(max_context, s->token_bounds);
	const uint32_t n_ttft = COUNT(ttft_bounds), n_itl = COUNT(itl_bounds);
	const uint32_t n_request = COUNT(request_bounds), n_step = COUNT(step_bounds);
	const uint32_t n_step_tokens = COUNT(step_tokens_bounds);
#define INIT(field, kind) mx_hist_init(&s->v.field, kind##_bounds, n_##kind);
	MX_SCHED_HISTS(INIT)
#undef INIT
}

void mx_stats_free(struct mx_stats *s)
{
	pthread_mutex_destroy(&s->lock);
}

static double seconds(uint64_t from, uint64_t to)
{
	return to > from ? (double)(to - from) / (double)MX_NS_PER_S : 0;
}

void mx_stats_request(struct mx_stats *s, const struct mx_done *d, uint32_t max_tokens,
                      uint64_t now)
{
	mx_hist_add(&s->v.e2e, seconds(d->arrival_ns, now));
	mx_hist_add(&s->v.queue_time, seconds(d->arrival_ns, d->first_scheduled_ns));
	mx_hist_add(&s->v.inference_time, seconds(d->first_scheduled_ns, now));
	uint64_t prompt_end = d->first_token_ns ? d->first_token_ns : now;
	mx_hist_add(&s->v.prefill_time, seconds(d->first_scheduled_ns, prompt_end));
	if (d->first_token_ns)
		mx_hist_add(&s->v.decode_time, seconds(d->first_token_ns, d->last_token_ns));
	if (d->output_tokens > 1)
		mx_hist_add(&s->v.tpot,
		            seconds(d->first_token_ns, d->last_token_ns) / (d->output_tokens - 1));
	mx_hist_add(&s->v.request_prompt, d->prompt_tokens);
	mx_hist_add(&s->v.request_output, d->output_tokens);
	mx_hist_add(&s->v.request_max_tokens, max_tokens);
}
