/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every collective is made of the same steps: the ranks of a host post their memory and meet, the
 * leader exchanges with other hosts while the others wait, and they meet again. What is to be
 * summed or shuffled goes through a stage, a part at a time; what is only copied goes straight to
 * the ranks' memory.
 */
#include "device/hosts/comm.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

#define STAGE ((size_t)1 << 20) /* bytes of each host */

/* What a rank gives the others of its host. */
struct posted {
	_Alignas(64) const void *x;
	void *y;
	size_t ldx, ldy, first, cols;
};

struct host_group;

struct host_comm {
	struct mx_comm base;
	struct host_group *group;
	struct mx_comm *local;
	atomic_uint_fast64_t spent_ns;
};

struct host_group {
	struct mx_hosts *hosts;
	uint32_t host, n_hosts, n_local;
	struct host_comm *comms; /* [n_local] */
	struct posted *posted;   /* [n_local] */
	unsigned char *stage;    /* [n_hosts][STAGE] */
	mx_status result;        /* of the leader's last exchange */
	atomic_uint handles;
};

static struct host_comm *comm_of(struct mx_comm *c)
{
	return (struct host_comm *)c;
}

static uint32_t local_rank(const struct mx_comm *c)
{
	return ((const struct host_comm *)c)->local->rank;
}

static unsigned char *stage_of(const struct host_group *g, uint32_t host)
{
	return g->stage + host * STAGE;
}

static void comm_abort(struct mx_comm *c)
{
	mx_hosts_abort(comm_of(c)->group->hosts, "a rank of it has failed");
	comm_of(c)->local->ops->abort(comm_of(c)->local);
}

/* ---- what leaders do ---- */

/* A link's failure ends all. */
static mx_status checked(struct host_group *g, uint32_t host, mx_status st)
{
	if (st != MX_OK)
		mx_hosts_link_failed(g->hosts, host, st);
	return st;
}

static mx_status send_to(struct host_group *g, uint32_t host, struct mx_frame head, const void *x)
{
	return checked(g, host, mx_link_send(mx_hosts_link(g->hosts, host), head, x));
}

static mx_status recv_from(struct host_group *g, uint32_t host, enum mx_frame_kind kind, void *y,
                           size_t bytes)
{
	return checked(g, host, mx_link_recv(mx_hosts_link(g->hosts, host), kind, y, bytes));
}

static mx_status exchange_with(struct host_group *g, uint32_t host, enum mx_frame_kind kind,
                               const void *x, void *y, size_t bytes)
{
	return checked(g, host, mx_link_exchange(mx_hosts_link(g->hosts, host), kind, x, y, bytes));
}

/* Hands on n frames from one host to another, neither of which is host 0. Uses host 0's stage. */
static mx_status relay(struct host_group *g, uint32_t from, uint32_t to, enum mx_frame_kind kind,
                       uint64_t n)
{
	mx_status st = mx_link_relay(mx_hosts_link(g->hosts, from), mx_hosts_link(g->hosts, to), kind,
	                             n, stage_of(g, 0), STAGE);
	if (st != MX_OK) { /* one of them */
		mx_hosts_link_failed(g->hosts, from, st);
		mx_hosts_link_failed(g->hosts, to, st);
	}
	return st;
}

/* Adds n floats of each host to those of host 0, in the order of the hosts. */
static void fold(const struct host_group *g, size_t n)
{
	float *sum = (float *)(void *)stage_of(g, 0);
	for (uint32_t h = 1; h < g->n_hosts; h++) {
		const float *x = (const float *)(const void *)stage_of(g, h);
		for (size_t i = 0; i < n; i++)
			sum[i] += x[i];
	}
}

/* Leaves in stage 0 the sum of what the hosts have in theirs. */
static mx_status lead_sum(struct host_group *g, size_t n)
{
	const size_t bytes = n * sizeof(float);
	const struct mx_frame head = {.kind = MX_FRAME_SUM, .bytes = bytes};
	mx_status st = MX_OK;
	if (g->n_hosts == 2) {
		st = exchange_with(g, !g->host, MX_FRAME_SUM, stage_of(g, g->host), stage_of(g, !g->host),
		                   bytes);
		if (st == MX_OK)
			fold(g, n);
		return st;
	}
	if (g->host) {
		st = send_to(g, 0, head, stage_of(g, g->host));
		return st == MX_OK ? recv_from(g, 0, MX_FRAME_SUM, stage_of(g, 0), bytes) : st;
	}
	for (uint32_t h = 1; h < g->n_hosts && st == MX_OK; h++)
		st = recv_from(g, h, MX_FRAME_SUM, stage_of(g, h), bytes);
	if (st == MX_OK)
		fold(g, n);
	for (uint32_t h = 1; h < g->n_hosts && st == MX_OK; h++)
		st = send_to(g, h, head, stage_of(g, 0));
	return st;
}

