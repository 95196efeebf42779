/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/mixers/ranked.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "device/cpu/comm.h"
#include "device/cpu/cpu.h"
#include "tools/test-mixer/memory.h"

#define ALIGN        64
#define WIDEST_INPUT 4096 /* as the rig has it for layers of these cases */

static struct {
	const struct mx_mixer_ops *inner;
	uint32_t ranks, contexts;
	enum mx_isa isa;
} now;

/* A rank of a layer. */
struct part {
	struct mx_mixer *mixer;
	struct mx_device *device;
	struct mx_comm *comm, *context;
	struct mx_weight matrices[MX_MIXER_MAX_WEIGHTS];
	void *data[MX_MIXER_MAX_WEIGHTS]; /* of matrices and vectors */
	size_t scratch;                   /* bytes in front of this rank's in step->scratch */
	size_t snapshot;                  /* the same of a snapshot */
	void *y;
	/* the call that runs */
	struct mx_step step;
	const void *x;
	mx_status status;
	pthread_t thread;
};

struct mx_mixer {
	struct mx_mixer_base base;
	struct part parts[RANKED_MAX];
	uint32_t progress[RANKED_MAX]; /* of a resume that runs, by the first layer */
	uint32_t width;
};

static struct mx_layer_desc desc_of(const struct mx_layer_desc *layer, uint32_t rank)
{
	struct mx_layer_desc d = *layer;
	d.rank = rank;
	d.ranks = now.ranks;
	d.contexts = now.contexts;
	return d;
}

static mx_status ranked_probe(const struct mx_layer_desc *layer, const struct mx_device *device,
                              struct mx_err *err)
{
	mx_status st = MX_OK;
	for (uint32_t r = 0; r < now.ranks && st == MX_OK; r++) {
		const struct mx_layer_desc d = desc_of(layer, r);
		st = now.inner->probe(&d, device, err);
	}
	return st;
}

static mx_status ranked_weights(const struct mx_layer_desc *layer, struct mx_weight_spec *specs,
                                size_t *out_n)
{
	return now.inner->weights(layer, specs, out_n);
}

/* The memory of one rank. */
static struct mx_state_spec state_of(const struct mx_layer_desc *layer, uint32_t rank,
                                     const struct mx_device *device)
{
	const struct mx_layer_desc d = desc_of(layer, rank);
	struct mx_state_spec s = {0};
	MUST(now.inner->state(&d, device, &s) == MX_OK);
	s.fixed_bytes = mx_round_up(s.fixed_bytes, ALIGN);
	s.snapshot_bytes = mx_round_up(s.snapshot_bytes, ALIGN);
	s.scratch_bytes = mx_round_up(s.scratch_bytes, ALIGN);
	s.settle_bytes = mx_round_up(s.settle_bytes, ALIGN);
	return s;
}

static mx_status ranked_state(const struct mx_layer_desc *layer, const struct mx_device *device,
                              struct mx_state_spec *out)
{
	for (uint32_t r = 0; r < now.ranks; r++) {
		const struct mx_state_spec s = state_of(layer, r, device);
		out->bytes_per_token += s.bytes_per_token;
		out->fixed_bytes += s.fixed_bytes;
		out->page_multiple = s.page_multiple * now.contexts;
		out->scratch_bytes += s.scratch_bytes;
		out->settle_bytes += s.settle_bytes;
		out->snapshot_bytes += s.snapshot_bytes;
	}
	out->bytes_per_token /= now.contexts;
	return MX_OK;
}

static void ranked_extent(const struct mx_layer_desc *layer, uint32_t n, uint32_t max_len,
                          uint32_t *out_first, uint32_t *out_end)
{
	const struct mx_layer_desc d = desc_of(layer, 0);
	now.inner->extent(&d, n, max_len, out_first, out_end);
}

/* ---- weights ---- */

/* Indices of an axis that a spec names. */
static struct mx_weight_slice slice_of(const struct mx_weight_spec *s, uint32_t axis)
{
	for (uint32_t i = 0; i < s->n_slices; i++)
		if (s->slices[i].axis == axis)
			return s->slices[i];
	return (struct mx_weight_slice){axis, 0, s->shape[axis]};
}

/* Returns the tensor, or piece of one, that the part is cut of. */
static size_t find_whole(const struct mx_weight_spec *whole, size_t n,
                         const struct mx_weight_spec *part)
{
	const struct mx_weight_slice rows = slice_of(part, 0);
	for (size_t i = 0; i < n; i++) {
		const struct mx_weight_slice all = slice_of(&whole[i], 0);
		if (!strcmp(whole[i].name, part->name) && rows.first >= all.first &&
		    rows.first + rows.n <= all.first + all.n)
			return i;
	}
	test_fail("tensor %s of a rank is in none of the layer", part->name);
}

