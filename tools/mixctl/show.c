/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/mixctl/show.h"

#include <stdio.h>
#include <string.h>

static const char *text_of(const json_t *o, const char *name)
{
	const char *s = json_string_value(json_object_get(o, name));
	return s ? s : "";
}

static double number_of(const json_t *o, const char *name)
{
	return json_number_value(json_object_get(o, name));
}

static long long count_of(const json_t *o, const char *name)
{
	return (long long)json_integer_value(json_object_get(o, name));
}

static double mib(const json_t *o, const char *name)
{
	return number_of(o, name) / 0x1p20;
}

/* ---- status, models, requests, reload ---- */

/* Prints the state of a model, and how far it is loaded. */
static void print_state(const json_t *m)
{
	if (!strcmp(text_of(m, "state"), "loading"))
		printf("loading, %.0f%%", 100 * number_of(m, "progress"));
	else
		fputs(text_of(m, "state"), stdout);
}

void mixctl_show_status(const json_t *s)
{
	size_t i;
	const json_t *m;
	bool ready = json_is_true(json_object_get(s, "ready"));
	printf("mixd %s, process %lld, up %.0f s: %s%s\n", text_of(s, "version"), count_of(s, "pid"),
	       number_of(s, "uptime_s"), ready ? "ready" : "not ready: ", text_of(s, "reason"));
	if (json_is_true(json_object_get(s, "reloading")))
		puts("a reload runs");
	printf("%lld requests are served\n", count_of(s, "requests"));
	json_array_foreach(json_object_get(s, "models"), i, m)
	{
		printf("model %s: ", text_of(m, "name"));
		print_state(m);
		if (json_object_get(m, "running"))
			printf(", %lld running, %lld waiting, %lld finished, %lld tokens",
			       count_of(m, "running"), count_of(m, "waiting"), count_of(m, "finished"),
			       count_of(m, "output_tokens"));
		if (*text_of(m, "failure"))
			printf(": %s", text_of(m, "failure"));
		putchar('\n');
	}
	json_array_foreach(json_object_get(s, "retired"), i, m)
		printf("model %s: the old one finishes %lld requests\n", text_of(m, "name"),
	           count_of(m, "requests"));
}

void mixctl_show_models(const json_t *s)
{
	size_t i, k;
	const json_t *m, *alias;
	json_array_foreach(json_object_get(s, "models"), i, m)
	{
		printf("%s: ", text_of(m, "name"));
		print_state(m);
		json_array_foreach(json_object_get(m, "aliases"), k, alias)
			printf("%s%s", k ? ", " : "; aliases ", json_string_value(alias));
		if (json_object_get(m, "device"))
			printf("; on %s, context %lld, %.1f MiB of weights", text_of(m, "device"),
			       count_of(m, "max_context"), mib(m, "weight_bytes"));
		putchar('\n');
	}
}

void mixctl_show_requests(const json_t *requests)
{
	const json_t *list = json_object_get(requests, "requests"), *r;
	size_t i;
	json_array_foreach(list, i, r)
		printf("%s  %s, %.1f s, %lld prompt tokens, %lld output tokens%s\n", text_of(r, "id"),
	           text_of(r, "model"), number_of(r, "age_s"), count_of(r, "prompt_tokens"),
	           count_of(r, "output_tokens"),
	           json_is_true(json_object_get(r, "stream")) ? ", streamed" : "");
	long long more = count_of(requests, "all") - (long long)json_array_size(list);
	if (more > 0)
		printf("and %lld that have run for longer\n", more);
}

void mixctl_show_reload(const json_t *result)
{
	static const struct {
		const char *name, *text;
	} lists[] = {{"applied", "applied"},        {"added", "models added"},
	             {"removed", "models removed"}, {"replaced", "models replaced"},
	             {"read", "read again"},        {"restart", "for a restart wait"}};
	bool any = false;
	for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
		if (!*text_of(result, lists[i].name))
			continue;
		printf("%s: %s\n", lists[i].text, text_of(result, lists[i].name));
		any = true;
	}
	if (!any)
		puts("nothing has changed");
}

/* ---- top ---- */

static const json_t *find_model(const json_t *status, const char *name)
{
	size_t i;
	const json_t *m;
	json_array_foreach(json_object_get(status, "models"), i,
	                   m) if (!strcmp(text_of(m, "name"), name)) return m;
	return NULL;
}

/* Returns how much a counter has grown; one that is smaller than before has begun anew. */
static double growth(double before, double now)
{
	return now < before ? now : now - before;
}

static void set_number(json_t *o, const char *name, double v)
{
	json_object_set_new(o, name, json_real(v));
}

/* Sets the gaps between tokens below which half and 99 % of them lie, and the longest, as upper
 * bounds in seconds; 0 if there were none. */