/* Gives all hosts what each has in its stage. */
static mx_status lead_share(struct host_group *g, size_t bytes)
{
	const struct mx_frame head = {.kind = MX_FRAME_SHARE, .bytes = bytes};
	mx_status st = MX_OK;
	if (g->n_hosts == 2)
		return exchange_with(g, !g->host, MX_FRAME_SHARE, stage_of(g, g->host),
		                     stage_of(g, !g->host), bytes);
	if (g->host) {
		st = send_to(g, 0, head, stage_of(g, g->host));
		for (uint32_t h = 0; h < g->n_hosts && st == MX_OK; h++)
			if (h != g->host)
				st = recv_from(g, 0, MX_FRAME_SHARE, stage_of(g, h), bytes);
		return st;
	}
	for (uint32_t h = 1; h < g->n_hosts && st == MX_OK; h++)
		st = recv_from(g, h, MX_FRAME_SHARE, stage_of(g, h), bytes);
	for (uint32_t to = 1; to < g->n_hosts; to++)
		for (uint32_t h = 0; h < g->n_hosts && st == MX_OK; h++)
			if (h != to)
				st = send_to(g, to, head, stage_of(g, h));
	return st;
}

/* Copies x[bytes] of the leader of host `root` to those of the others. */
static mx_status lead_copy(struct host_group *g, uint32_t root, void *x, size_t bytes)
{
	const struct mx_frame head = {.kind = MX_FRAME_COPY, .bytes = bytes};
	mx_status st = MX_OK;
	if (g->host && g->host == root)
		return send_to(g, 0, head, x);
	if (g->host || root)
		st = recv_from(g, g->host ? 0 : root, MX_FRAME_COPY, x, bytes);
	for (uint32_t h = 1; !g->host && h < g->n_hosts && st == MX_OK; h++)
		if (h != root)
			st = send_to(g, h, head, x);
	return st;
}

static mx_status lead_barrier(struct host_group *g)
{
	const struct mx_frame head = {.kind = MX_FRAME_BARRIER};
	mx_status st = MX_OK;
	if (g->host) {
		st = send_to(g, 0, head, NULL);
		return st == MX_OK ? recv_from(g, 0, MX_FRAME_BARRIER, NULL, 0) : st;
	}
	for (uint32_t h = 1; h < g->n_hosts && st == MX_OK; h++)
		st = recv_from(g, h, MX_FRAME_BARRIER, NULL, 0);
	for (uint32_t h = 1; h < g->n_hosts && st == MX_OK; h++)
		st = send_to(g, h, head, NULL);
	return st;
}

/* Sends the columns of this host's ranks, [n] rows each. */
static mx_status send_columns(struct host_group *g, uint32_t to, size_t n)
{
	mx_status st = MX_OK;
	for (uint32_t r = 0; r < g->n_local && st == MX_OK; r++) {
		const struct posted *p = &g->posted[r];
		const size_t bytes = p->cols * sizeof(float);
		const struct mx_frame head = {
			.kind = MX_FRAME_COLUMNS, .a = (uint32_t)p->first, .b = (uint32_t)p->cols};
		st = send_to(g, to, head, NULL);
		for (size_t i = 0; i < n && st == MX_OK; i++)
			st = send_to(g, to, (struct mx_frame){.kind = MX_FRAME_ROW, .bytes = bytes},
			             (const float *)p->x + i * p->ldx);
	}
	return st;
}

/* Receives the columns of another host's ranks to y [n, ldy]. */
static mx_status recv_columns(struct host_group *g, uint32_t from, size_t n, float *y, size_t ldy)
{
	struct mx_link *l = mx_hosts_link(g->hosts, from);
	mx_status st = MX_OK;
	for (uint32_t r = 0; r < g->n_local && st == MX_OK; r++) {
		struct mx_frame head;
		st = checked(g, from, mx_link_head(l, MX_FRAME_COLUMNS, 0, &head));
		if (st == MX_OK && (head.a > ldy || head.b > ldy - head.a)) {
			mx_hosts_abort(g->hosts, "another host sent columns that are not there");
			return MX_E_FORMAT;
		}
		for (size_t i = 0; i < n && st == MX_OK; i++)
			st = recv_from(g, from, MX_FRAME_ROW, y + i * ldy + head.a, head.b * sizeof *y);
	}
	return st;
}

