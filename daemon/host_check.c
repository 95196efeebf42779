/* SPDX-License-Identifier: Apache-2.0 */
/* mixd --check: prints the memory plan of every model. */
#include <string.h>

#include "daemon/host.h"
#include "daemon/hosted.h"
#include "daemon/hosted_pooling.h"
#include "daemon/request_plan.h"
#include "model/plan.h"

static double mib(size_t bytes)
{
	return (double)bytes / 0x1p20;
}

/* Prints "room for 4 sequences of 8192 tokens, 16 of 2048, 64 of 512", up to the most sequences
 * that can run. */
static void print_concurrency(FILE *out, const struct mx_memory_plan *mp, uint32_t max_context)
{
	uint32_t fit = mx_memory_sequences(mp, max_context);
	fprintf(out, "  room for %u sequences of %u tokens", fit, max_context);
	for (uint32_t n = max_context / 4; n >= 256 && fit < mp->n_slots; n /= 4) {
		fit = mx_memory_sequences(mp, n);
		fprintf(out, ", %u of %u", fit, n);
	}
	fprintf(out, "\n");
}

/* Prints the memory for states of sequences and for the buffers of a step. */
static void print_states(FILE *out, const struct mx_config_model *m, uint32_t max_context,
                         const struct mx_memory_plan *mp)
{
	if (mp->page_bytes)
		fprintf(out, "  pages               %10.1f MiB  %u of %u tokens, %zu bytes each\n",
		        mib(mp->pages), mp->n_pages, mp->page_tokens, mp->page_bytes);
	if (mp->page_bytes && m->page_tokens && m->page_tokens != mp->page_tokens)
		fprintf(out, "    page_tokens %u is rounded up to what the mixers can do: %u\n",
		        (uint32_t)m->page_tokens, mp->page_tokens);
	if (mp->slot_bytes)
		fprintf(out, "  slots               %10.1f MiB  %u, %zu bytes each\n", mib(mp->slots),
		        mp->n_slots, mp->slot_bytes);
	if (mp->n_snapshots)
		fprintf(out, "  snapshots           %10.1f MiB  %u, %zu bytes each%s", mib(mp->snapshots),
		        mp->n_snapshots, mp->snapshot_bytes, mp->snapshot_every ? "" : "\n");
	if (mp->snapshot_every)
		fprintf(out, ", also every %u tokens\n", mp->snapshot_every);
	if (mp->snapshots_short)
		fprintf(
			out,
			"    warning: snapshot_every is so short that one sequence of %u tokens would evict "
			"states of its own\n",
			max_context);
	fprintf(out, "  scratch             %10.1f MiB\n", mib(mp->scratch));
}

static void print_memory(FILE *out, const struct mx_config_model *m, uint32_t max_context,
                         const struct mx_memory_plan *mp, const char *process)
{
	if (mp->own_memory)
		fprintf(out, "  weights             %10.1f MiB\n", mib(mp->weights_device));
	else
		fprintf(out, "  weights, mapped     %10.1f MiB\n", mib(mp->weights_mapped));
	fprintf(out, "  weights, converted  %10.1f MiB\n", mib(mp->weights_private + mp->weights_made));
	if (mp->instances)
		fprintf(out, "  mixers' own         %10.1f MiB\n", mib(mp->instances));
	print_states(out, m, max_context, mp);
	if (mp->own_memory)
		fprintf(out, "  total on %-10s %10.1f MiB  of %.1f MiB\n",
		        mp->ranks > 1 ? "each GPU" : mp->device, mib(mp->device_total),
		        mib(mp->device_free));
	if (mp->draft)
		fprintf(out, "  draft model         %10.1f MiB  %.1f MiB of it mapped weights\n",
		        mib(mp->draft), mib(mp->draft_mapped));
	fprintf(out, "  other               %10.1f MiB  tables, tokenizer%s\n", mib(mp->other),
	        process);
	fprintf(out, "  total%s %10.1f MiB\n", mp->own_memory ? " on the host  " : "              ",
	        mib(mp->total));
}