static void set_gaps(json_t *out, const json_t *before, const json_t *now)
{
	const json_t *h = json_object_get(now, "gaps"), *old = json_object_get(before, "gaps");
	const json_t *bounds = json_object_get(h, "bounds"), *counts = json_object_get(h, "counts");
	const json_t *old_counts = json_object_get(old, "counts");
	size_t n = json_array_size(counts);
	double all = 0, sum = 0, p50 = 0, p99 = 0, longest = 0;
	bool anew = number_of(now, "output_tokens") < number_of(before, "output_tokens");
	for (int pass = 0; pass < 2; pass++) {
		for (size_t i = 0; i < n; i++) {
			double c = json_number_value(json_array_get(counts, i));
			c -= anew ? 0 : json_number_value(json_array_get(old_counts, i));
			if (!pass) {
				all += c;
				continue;
			}
			if (c <= 0)
				continue;
			/* beyond the last bound: the longest since the start is all that is known */
			double bound = i < json_array_size(bounds)
			                   ? json_number_value(json_array_get(bounds, i))
			                   : number_of(now, "longest_gap_s");
			p50 = sum < 0.5 * all ? bound : p50;
			p99 = sum < 0.99 * all ? bound : p99;
			longest = bound;
			sum += c;
		}
	}
	set_number(out, "gap_p50_s", p50);
	set_number(out, "gap_p99_s", p99);
	set_number(out, "gap_max_s", longest);
}

static json_t *top_model(const json_t *before, const json_t *now, double seconds)
{
	static const struct {
		const char *name, *counter;
	} rates[] = {{"requests_per_s", "finished"},
	             {"tokens_per_s", "output_tokens"},
	             {"prompt_tokens_per_s", "prompt_tokens"},
	             {"steps_per_s", "steps"}};
	static const char *const levels[] = {"running", "waiting",    "pages",        "pages_used",
	                                     "slots",   "slots_used", "oldest_wait_s"};
	json_t *out = json_object();
	json_object_set(out, "name", json_object_get(now, "name"));
	json_object_set(out, "state", json_object_get(now, "state"));
	for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
		json_t *v = json_object_get(now, levels[i]);
		if (v)
			json_object_set(out, levels[i], v);
		else
			json_object_set_new(out, levels[i], json_integer(0));
	}
	for (size_t i = 0; i < sizeof rates / sizeof *rates; i++)
		set_number(out, rates[i].name,
		           growth(number_of(before, rates[i].counter), number_of(now, rates[i].counter)) /
		               seconds);
	set_gaps(out, before, now);
	return out;
}

json_t *mixctl_top(const json_t *before, const json_t *now)
{
	double seconds = before ? (number_of(now, "time_ns") - number_of(before, "time_ns")) / 1e9
	                        : number_of(now, "uptime_s");
	json_t *out = json_object(), *models = json_array();
	size_t i;
	const json_t *m;
	set_number(out, "interval_s", seconds);
	json_object_set(out, "requests", json_object_get(now, "requests"));
	json_array_foreach(json_object_get(now, "models"), i, m) json_array_append_new(
		models, top_model(find_model(before, text_of(m, "name")), m, seconds > 0 ? seconds : 1));
	json_object_set_new(out, "models", models);
	return out;
}

void mixctl_show_top(const json_t *before, const json_t *now)
{
	json_t *top = mixctl_top(before, now);
	size_t i;
	const json_t *m;
	printf("mixd %s, up %.0f s, %lld requests; figures of %.1f s\n\n", text_of(now, "version"),
	       number_of(now, "uptime_s"), count_of(now, "requests"), number_of(top, "interval_s"));
	printf("%-24s %-9s %7s %7s %8s %9s %9s %15s %11s %8s %8s %8s\n", "MODEL", "STATE", "RUNNING",
	       "WAITING", "REQ/S", "TOKENS/S", "PROMPT/S", "PAGES", "SLOTS", "GAP 50%", "99%",
	       "MAX ms");
	json_array_foreach(json_object_get(top, "models"), i, m)
	{
		char pages[40], slots[40];
		snprintf(pages, sizeof pages, "%lld/%lld", count_of(m, "pages_used"), count_of(m, "pages"));
		snprintf(slots, sizeof slots, "%lld/%lld", count_of(m, "slots_used"), count_of(m, "slots"));
		printf("%-24.24s %-9s %7lld %7lld %8.1f %9.1f %9.1f %15s %11s %8.1f %8.1f %8.1f\n",
		       text_of(m, "name"), text_of(m, "state"), count_of(m, "running"),
		       count_of(m, "waiting"), number_of(m, "requests_per_s"), number_of(m, "tokens_per_s"),
		       number_of(m, "prompt_tokens_per_s"), pages, slots, 1e3 * number_of(m, "gap_p50_s"),
		       1e3 * number_of(m, "gap_p99_s"), 1e3 * number_of(m, "gap_max_s"));
	}
	json_decref(top);
}