/* Gathers the columns of all other hosts at a rank of host `to`, which gives y [n, ldy]. */
static mx_status lead_columns(struct host_group *g, uint32_t to, size_t n, float *y, size_t ldy)
{
	mx_status st = MX_OK;
	for (uint32_t from = 0; from < g->n_hosts && st == MX_OK; from++) {
		if (from == to)
			continue;
		if (g->host == from)
			st = send_columns(g, to && from ? 0 : to, n);
		else if (g->host == to)
			st = recv_columns(g, to && from ? 0 : from, n, y, ldy);
		else if (!g->host && to && from)
			for (uint32_t r = 0; r < g->n_local && st == MX_OK; r++) {
				st = relay(g, from, to, MX_FRAME_COLUMNS, 1);
				st = st == MX_OK ? relay(g, from, to, MX_FRAME_ROW, n) : st;
			}
	}
	return st;
}

/* ---- meeting ---- */

static mx_status meet(struct mx_comm *c)
{
	struct mx_comm *local = comm_of(c)->local;
	return local->ops->barrier(local);
}

/* Posts this rank's memory, and waits for that of the host's others. */
static mx_status open_collective(struct mx_comm *c, struct posted p)
{
	comm_of(c)->group->posted[local_rank(c)] = p;
	return meet(c);
}

static bool leads(struct mx_comm *c)
{
	return !local_rank(c);
}

/* Takes note of the leader's result, and waits for it. */
static mx_status close_lead(struct mx_comm *c, mx_status st, uint64_t begin)
{
	struct host_group *g = comm_of(c)->group;
	if (leads(c)) {
		g->result = st;
		mx_hosts_add_ns(g->hosts, mx_now_ns() - begin);
		if (st != MX_OK)
			comm_abort(c);
	}
	st = meet(c);
	return st == MX_OK && g->result != MX_OK ? MX_E_DEVICE : st;
}

/* Returns this rank's part of n elements: first .. end - 1, whole cache lines of floats. */
static size_t part_of(const struct mx_comm *c, uint32_t n_local, size_t n, size_t *out_end)
{
	const size_t share = mx_round_up((n + n_local - 1) / n_local, 16);
	const size_t first = share * local_rank(c), end = first + share;
	*out_end = end < n ? end : n;
	return first < n ? first : n;
}

/* ---- the operators ---- */

/* Sums floats at .. at + n - 1 of this host's ranks into its stage: this rank's part of them. */
static void sum_local(struct mx_comm *c, size_t at, size_t n)
{
	struct host_group *g = comm_of(c)->group;
	float *sum = (float *)(void *)stage_of(g, g->host);
	size_t end, first = part_of(c, g->n_local, n, &end);
	memcpy(sum + first, (const float *)g->posted[0].y + at + first, (end - first) * sizeof *sum);
	for (uint32_t r = 1; r < g->n_local; r++) {
		const float *x = (const float *)g->posted[r].y + at;
		for (size_t i = first; i < end; i++)
			sum[i] += x[i];
	}
}

static mx_status sum_all(struct mx_comm *c, void *x, size_t n)
{
	struct host_group *g = comm_of(c)->group;
	mx_status st = open_collective(c, (struct posted){.y = x});
	for (size_t at = 0; at < n && st == MX_OK; at += STAGE / sizeof(float)) {
		const size_t some = n - at < STAGE / sizeof(float) ? n - at : STAGE / sizeof(float);
		sum_local(c, at, some);
		if ((st = meet(c)) != MX_OK)
			break;
		const uint64_t begin = mx_now_ns();
		st = close_lead(c, leads(c) ? lead_sum(g, some) : MX_OK, begin);
		if (st != MX_OK)
			break;
		memcpy((float *)x + at, stage_of(g, 0), some * sizeof(float));
		st = meet(c); /* the stage is written again next */
	}
	return st;
}

static mx_status gather_all(struct mx_comm *c, const void *x, size_t bytes, void *y)
{
	struct host_group *g = comm_of(c)->group;
	const size_t part = STAGE / g->n_local;
	mx_status st = MX_OK;
	for (size_t at = 0; at < bytes && st == MX_OK; at += part) {
		const size_t n = bytes - at < part ? bytes - at : part;
		memcpy(stage_of(g, g->host) + local_rank(c) * n, (const char *)x + at, n);
		if ((st = meet(c)) != MX_OK)
			break;
		const uint64_t begin = mx_now_ns();
		st = close_lead(c, leads(c) ? lead_share(g, g->n_local * n) : MX_OK, begin);
		for (uint32_t r = 0; r < c->ranks && st == MX_OK; r++)
			memcpy((char *)y + r * bytes + at, stage_of(g, r / g->n_local) + (r % g->n_local) * n,
			       n);
		if (st == MX_OK)
			st = meet(c);
	}
	return st;
}