/* Prints which matrices a rank has. */
static void print_share(FILE *out, uint32_t rank, const struct mx_rank_share *s)
{
	fprintf(out, "    rank %-3u mixers %.1f MiB, feed-forwards %.1f MiB", rank, mib(s->mixers),
	        mib(s->mlps));
	if (s->experts)
		fprintf(out, ", %u experts from %u on %.1f MiB", s->n_experts, s->first_expert,
		        mib(s->experts));
	fprintf(out, ", tokens %u to %u of the vocabulary %.1f MiB, copies %.1f MiB, ", s->first_token,
	        s->first_token + s->tokens - 1, mib(s->logits), mib(s->made));
	if (s->threads)
		fprintf(out, "%u thread%s\n", s->threads, s->threads > 1 ? "s" : "");
	else
		fprintf(out, "on %s\n", s->device);
}

/* Prints what a host has, of several, in front of its first rank. */
static void print_host(FILE *out, const struct mx_memory_plan *mp, uint32_t rank)
{
	const uint32_t each = mp->ranks / mp->hosts;
	if (mp->hosts < 2 || rank % each)
		return;
	fprintf(out, "    host %u: rank%s %u", rank / each, each > 1 ? "s" : "", rank);
	if (each > 1)
		fprintf(out, " to %u", rank + each - 1);
	fprintf(out, ", %.1f MiB beside the mapped weights\n", mib(mp->total - mp->weights_mapped));
}

/* True if the ranks have equal parts of mixers and feed-forwards. */
static bool is_even(const struct mx_memory_plan *mp)
{
	const struct mx_rank_share *first = mp->shares, *last = &mp->shares[mp->ranks - 1];
	return first->mixers == last->mixers && first->mlps == last->mlps;
}

/* Prints what each of several ranks has. */
static void print_ranks(FILE *out, const struct mx_memory_plan *mp)
{
	if (mp->ranks < 2)
		return;
	fprintf(out, "  %u ranks, %s %8.1f MiB of weights, and %.1f MiB for copies of them\n",
	        mp->ranks, is_even(mp) ? "each with   " : "at most with", mib(mp->rank_weights),
	        mib(mp->rank_made));
	fprintf(out, "    %u pages of %zu bytes", mp->page_bytes ? mp->n_pages : 0,
	        mp->rank_page_bytes);
	if (mp->slot_bytes)
		fprintf(out, ", %u slots of %zu bytes", mp->n_slots, mp->rank_slot_bytes);
	if (mp->n_snapshots)
		fprintf(out, ", %u snapshots of %zu bytes", mp->n_snapshots, mp->rank_snapshot_bytes);
	fprintf(out, ", scratch %.1f MiB", mib(mp->rank_scratch));
	if (mp->rank_threads)
		fprintf(out, ", %u thread%s", mp->rank_threads, mp->rank_threads > 1 ? "s" : "");
	fprintf(out, "\n");
	if (mp->contexts > 1)
		fprintf(out, "    %u ranks share each page: every one stores %u of its %u tokens\n",
		        mp->contexts, mp->page_tokens / mp->contexts, mp->page_tokens);
	for (uint32_t i = 0; i < mp->ranks; i++) {
		print_host(out, mp, i);
		print_share(out, i, &mp->shares[i]);
	}
}

/* Prints in which ways as many ranks could divide the model, and which of them reads least. */
static void print_layouts(FILE *out, const struct mx_config_model *m, uint32_t max_context,
                          const struct mx_memory_plan *mp)
{
	if (mp->n_layouts)
		fprintf(out,
		        "  layouts of %u ranks, by what each reads at most for a token behind %u others\n",
		        mp->ranks, max_context);
	for (uint32_t i = 0; i < mp->n_layouts; i++) {
		const struct mx_rank_layout *l = &mp->layouts[i];
		const bool used = l->tensor == m->parallel.tensor && l->context == m->parallel.context;
		if (l->refused[0]) {
			fprintf(out, "    tensor %u, context %-4u not possible: %s\n", l->tensor, l->context,
			        l->refused);
			continue;
		}
		fprintf(out, "    tensor %u, context %-4u %8.1f MiB of matrices, %.1f MiB of states%s%s\n",
		        l->tensor, l->context, mib(l->matrices), mib(l->states),
		        i == mp->best_layout ? ": the least" : "", used ? " (configured)" : "");
	}
}

