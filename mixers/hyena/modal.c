/* SPDX-License-Identifier: Apache-2.0 */
/* The modal filter. Channels are processed in groups of LANES, the last one padded. A task is
 * TASK_GROUPS groups of all spans. */
#include "mixers/hyena/modal.h"

#include <stdlib.h>

#define LANES       16 /* floats of a cache line */
#define TASK_GROUPS 4

struct modal {
	struct modal_spec s;
	/* [groups][1 + 4 state_size][LANES]: d, then for each state the real and imaginary parts of its
	 * pole and of its residue */
	float *coefficients;
};

/* The head of a slot and of a snapshot, before the states; padded to HEAD_BYTES. */
struct modal_head {
	uint32_t pos; /* the states include the tokens before this position */
};

#define HEAD_BYTES 64

static uint32_t groups_of(const struct modal_spec *s)
{
	return (s->channels + LANES - 1) / LANES;
}

static size_t state_floats(const struct modal_spec *s) /* of a group */
{
	return (size_t)s->state_size * 2 * LANES;
}

static size_t coefficient_floats(const struct modal_spec *s) /* of a group */
{
	return (1 + (size_t)s->state_size * 4) * LANES;
}

static size_t states_bytes(const struct modal_spec *s)
{
	return groups_of(s) * state_floats(s) * sizeof(float);
}

static size_t row_bytes(const struct modal_spec *s)
{
	return (size_t)groups_of(s) * LANES * sizeof(float);
}

/* Inputs in the ring: those of a draft and of the token before it. */
static uint32_t ring_rows(const struct modal_spec *s)
{
	return s->max_draft + 1;
}

size_t modal_slot_bytes(const struct modal_spec *s)
{
	return HEAD_BYTES + states_bytes(s) + ring_rows(s) * row_bytes(s);
}

size_t modal_snapshot_bytes(const struct modal_spec *s)
{
	return HEAD_BYTES + states_bytes(s) + row_bytes(s);
}

size_t modal_instance_bytes(const struct modal_spec *s)
{
	return groups_of(s) * coefficient_floats(s) * sizeof(float);
}

/* Returns the states of group g in a slot or in a snapshot. */
static float *states(const struct modal_spec *s, const void *base, uint32_t g)
{
	return (float *)((unsigned char *)base + HEAD_BYTES) + g * state_floats(s);
}

/* Returns the inputs of position `pos`, of all groups, in the ring of a slot. */
static float *ring(const struct modal_spec *s, const void *slot, uint32_t pos)
{
	return (float *)((unsigned char *)slot + HEAD_BYTES + states_bytes(s) +
	                 pos % ring_rows(s) * row_bytes(s));
}

mx_status modal_create(const struct modal_spec *s, const float *poles, const float *residues,
                       const float *d, struct modal **out)
{
	struct modal *m = calloc(1, sizeof(*m));
	if (!m)
		return MX_E_NOMEM;
	m->s = *s;
	m->coefficients = calloc(groups_of(s) * coefficient_floats(s), sizeof(float));
	if (!m->coefficients) {
		modal_destroy(m);
		return MX_E_NOMEM;
	}
	for (uint32_t c = 0; c < s->channels; c++) {
		float *to = m->coefficients + c / LANES * coefficient_floats(s) + c % LANES;
		to[0] = d[c];
		for (uint32_t i = 0; i < s->state_size; i++) {
			size_t from = ((size_t)c * s->state_size + i) * 2;
			float *state = to + (1 + (size_t)i * 4) * LANES;
			state[0] = poles[from];
			state[LANES] = poles[from + 1];
			state[2 * LANES] = residues[from];
			state[3 * LANES] = residues[from + 1];
		}
	}
	*out = m;
	return MX_OK;
}

void modal_destroy(struct modal *m)
{
	if (!m)
		return;
	free(m->coefficients);
	free(m);
}

/* Computes one token of one group: updates the states s with z[LANES] and writes y[LANES]. c: the
 * group's coefficients. */
static void take_up(uint32_t state_size, const float *restrict c, const float *restrict z,
                    float *restrict s, float *restrict y)
{
	float sum[LANES];
	for (int j = 0; j < LANES; j++)
		sum[j] = c[j] * z[j];
	for (uint32_t i = 0; i < state_size; i++) {
		const float *k = c + (1 + (size_t)i * 4) * LANES;
		float *re = s + (size_t)i * 2 * LANES, *im = re + LANES;
		for (int j = 0; j < LANES; j++) {
			float pole_re = k[j], pole_im = k[LANES + j];
			float a = pole_re * re[j] - pole_im * im[j] + z[j];
			float b = pole_re * im[j] + pole_im * re[j];
			sum[j] += k[2 * LANES + j] * a - k[3 * LANES + j] * b;
			re[j] = a;
			im[j] = b;
		}
	}
	memcpy(y, sum, sizeof(sum));
}

