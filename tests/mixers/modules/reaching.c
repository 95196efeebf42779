/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mixer for tests that asks for pages ahead of the position, as small as possible:
 *     y_t = x_t + keep y_m(t),  m(t) = the largest power of two with 3 m <= 2 t,  m(1) = 0
 * channel by channel. Token 2^k writes its y for the tokens from 3/2 2^k up to 3 * 2^k, to the
 * cells of these tokens in the pages ahead; pages behind the position are not read. The y of draft
 * tokens are in the slot until they are committed. After load or fork the pages ahead are written
 * again, since only full pages are shared.
 */
#include <stdlib.h>
#include <time.h>

#include "mixers/mixer.h"

#define KEEP 0.75f

struct mx_mixer {
	struct mx_mixer_base base;
	uint32_t width, page_tokens;
	unsigned char *page_base, *slot_base;
	size_t page_stride, slot_stride;
	float keep[]; /* [width] */
};

/* A slot. */
struct state {
	bool again;   /* the pages ahead must be written again */
	float rows[]; /* [max_draft, width] y of draft tokens until commit */
};

static mx_status probe(const struct mx_layer_desc *layer, const struct mx_device *device,
                       struct mx_err *err)
{
	(void)layer;
	if (device->info.kind != MX_DEVICE_CPU || device->info.act_dtype != MX_F32)
		return mx_mixer_fail(err, MX_E_UNSUPPORTED, "reaching: this module runs on CPUs in f32");
	return MX_OK;
}

static mx_status weights(const struct mx_layer_desc *layer, struct mx_weight_spec *specs,
                         size_t *out_n)
{
	(void)layer, (void)specs;
	*out_n = 0;
	return MX_OK;
}

#define CREATE_BYTES 4096 /* for test_engine_memory.c */

static mx_status state(const struct mx_layer_desc *layer, const struct mx_device *device,
                       struct mx_state_spec *out)
{
	(void)device;
	*out = (struct mx_state_spec){
		.bytes_per_token = layer->width * sizeof(float),
		.fixed_bytes = sizeof(struct state) + layer->max_draft * layer->width * sizeof(float),
		.snapshot_bytes = 1,
		.instance_bytes = sizeof(struct mx_mixer) + layer->width * sizeof(float),
		.create_bytes = CREATE_BYTES,
	};
	return MX_OK;
}

/* Returns the largest power of two that is at most n >= 1. */
static uint32_t power(uint32_t n)
{
	uint32_t p = 1;
	while (n / 2 >= p)
		p *= 2;
	return p;
}

static void extent(const struct mx_layer_desc *layer, uint32_t n, uint32_t max_len,
                   uint32_t *out_first, uint32_t *out_end)
{
	uint64_t end = n > 1 ? 3 * (uint64_t)power(n - 1) : 2;
	(void)layer;
	*out_first = n;
	*out_end = end < max_len ? (uint32_t)end : max_len;
}

static void destroy(struct mx_mixer *m)
{
	free(m);
}

static const struct mx_mixer_ops reaching_ops;

static mx_status create(const struct mx_mixer_init *init, struct mx_mixer **out, struct mx_err *err)
{
	uint32_t width = init->layer->width;
	struct mx_mixer *m = calloc(1, sizeof(*m) + width * sizeof(float));
	if (!m)
		return mx_mixer_fail(err, MX_E_NOMEM, "reaching: out of memory");
	*m = (struct mx_mixer){
		.base = {&reaching_ops, init->layer->index},
		.width = width,
		.page_tokens = init->page_tokens,
		.page_base = init->page_base,
		.page_stride = init->page_stride,
		.slot_base = init->slot_base,
		.slot_stride = init->slot_stride,
	};
	for (uint32_t i = 0; i < width; i++)
		m->keep[i] = KEEP;
	*out = m;
	return MX_OK;
}

static struct state *state_of(const struct mx_mixer *m, uint32_t slot)
{
	return (struct state *)(m->slot_base + slot * m->slot_stride);
}

static float *cell(const struct mx_mixer *m, const struct mx_span *s, uint32_t pos)
{
	unsigned char *page = m->page_base + s->pages[pos / m->page_tokens] * m->page_stride;
	return (float *)page + (size_t)(pos % m->page_tokens) * m->width;
}

/* Returns m(pos), the token whose y the token at pos >= 1 needs. */
static uint32_t giver(uint32_t pos)
{
	return pos > 1 ? power((uint32_t)(2 * (uint64_t)pos / 3)) : 0;
}

/* Writes y of token n - 1 to the cells ahead that need it; with `all`, y of all of the first n
 * tokens. */
static void leave(const struct mx_mixer *m, const struct mx_span *s, uint32_t n, bool all)
{
	uint32_t first, end;
	extent(NULL, n, s->max_len, &first, &end);
	for (uint32_t pos = n; pos < end; pos++)
		if (all || giver(pos) == n - 1)
			memcpy(cell(m, s, pos), cell(m, s, giver(pos)), m->width * sizeof(float));
}

/* Stores y of a committed token. */
static void put(const struct mx_mixer *m, const struct mx_span *s, uint32_t pos, const float *y)
{
	memcpy(cell(m, s, pos), y, m->width * sizeof(float));
	leave(m, s, pos + 1, false);
}