/* Copies a part of a tensor, cut along its first and last axes; elements have `size` bytes. */
static void *cut(const unsigned char *from, size_t size, const struct mx_weight_spec *whole,
                 const struct mx_weight_spec *part, uint32_t *out_rows, uint32_t *out_cols)
{
	const struct mx_weight_slice all = slice_of(whole, 0), rows = slice_of(part, 0);
	struct mx_weight_slice last = {0, 0, 1};
	uint64_t between = 1, width = 1; /* elements of the axes between these two; of the last */
	if (part->ndim > 1) {
		last = slice_of(part, part->ndim - 1);
		width = part->shape[part->ndim - 1];
	}
	for (uint32_t i = 1; i + 1 < part->ndim; i++)
		between *= part->shape[i];
	const uint64_t n = rows.n * between, first = (rows.first - all.first) * between;
	unsigned char *to = aligned_alloc(ALIGN, mx_round_up(n * last.n * size + 1, ALIGN));
	MUST(to);
	for (uint64_t i = 0; i < n; i++)
		memcpy(to + i * last.n * size, from + ((first + i) * width + last.first) * size,
		       last.n * size);
	*out_rows = (uint32_t)rows.n;
	*out_cols = (uint32_t)(between * last.n);
	return to;
}

/* Cuts a rank's weights. weights, vectors: [MX_MIXER_MAX_WEIGHTS] as create takes them. */
static void cut_weights(const struct mx_mixer_init *init, const struct mx_layer_desc *d,
                        struct part *p, const void **weights, const float **vectors)
{
	struct mx_weight_spec whole[MX_MIXER_MAX_WEIGHTS] = {0}, parts[MX_MIXER_MAX_WEIGHTS] = {0};
	size_t n_whole = 0, n = 0;
	MUST(now.inner->weights(init->layer, whole, &n_whole) == MX_OK);
	MUST(now.inner->weights(d, parts, &n) == MX_OK);
	for (size_t i = 0; i < n; i++) {
		const size_t at = find_whole(whole, n_whole, &parts[i]);
		const bool vector = parts[i].form == MX_WEIGHT_VECTOR;
		const void *from = init->weights[at];
		if (!from)
			continue;
		struct mx_weight *m = &p->matrices[i];
		*m = vector ? (struct mx_weight){.dtype = MX_F32, .data = from}
		            : *(const struct mx_weight *)from;
		p->data[i] =
			cut(m->data, mx_dtype_size(m->dtype), &whole[at], &parts[i], &m->rows, &m->cols);
		m->data = p->data[i];
		weights[i] = vector ? p->data[i] : (void *)m;
		vectors[i] = vector ? p->data[i] : NULL;
	}
}

/* ---- life ---- */

static void ranked_destroy(struct mx_mixer *m)
{
	if (!m)
		return;
	for (uint32_t r = 0; r < now.ranks; r++) {
		struct part *p = &m->parts[r];
		now.inner->destroy(p->mixer);
		if (p->context)
			p->context->ops->destroy(p->context);
		if (p->comm)
			p->comm->ops->destroy(p->comm);
		p->device->ops->destroy(p->device);
		for (size_t i = 0; i < MX_MIXER_MAX_WEIGHTS; i++)
			free(p->data[i]);
		free(p->y);
	}
	free(m);
}

/* Opens the ranks' devices and their communication. */
static void open_ranks(struct mx_mixer *m, uint32_t max_rows)
{
	struct mx_device *devices[RANKED_MAX];
	struct mx_comm *comms[RANKED_MAX], *parts[RANKED_MAX];
	for (uint32_t r = 0; r < now.ranks; r++) {
		MUST(mx_cpu_create(1, now.isa, max_rows, WIDEST_INPUT, &devices[r], NULL) == MX_OK);
		m->parts[r].device = devices[r];
	}
	MUST(mx_cpu_comm_create(devices, now.ranks, comms) == MX_OK);
	for (uint32_t r = 0; r < now.ranks && now.contexts > 1; r += now.contexts)
		MUST(mx_cpu_comm_part(comms + r, now.contexts, parts + r) == MX_OK);
	for (uint32_t r = 0; r < now.ranks; r++) {
		m->parts[r].comm = comms[r];
		m->parts[r].context = now.contexts > 1 ? parts[r] : NULL;
	}
}

static struct mx_mixer_ops table;