struct modal_run {
	const struct modal *m;
	const struct mx_step *step;
	unsigned char *slot_base;
	size_t slot_stride;
	const float *z;
	size_t ldz;
	float *y;
	size_t ldy;
};

static void *slot_of(const struct modal_run *r, const struct mx_span *span)
{
	return r->slot_base + span->slot * r->slot_stride;
}

/* Returns the position up to which the states in the slot include tokens after this span: all
 * tokens that cannot be taken back, except the last of them. */
static uint32_t certain(const struct mx_span *span, uint32_t before)
{
	uint32_t end = span->kind == MX_SPAN_DRAFT ? span->pos : span->pos + span->n;
	return end > before + 1 ? end - 1 : before;
}

static void span_group(const struct modal_run *r, const struct mx_span *span, uint32_t g)
{
	const struct modal *m = r->m;
	const struct modal_spec *s = &m->s;
	void *slot = slot_of(r, span);
	const uint32_t first = ((const struct modal_head *)slot)->pos, keep = certain(span, first);
	const uint32_t left = s->channels - g * LANES, used = left < LANES ? left : LANES;
	const size_t size = state_floats(s) * sizeof(float);
	float now[MODAL_MAX_STATE * 2 * LANES], z[LANES] = {0}, y[LANES];

	memcpy(now, states(s, slot, g), size);
	for (uint32_t t = first; t < span->pos + span->n; t++) {
		float *entry = ring(s, slot, t) + g * LANES;
		size_t row = span->row + (t - span->pos); /* row of the step, if t is in the span */
		if (t == keep)
			memcpy(states(s, slot, g), now, size);
		if (t < span->pos)
			memcpy(z, entry, sizeof(z));
		else
			memcpy(z, r->z + row * r->ldz + g * LANES, used * sizeof(*z));
		if (t >= keep)
			memcpy(entry, z, sizeof(z));
		take_up(s->state_size, m->coefficients + g * coefficient_floats(s), z, now, y);
		if (t >= span->pos)
			memcpy(r->y + row * r->ldy + g * LANES, y, used * sizeof(*y));
	}
}

static void groups_task(void *arg, size_t task, unsigned worker)
{
	const struct modal_run *r = arg;
	const uint32_t begin = (uint32_t)task * TASK_GROUPS, all = groups_of(&r->m->s);
	(void)worker;
	for (uint32_t g = begin; g < all && g < begin + TASK_GROUPS; g++)
		for (uint32_t i = 0; i < r->step->n_spans; i++)
			span_group(r, &r->step->spans[i], g);
}

void modal_forward(const struct modal *m, struct mx_device *d, const struct mx_step *step,
                   unsigned char *slot_base, size_t slot_stride, const float *z, size_t ldz,
                   float *y, size_t ldy)
{
	struct modal_run r = {m, step, slot_base, slot_stride, z, ldz, y, ldy};
	d->ops->parallel(d, (groups_of(&m->s) + TASK_GROUPS - 1) / TASK_GROUPS, groups_task, &r);
	for (uint32_t i = 0; i < step->n_spans; i++) {
		struct modal_head *head = slot_of(&r, &step->spans[i]);
		head->pos = certain(&step->spans[i], head->pos);
	}
}

/* A snapshot holds the states without token pos - 1, and the input of that token. */
void modal_save(const struct modal *m, const void *slot, uint32_t pos, void *out)
{
	const struct modal_spec *s = &m->s;
	const uint32_t first = ((const struct modal_head *)slot)->pos;
	float y[LANES];
	memset(out, 0, HEAD_BYTES);
	((struct modal_head *)out)->pos = pos - 1;
	memcpy(states(s, out, 0), states(s, slot, 0), states_bytes(s));
	for (uint32_t t = first; t + 1 < pos; t++)
		for (uint32_t g = 0; g < groups_of(s); g++)
			take_up(s->state_size, m->coefficients + g * coefficient_floats(s),
			        ring(s, slot, t) + g * LANES, states(s, out, g), y);
	memcpy((unsigned char *)out + HEAD_BYTES + states_bytes(s), ring(s, slot, pos - 1),
	       row_bytes(s));
}

void modal_load(const struct modal *m, void *slot, const void *in)
{
	const struct modal_spec *s = &m->s;
	const uint32_t pos = ((const struct modal_head *)in)->pos;
	memcpy(slot, in, HEAD_BYTES + states_bytes(s));
	memcpy(ring(s, slot, pos), (const unsigned char *)in + HEAD_BYTES + states_bytes(s),
	       row_bytes(s));
}
