/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads a model together with other hosts. Each loads the ranks of its own, from the same settings;
 * the numbers of pages, slots and snapshots are host 0's, whatever memory the others have.
 */
#include <stdio.h>
#include <string.h>

#include "device/cpu/comm.h"
#include "device/hosts/comm.h"
#include "engine/load_parts.h"
#include "engine/rank_wire.h"

/* What host 0 says of its plan. */
struct numbers {
	uint64_t page_bytes, slot_bytes, snapshot_bytes; /* of a rank */
	uint32_t n_pages, page_tokens, n_slots, n_snapshots, snapshot_every, zero;
};

mx_status mx_load_hosts_check(const struct mx_engine_config *config, enum mx_device_kind kind,
                              struct mx_err *err)
{
	const uint32_t ranks = mx_load_n_ranks(config), hosts = config->n_hosts;
	if (hosts < 2)
		return MX_OK;
	if (kind != MX_DEVICE_CPU)
		return mx_fail_at(err, MX_E_UNSUPPORTED, "cluster.hosts",
		                  "GPUs of several hosts do not communicate yet: say device: cpu");
	if (ranks % hosts)
		return mx_fail_at(err, MX_E_RANGE, "cluster.hosts", "%u ranks do not divide among %u hosts",
		                  ranks, hosts);
	if (config->context > 1 && (ranks / hosts) % config->context)
		return mx_fail_at(err, MX_E_UNSUPPORTED, "parallel.context",
		                  "pages are shared by ranks of one host only: %u does not divide its %u "
		                  "devices",
		                  config->context, ranks / hosts);
	return MX_OK;
}

/* Makes *err what the hosts were lost of. */
static mx_status lost(const struct mx_engine_config *config, struct mx_err *err)
{
	char why[MX_HOSTS_WHY] = "another host is lost";
	(void)mx_hosts_lost(config->hosts, why);
	return mx_fail(err, MX_E_DEVICE, "%s", why);
}

static mx_status send_to(const struct mx_engine_config *config, uint32_t host,
                         enum mx_frame_kind kind, const void *x, size_t bytes)
{
	const struct mx_frame head = {.kind = kind, .bytes = bytes};
	mx_status st = mx_link_send(mx_hosts_link(config->hosts, host), head, x);
	if (st != MX_OK)
		mx_hosts_link_failed(config->hosts, host, st);
	return st;
}

static mx_status recv_from(const struct mx_engine_config *config, uint32_t host,
                           enum mx_frame_kind kind, void *y, size_t bytes)
{
	mx_status st = mx_link_recv(mx_hosts_link(config->hosts, host), kind, y, bytes);
	if (st != MX_OK)
		mx_hosts_link_failed(config->hosts, host, st);
	return st;
}

/* Takes the numbers of host 0, if they are possible for this host's model. */
static mx_status take(const struct mx_model *m, const struct numbers *n, struct mx_memory_plan *p,
                      struct mx_err *err)
{
	if (n->page_bytes < m->page_bytes || n->slot_bytes < m->slot_bytes ||
	    n->snapshot_bytes < p->snapshot_bytes || n->page_tokens != p->page_tokens || !n->n_slots ||
	    (m->page_bytes && n->n_pages > SIZE_MAX / 2 / m->page_bytes))
		return mx_fail(err, MX_E_INVALID,
		               "the first host has pages of %llu bytes and slots of %llu, and this host "
		               "of %zu and %zu",
		               (unsigned long long)n->page_bytes, (unsigned long long)n->slot_bytes,
		               m->page_bytes, m->slot_bytes);
	p->total -= p->pages + p->slots + p->snapshots;
	p->n_pages = n->n_pages;
	p->n_slots = n->n_slots;
	p->n_snapshots = n->n_snapshots;
	p->snapshot_every = n->snapshot_every;
	p->pages = (size_t)p->n_pages * m->page_bytes;
	p->slots = (size_t)p->n_slots * m->slot_bytes;
	p->snapshots = (size_t)p->n_snapshots * p->snapshot_bytes;
	p->total += p->pages + p->slots + p->snapshots;
	return MX_OK;
}