static mx_status ranked_create(const struct mx_mixer_init *init, struct mx_mixer **out,
                               struct mx_err *err)
{
	const uint32_t tokens = init->page_tokens / now.contexts;
	struct mx_mixer *m = allocate(1, sizeof *m);
	size_t page = 0, slot = 0, scratch = 0, snapshot = 0, settle = 0;
	m->base = (struct mx_mixer_base){&table, init->layer->index};
	m->width = init->layer->width;
	open_ranks(m, init->layer->max_rows);
	for (uint32_t r = 0; r < now.ranks; r++) {
		struct part *p = &m->parts[r];
		const struct mx_layer_desc d = desc_of(init->layer, r);
		const struct mx_state_spec s = state_of(init->layer, r, init->device);
		const void *weights[MX_MIXER_MAX_WEIGHTS] = {NULL};
		const float *vectors[MX_MIXER_MAX_WEIGHTS] = {NULL};
		struct mx_mixer_init own = *init;
		cut_weights(init, &d, p, weights, vectors);
		own.layer = &d;
		own.device = p->device;
		own.weights = weights;
		own.host_vectors = vectors;
		own.page_base += page;
		own.page_tokens = tokens;
		own.slot_base += slot;
		own.comm = p->comm;
		own.context = p->context;
		if (own.settle_scratch)
			own.settle_scratch = (unsigned char *)own.settle_scratch + settle;
		MUST(now.inner->create(&own, &p->mixer, err) == MX_OK);
		p->scratch = scratch;
		p->snapshot = snapshot;
		p->y = allocate((size_t)init->layer->max_rows * m->width, sizeof(float));
		page += s.bytes_per_token * tokens;
		slot += s.fixed_bytes;
		scratch += s.scratch_bytes;
		snapshot += s.snapshot_bytes;
		settle += s.settle_bytes;
	}
	*out = m;
	return MX_OK;
}

/* ---- calls ---- */

/* Fills out[n_layers] with a rank's instances. */
static void take(struct mx_mixer *const *layers, uint32_t n_layers, uint32_t rank,
                 struct mx_mixer **out)
{
	MUST(n_layers <= 8);
	for (uint32_t i = 0; i < n_layers; i++)
		out[i] = layers[i]->parts[rank].mixer;
}

static mx_status ranked_prepare(struct mx_mixer *const *layers, uint32_t n_layers,
                                struct mx_err *err)
{
	mx_status st = MX_OK;
	for (uint32_t r = 0; r < now.ranks && st == MX_OK; r++) {
		struct mx_mixer *own[8];
		take(layers, n_layers, r, own);
		st = now.inner->prepare(own, n_layers, err);
	}
	return st;
}

static struct mx_step step_of(const struct part *p, const struct mx_step *step)
{
	struct mx_step own = *step;
	own.scratch = (unsigned char *)step->scratch + p->scratch;
	return own;
}

static void *forward_main(void *arg)
{
	struct part *p = arg;
	p->status = now.inner->forward(p->mixer, &p->step, p->x, p->y);
	if (p->status != MX_OK)
		p->comm->ops->abort(p->comm);
	return NULL;
}

static mx_status ranked_forward(struct mx_mixer *m, const struct mx_step *step, const void *x,
                                void *y)
{
	for (uint32_t r = now.ranks; r-- > 0;) {
		struct part *p = &m->parts[r];
		p->step = step_of(p, step);
		p->x = x;
		if (r)
			MUST(!pthread_create(&p->thread, NULL, forward_main, p));
		else
			forward_main(p);
	}
	mx_status st = m->parts[0].status;
	for (uint32_t r = 1; r < now.ranks; r++) {
		pthread_join(m->parts[r].thread, NULL);
		st = st == MX_OK ? m->parts[r].status : st;
	}
	const size_t n = (size_t)step->n_rows * m->width;
	memcpy(y, m->parts[0].y, n * sizeof(float));
	for (uint32_t r = 1; r < now.ranks; r++)
		for (size_t i = 0; i < n; i++)
			((float *)y)[i] += ((const float *)m->parts[r].y)[i];
	return st;
}

static mx_status ranked_commit(struct mx_mixer *const *layers, uint32_t n_layers,
                               const struct mx_step *step, const struct mx_kept *kept)
{
	mx_status st = MX_OK;
	for (uint32_t r = 0; r < now.ranks && st == MX_OK; r++) {
		struct mx_mixer *own[8];
		const struct mx_step s = step_of(&layers[0]->parts[r], step);
		take(layers, n_layers, r, own);
		st = now.inner->commit(own, n_layers, &s, kept);
	}
	return st;
}