static mx_status pass_all(struct mx_comm *c, const void *x, size_t bytes, void *y)
{
	struct host_group *g = comm_of(c)->group;
	const size_t part = STAGE / ((size_t)g->n_local * c->ranks);
	mx_status st = MX_OK;
	for (size_t at = 0; at < bytes && st == MX_OK; at += part) {
		const size_t n = bytes - at < part ? bytes - at : part;
		for (uint32_t r = 0; r < c->ranks; r++)
			memcpy(stage_of(g, g->host) + ((size_t)local_rank(c) * c->ranks + r) * n,
			       (const char *)x + r * bytes + at, n);
		if ((st = meet(c)) != MX_OK)
			break;
		const uint64_t begin = mx_now_ns();
		const size_t all = (size_t)g->n_local * c->ranks * n;
		st = close_lead(c, leads(c) ? lead_share(g, all) : MX_OK, begin);
		for (uint32_t r = 0; r < c->ranks && st == MX_OK; r++)
			memcpy((char *)y + r * bytes + at,
			       stage_of(g, r / g->n_local) +
			           ((size_t)(r % g->n_local) * c->ranks + c->rank) * n,
			       n);
		if (st == MX_OK)
			st = meet(c);
	}
	return st;
}

/* The leaders have it first: the root's host by the root's own memory. */
static mx_status broadcast(struct mx_comm *c, uint32_t root, void *x, size_t bytes)
{
	struct host_group *g = comm_of(c)->group;
	const uint32_t host = root / g->n_local, source = host == g->host ? root % g->n_local : 0;
	mx_status st = open_collective(c, (struct posted){.y = x});
	if (st != MX_OK)
		return st;
	const uint64_t begin = mx_now_ns();
	st = close_lead(c, leads(c) ? lead_copy(g, host, g->posted[source].y, bytes) : MX_OK, begin);
	if (st == MX_OK && local_rank(c) != source && bytes)
		memcpy(x, g->posted[source].y, bytes);
	return st == MX_OK ? meet(c) : st;
}

static mx_status join_columns(struct mx_comm *c, uint32_t root, const float *x, size_t ldx,
                              size_t n, size_t first, size_t cols, float *y, size_t ldy)
{
	struct host_group *g = comm_of(c)->group;
	const uint32_t host = root / g->n_local;
	mx_status st = open_collective(
		c, (struct posted){.x = x, .y = y, .ldx = ldx, .ldy = ldy, .first = first, .cols = cols});
	if (st != MX_OK)
		return st;
	const struct posted *to = &g->posted[root % g->n_local];
	const uint64_t begin = mx_now_ns();
	if (host == g->host) {
		float *at = (float *)to->y + first;
		for (size_t i = 0; i < n && cols && at != x; i++)
			memcpy(at + i * to->ldy, x + i * ldx, cols * sizeof *x);
	}
	return close_lead(c, leads(c) ? lead_columns(g, host, n, to->y, to->ldy) : MX_OK, begin);
}

static mx_status barrier(struct mx_comm *c)
{
	mx_status st = meet(c);
	if (st != MX_OK)
		return st;
	const uint64_t begin = mx_now_ns();
	return close_lead(c, leads(c) ? lead_barrier(comm_of(c)->group) : MX_OK, begin);
}

/* ---- the same, with their time counted ---- */

static mx_status counted(struct mx_comm *c, uint64_t begin, mx_status st)
{
	atomic_fetch_add(&comm_of(c)->spent_ns, mx_now_ns() - begin);
	return st;
}

static mx_status all_reduce(struct mx_comm *c, void *x, size_t n)
{
	const uint64_t begin = mx_now_ns();
	return counted(c, begin, sum_all(c, x, n));
}

static mx_status all_reduce_f32(struct mx_comm *c, float *x, size_t n)
{
	return all_reduce(c, x, n);
}

static mx_status all_gather(struct mx_comm *c, const void *x, size_t bytes, void *y)
{
	const uint64_t begin = mx_now_ns();
	return counted(c, begin, gather_all(c, x, bytes, y));
}

static mx_status all_to_all(struct mx_comm *c, const void *x, size_t bytes, void *y)
{
	const uint64_t begin = mx_now_ns();
	return counted(c, begin, pass_all(c, x, bytes, y));
}