mx_status mx_load_hosts_plan(const struct mx_model *m, const struct mx_engine_config *config,
                             struct mx_memory_plan *p, struct mx_err *err)
{
	struct numbers n = {.page_bytes = m->page_bytes,
	                    .slot_bytes = m->slot_bytes,
	                    .snapshot_bytes = p->snapshot_bytes,
	                    .n_pages = p->n_pages,
	                    .page_tokens = p->page_tokens,
	                    .n_slots = p->n_slots,
	                    .n_snapshots = p->n_snapshots,
	                    .snapshot_every = p->snapshot_every};
	mx_status st = MX_OK;
	if (!config->hosts)
		return MX_OK;
	for (uint32_t h = 1; !config->host && h < config->n_hosts && st == MX_OK; h++)
		st = send_to(config, h, MX_FRAME_PLAN, &n, sizeof n);
	if (config->host)
		st = recv_from(config, 0, MX_FRAME_PLAN, &n, sizeof n);
	if (st != MX_OK)
		return lost(config, err);
	return config->host ? take(m, &n, p, err) : MX_OK;
}

mx_status mx_load_hosts_connect(struct mx_model_engine *const *engines,
                                struct mx_device *const *devices,
                                const struct mx_engine_config *config, struct mx_err *err)
{
	const uint32_t n = mx_load_local_ranks(config);
	struct mx_comm *calls[MX_MAX_RANKS], *comms[MX_MAX_RANKS];
	mx_status st = mx_cpu_comm_create(devices, n, calls);
	for (uint32_t i = 0; i < n && st == MX_OK; i++)
		engines[i]->calls = calls[i];
	if (st == MX_OK)
		st = mx_hosts_comm_create(config->hosts, calls, n, comms);
	for (uint32_t i = 0; i < n && st == MX_OK; i++)
		engines[i]->comm = comms[i];
	return st == MX_OK ? MX_OK : mx_fail(err, st, "out of memory");
}

mx_status mx_load_hosts_wire(const struct mx_model_engine *e, const struct mx_memory_plan *p,
                             const struct mx_engine_config *config, struct mx_rank_wire **out)
{
	static mx_rank_run_f *const runs[] = {
		mx_forward_rank, mx_forward_commit_rank, mx_rank_clear,  mx_rank_save,  mx_rank_load,
		mx_rank_logits,  mx_rank_resume,         mx_rank_follow, mx_rank_draft,
	};
	const struct mx_rank_wire_limits limits = {
		.rows = e->limits.rows,
		.spans = e->limits.sequences,
		.slots = p->n_slots,
		.pages = p->n_pages,
		.blocks = p->n_snapshots,
		.list = mx_list_pages(&e->model, &e->limits),
		.kept = MX_TREE_TOKENS + MX_MAX_DRAFT,
	};
	*out = NULL;
	return config->hosts
	           ? mx_rank_wire_create(config->hosts, &limits, runs, sizeof runs / sizeof *runs, out)
	           : MX_OK;
}

mx_status mx_load_hosts_ready(const struct mx_engine_config *config, struct mx_err *err)
{
	mx_status st = MX_OK;
	if (!config->hosts)
		return MX_OK;
	if (config->host) {
		st = send_to(config, 0, MX_FRAME_LOADED, NULL, 0);
		if (st == MX_OK)
			st = recv_from(config, 0, MX_FRAME_LOADED, NULL, 0);
	}
	for (uint32_t h = 1; !config->host && h < config->n_hosts && st == MX_OK; h++)
		st = recv_from(config, h, MX_FRAME_LOADED, NULL, 0);
	for (uint32_t h = 1; !config->host && h < config->n_hosts && st == MX_OK; h++)
		st = send_to(config, h, MX_FRAME_LOADED, NULL, 0);
	return st == MX_OK ? MX_OK : lost(config, err);
}

void mx_load_hosts_fail(const struct mx_engine_config *config, struct mx_err *err)
{
	char why[MX_HOSTS_WHY];
	if (!config->hosts || mx_hosts_lost(config->hosts, NULL))
		return;
	snprintf(why, sizeof why, "it cannot load the model: %.60s%s%.140s", err ? err->where : "",
	         err && err->where[0] ? ": " : "", err ? err->text : "");
	mx_hosts_abort(config->hosts, why);
}