static mx_status ranked_settle(struct mx_mixer *const *layers, uint32_t n_layers,
                               const struct mx_step *step, const struct mx_kept *kept)
{
	mx_status st = MX_OK;
	for (uint32_t r = 0; r < now.ranks && st == MX_OK; r++) {
		struct mx_mixer *own[8];
		const struct mx_step s = step_of(&layers[0]->parts[r], step);
		take(layers, n_layers, r, own);
		st = now.inner->settle(own, n_layers, &s, kept);
	}
	return st;
}

static mx_status ranked_fork(struct mx_mixer *const *layers, uint32_t n_layers, uint32_t from,
                             uint32_t to)
{
	mx_status st = MX_OK;
	for (uint32_t r = 0; r < now.ranks && st == MX_OK; r++) {
		struct mx_mixer *own[8];
		take(layers, n_layers, r, own);
		st = now.inner->fork(own, n_layers, from, to);
	}
	return st;
}

static mx_status ranked_save(struct mx_mixer *const *layers, uint32_t n_layers, uint32_t slot,
                             uint32_t pos, void *const *out)
{
	mx_status st = MX_OK;
	for (uint32_t r = 0; r < now.ranks && st == MX_OK; r++) {
		struct mx_mixer *own[8];
		void *at[8];
		take(layers, n_layers, r, own);
		for (uint32_t i = 0; i < n_layers; i++)
			at[i] = (unsigned char *)out[i] + layers[i]->parts[r].snapshot;
		st = now.inner->save(own, n_layers, slot, pos, at);
	}
	return st;
}

static mx_status ranked_load(struct mx_mixer *const *layers, uint32_t n_layers, uint32_t slot,
                             uint32_t pos, const void *const *in)
{
	mx_status st = MX_OK;
	for (uint32_t r = 0; r < now.ranks && st == MX_OK; r++) {
		struct mx_mixer *own[8];
		const void *at[8];
		take(layers, n_layers, r, own);
		for (uint32_t i = 0; i < n_layers; i++)
			at[i] = (const unsigned char *)in[i] + layers[i]->parts[r].snapshot;
		st = now.inner->load(own, n_layers, slot, pos, at);
	}
	return st;
}

/* Calls the ranks that are not done yet. *progress counts the calls. */
static mx_status ranked_resume(struct mx_mixer *const *layers, uint32_t n_layers,
                               const struct mx_step *step, uint32_t *progress)
{
	struct mx_mixer *m = layers[0];
	bool left = false;
	for (uint32_t r = 0; r < now.ranks; r++) {
		struct mx_mixer *own[8];
		const struct mx_step s = step_of(&m->parts[r], step);
		uint32_t *at = &m->progress[r];
		if (!*progress)
			*at = 0;
		take(layers, n_layers, r, own);
		mx_status st = *at == MX_RESUMED ? MX_OK : now.inner->resume(own, n_layers, &s, at);
		if (st != MX_OK)
			return st;
		left |= *at != MX_RESUMED;
	}
	*progress = left ? *progress + 1 : MX_RESUMED;
	return MX_OK;
}

static void ranked_describe(const struct mx_mixer *m, char *text, size_t cap)
{
	now.inner->describe(m->parts[0].mixer, text, cap);
}

const struct mx_mixer_ops *ranked(const struct mx_mixer_ops *inner, uint32_t tensor,
                                  uint32_t context, enum mx_isa isa)
{
	MUST(inner->caps & MX_MIXER_RANKS && tensor * context <= RANKED_MAX);
	now.inner = inner;
	now.ranks = tensor * context;
	now.contexts = inner->caps & MX_MIXER_CONTEXT ? context : 1;
	now.isa = isa;
	table = *inner;
	table.caps &= ~(uint32_t)(MX_MIXER_ADD | MX_MIXER_NORM | MX_MIXER_RANKS | MX_MIXER_CONTEXT);
	if (now.contexts > 1) /* drafts are chains there */
		table.caps &= ~(uint32_t)MX_MIXER_TREE;
	table.probe = ranked_probe;
	table.weights = ranked_weights;
	table.state = ranked_state;
	table.extent = ranked_extent;
	table.create = ranked_create;
	table.prepare = ranked_prepare;
	table.destroy = ranked_destroy;
	table.forward = ranked_forward;
	table.commit = ranked_commit;
	table.settle = ranked_settle;
	table.fork = ranked_fork;
	table.save = ranked_save;
	table.load = ranked_load;
	table.resume = ranked_resume;
	table.describe = ranked_describe;
	return &table;
}