static mx_status gather_columns(struct mx_comm *c, uint32_t root, const float *x, size_t ldx,
                                size_t n, size_t first, size_t cols, float *y, size_t ldy)
{
	const uint64_t begin = mx_now_ns();
	return counted(c, begin, join_columns(c, root, x, ldx, n, first, cols, y, ldy));
}

/* Returns the local communicator's number of a rank of this host; `ranks` if it is another's. */
static uint32_t neighbour(const struct mx_comm *c, uint32_t rank)
{
	const struct host_group *g = ((const struct host_comm *)c)->group;
	return rank / g->n_local == g->host ? rank % g->n_local : c->ranks;
}

static mx_status comm_send(struct mx_comm *c, uint32_t to, const void *x, size_t bytes)
{
	struct mx_comm *local = comm_of(c)->local;
	const uint32_t rank = neighbour(c, to);
	if (to >= c->ranks || to == c->rank)
		return MX_E_INVALID;
	return rank < c->ranks ? local->ops->send(local, rank, x, bytes) : MX_E_UNSUPPORTED;
}

static mx_status comm_recv(struct mx_comm *c, uint32_t from, void *y, size_t bytes)
{
	struct mx_comm *local = comm_of(c)->local;
	const uint32_t rank = neighbour(c, from);
	if (from >= c->ranks || from == c->rank)
		return MX_E_INVALID;
	return rank < c->ranks ? local->ops->recv(local, rank, y, bytes) : MX_E_UNSUPPORTED;
}

static mx_status comm_check(struct mx_comm *c)
{
	struct mx_comm *local = comm_of(c)->local;
	return mx_hosts_lost(comm_of(c)->group->hosts, NULL) ? MX_E_DEVICE : local->ops->check(local);
}

/* Messages between neighbours are the local communicator's. */
static uint64_t spent_ns(struct mx_comm *c)
{
	struct mx_comm *local = comm_of(c)->local;
	return atomic_load(&comm_of(c)->spent_ns) + local->ops->spent_ns(local);
}

static void rehearse_nothing(struct mx_comm *c, bool on)
{
	(void)c;
	(void)on;
}

/* ---- life ---- */

static void free_group(struct host_group *g)
{
	free(g->comms);
	free(g->posted);
	free(g->stage);
	free(g);
}

static void comm_destroy(struct mx_comm *c)
{
	struct host_group *g = comm_of(c)->group;
	mx_hosts_on_lost(g->hosts, NULL, NULL); /* the local communicator goes next */
	if (atomic_fetch_sub(&g->handles, 1) == 1)
		free_group(g);
}

static const struct mx_comm_ops hosts_comm_ops = {
	.struct_size = sizeof(struct mx_comm_ops),
	.all_reduce = all_reduce,
	.all_gather = all_gather,
	.broadcast = broadcast,
	.gather_columns = gather_columns,
	.barrier = barrier,
	.send = comm_send,
	.recv = comm_recv,
	.abort = comm_abort,
	.destroy = comm_destroy,
	.all_reduce_f32 = all_reduce_f32,
	.check = comm_check,
	.rehearse = rehearse_nothing,
	.all_to_all = all_to_all,
	.spent_ns = spent_ns,
};

/* The hosts are lost: wakes the ranks that wait for each other. */
static void end_local(void *arg)
{
	struct mx_comm *local = arg;
	local->ops->abort(local);
}

mx_status mx_hosts_comm_create(struct mx_hosts *hosts, struct mx_comm *const *local, uint32_t n,
                               struct mx_comm **out)
{
	struct host_group *g = mx_calloc(1, sizeof *g);
	if (!g)
		return MX_E_NOMEM;
	*g = (struct host_group){.hosts = hosts,
	                         .host = mx_hosts_number(hosts),
	                         .n_hosts = mx_hosts_count(hosts),
	                         .n_local = n,
	                         .handles = n};
	g->comms = mx_calloc(n, sizeof *g->comms);
	g->posted = aligned_alloc(64, n * sizeof *g->posted);
	g->stage = aligned_alloc(64, g->n_hosts * STAGE);
	if (!g->comms || !g->posted || !g->stage) {
		free_group(g);
		return MX_E_NOMEM;
	}
	for (uint32_t i = 0; i < n; i++) {
		const uint32_t rank = g->host * n + i;
		g->comms[i] = (struct host_comm){
			.base = {&hosts_comm_ops, rank, g->n_hosts * n}, .group = g, .local = local[i]};
		out[i] = &g->comms[i].base;
	}
	mx_hosts_on_lost(hosts, end_local, local[0]);
	return MX_OK;
}