static void run_span(const struct mx_mixer *m, const struct mx_span *s, const float *x, float *y)
{
	struct state *state = state_of(m, s->slot);
	bool draft = s->kind == MX_SPAN_DRAFT;
	if (state->again)
		abort(); /* resume was not called */
	for (uint32_t pos = s->pos; pos < s->pos + s->n; pos++, x += m->width, y += m->width) {
		const float *left = cell(m, s, pos);
		if (draft && pos && giver(pos) >= s->pos)
			left = state->rows + (size_t)(giver(pos) - s->pos) * m->width;
		for (uint32_t c = 0; c < m->width; c++)
			y[c] = pos ? x[c] + m->keep[c] * left[c] : x[c];
		if (draft)
			memcpy(state->rows + (size_t)(pos - s->pos) * m->width, y, m->width * sizeof(float));
		else
			put(m, s, pos, y);
	}
}

static mx_status forward(struct mx_mixer *m, const struct mx_step *step, const void *x, void *y)
{
	for (uint32_t i = 0; i < step->n_spans; i++) {
		const struct mx_span *s = &step->spans[i];
		size_t at = (size_t)s->row * m->width;
		run_span(m, s, (const float *)x + at, (float *)y + at);
	}
	return MX_OK;
}

static mx_status commit(struct mx_mixer *const *layers, uint32_t n_layers,
                        const struct mx_step *step, const struct mx_kept *kept)
{
	for (uint32_t l = 0; l < n_layers; l++)
		for (uint32_t i = 0; i < step->n_spans; i++) {
			const struct mx_span *s = &step->spans[i];
			const float *rows = state_of(layers[l], s->slot)->rows;
			for (uint32_t t = 0; s->kind == MX_SPAN_DRAFT && t < kept[i].n; t++)
				put(layers[l], s, s->pos + t, rows + (size_t)t * layers[l]->width);
		}
	return MX_OK;
}

static mx_status fork_state(struct mx_mixer *const *layers, uint32_t n_layers, uint32_t from_slot,
                            uint32_t to_slot)
{
	(void)from_slot;
	for (uint32_t i = 0; i < n_layers; i++)
		state_of(layers[i], to_slot)->again = true;
	return MX_OK;
}

/* Everything is in the pages. One byte without meaning is saved, since a snapshot cannot be empty.
 */
static mx_status save(struct mx_mixer *const *layers, uint32_t n_layers, uint32_t slot,
                      uint32_t pos, void *const *out)
{
	(void)layers, (void)slot, (void)pos;
	for (uint32_t i = 0; i < n_layers; i++)
		*(unsigned char *)out[i] = 0;
	return MX_OK;
}

static mx_status load(struct mx_mixer *const *layers, uint32_t n_layers, uint32_t slot,
                      uint32_t pos, const void *const *in)
{
	(void)in;
	for (uint32_t i = 0; i < n_layers; i++)
		state_of(layers[i], slot)->again = pos > 0;
	return MX_OK;
}

/* Rebuilds the cells ahead of one sequence in one layer at a call: *progress counts the calls. Each
 * takes as many milliseconds as MIXD_TEST_RESUME_MS says. */
static mx_status resume(struct mx_mixer *const *layers, uint32_t n_layers,
                        const struct mx_step *step, uint32_t *progress)
{
	const char *ms = getenv("MIXD_TEST_RESUME_MS");
	if (ms)
		nanosleep(&(struct timespec){0, strtol(ms, NULL, 10) * 1000000}, NULL);
	const struct mx_mixer *m = layers[*progress % n_layers];
	const struct mx_span *s = &step->spans[*progress / n_layers];
	leave(m, s, s->pos, true);
	state_of(m, s->slot)->again = false;
	if (++*progress == n_layers * step->n_spans)
		*progress = MX_RESUMED;
	return MX_OK;
}

static void describe(const struct mx_mixer *m, char *text, size_t cap)
{
	snprintf(text, cap, "reaching: %u channels", m->width);
}

static const struct mx_mixer_ops reaching_ops = {
	.abi = MX_MIXER_ABI,
	.struct_size = sizeof(struct mx_mixer_ops),
	.name = "reaching",
	.summary = "a mixer for tests, with pages ahead of the tokens",
	.caps = MX_MIXER_CPU | MX_MIXER_DRAFT | MX_MIXER_SHARE_PAGES | MX_MIXER_FORK |
            MX_MIXER_SNAPSHOT | MX_MIXER_EXTENT | MX_MIXER_RESUME,
	.probe = probe,
	.weights = weights,
	.state = state,
	.extent = extent,
	.create = create,
	.prepare = mx_mixer_prepare_nothing,
	.destroy = destroy,
	.forward = forward,
	.commit = commit,
	.settle = mx_mixer_settle_nothing,
	.fork = fork_state,
	.save = save,
	.load = load,
	.resume = resume,
	.describe = describe,
};

mx_mixer_module_f mx_mixer_module_v2;

const struct mx_mixer_ops *mx_mixer_module_v2(void)
{
	return &reaching_ops;
}