static void print_plan(FILE *out, const struct mx_config_model *m, const struct mx_plan *plan,
                       const struct mx_memory_plan *mp, const char *process)
{
	uint32_t max_context = m->max_context ? (uint32_t)m->max_context : plan->max_context;
	char layers[1024];
	fprintf(out, "model %s (%s, %u layers, width %u, vocabulary %u) from %s\n", m->name,
	        plan->family, plan->n_layers, plan->width, plan->vocab, m->path);
	mx_plan_describe_layers(plan, layers, sizeof layers);
	fprintf(out, "  layers %s\n", layers);
	if (mp->head_page)
		fprintf(out,
		        "  a head for multi-token prediction, one more layer: %zu bytes of each page\n",
		        mp->head_page);
	print_memory(out, m, max_context, mp, process);
	print_ranks(out, mp);
	print_layouts(out, m, max_context, mp);
	for (uint32_t i = 0; i < mp->n_mixers; i++) {
		const struct mx_engine_mixer *x = &mp->mixers[i];
		fprintf(out, "  mixer %-16s %3u layers, %zu bytes a token, %zu bytes a sequence\n", x->name,
		        x->layers, x->page_bytes / mp->page_tokens, x->slot_bytes);
	}
	print_concurrency(out, mp, max_context);
}

/* Prints how tool calls and reasoning are told from the rest of the answers. */
static void print_parsers(FILE *out, const struct mx_hosted *h)
{
	fprintf(out, "  tool calls %s, reasoning %s\n",
	        h->calls ? mx_tool_format_name(h->calls) : "none",
	        h->reasoning ? mx_reasoning_format_name(h->reasoning) : "none");
}

static mx_status print_pooling(FILE *out, const struct mx_hosted *h, struct mx_err *err)
{
	struct mx_served_pooling p;
	mx_status st = mx_hosted_pooling(h->settings, h->tokenizer, &p, err);
	if (st == MX_OK && p.kind == MX_POOLING_NONE)
		fprintf(out, "  no embeddings: %s\n", p.why);
	else if (st == MX_OK)
		fprintf(out, "  embeddings: %s%s\n",
		        p.kind == MX_POOLING_MEAN ? "mean of all tokens" : "last token",
		        p.normalize ? ", normalised" : "");
	if (st == MX_OK && p.prompt)
		fprintf(out, "  reranker: answers with \"%s\" or \"%s\"\n",
		        h->settings->reranker_tokens.items[0], h->settings->reranker_tokens.items[1]);
	return st;
}

mx_status mx_host_check(const struct mx_config *config, const struct mx_registry *mixers, FILE *out,
                        struct mx_err *err)
{
	uint64_t total = 0;
	for (size_t i = 0; i < config->n_models; i++) {
		const struct mx_config_model *m = &config->models[i];
		struct mx_hosted h = {.settings = m,
		                      .scheduler = config->scheduler,
		                      .first = i == 0,
		                      .cluster_config = &config->cluster,
		                      .tells = mx_host_tells(config)};
		struct mx_memory_plan mp;
		char why[640] = "";
		mx_status st = mx_hosted_plan(&h, mixers, &mp, err);
		if (st == MX_OK) {
			print_plan(out, m, h.plan, &mp, i ? "" : ", the process itself");
			total += mp.total;
			if (mx_hosted_template(&h, why, sizeof why))
				fprintf(out, "  no chat: %s\n", why);
			else
				print_parsers(out, &h);
			st = print_pooling(out, &h, err);
		} else {
			char where[sizeof err->where];
			snprintf(where, sizeof where, "%s%s%.100s", m->name, err->where[0] ? ": " : "",
			         err->where);
			memcpy(err->where, where, sizeof where);
		}
		mx_hosted_close(&h);
		if (st)
			return st;
	}
	mx_request_plan_print(config, total, out);
	return MX_OK;
}
