/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mixer for the device of fake.h, by the name FAKE_MIXER: calls the CPU's module, and reads the
 * step only from the tables in device memory, as a module for a GPU does. For mixers without work
 * in commit, settle and resume. A step that begins a sequence in a slot that is not zero ends the
 * test: a kernel would take what it finds there for a state.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mixers/mixer.h"
#include "tests/fake/fake.h"

/* Forward calls of a step or a recording; freed with the layer. */
struct call {
	struct mx_mixer *m;
	struct mx_step step;
	struct mx_device_tables tables;
	const void *x;
	void *y;
	struct call *next;
};

struct mx_mixer {
	struct mx_mixer_base base;
	struct mx_mixer *cpu;
	struct mx_device *device;
	const unsigned char *slots;
	size_t slot_stride, slot_bytes;
	uint32_t max_spans;
	struct call *calls;
	struct copy *copies;
};

/* Copies between a slot and snapshots that have not been made yet. */
struct copy {
	uint32_t n, slot, pos;
	bool loads;
	struct mx_mixer **layers; /* [n] of the CPU */
	void **parts;             /* [n] */
	struct copy *next;
};

static struct mx_mixer_ops ops;

static const struct mx_mixer_ops *cpu_ops(void)
{
	static const struct mx_mixer_ops *found;
	const char *build = getenv("builddir");
	char path[4096];
	if (found)
		return found;
	snprintf(path, sizeof path, "%s/mixers/.libs/" FAKE_MIXER "-cpu.so", build ? build : ".");
	void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL), *symbol;
	if (!handle || !(symbol = dlsym(handle, MX_MIXER_MODULE_SYMBOL)))
		abort();
	mx_mixer_module_f *module;
	memcpy(&module, &symbol, sizeof module);
	return found = module();
}

static struct mx_device *cpu_of(const struct mx_device *d)
{
	return ((const struct fake_base *)d)->cpu;
}

static mx_status probe(const struct mx_layer_desc *layer, const struct mx_device *d,
                       struct mx_err *err)
{
	return cpu_ops()->probe(layer, cpu_of(d), err);
}

static mx_status weights(const struct mx_layer_desc *layer, struct mx_weight_spec *specs,
                         size_t *out_n)
{
	return cpu_ops()->weights(layer, specs, out_n);
}

static mx_status state(const struct mx_layer_desc *layer, const struct mx_device *d,
                       struct mx_state_spec *out)
{
	return cpu_ops()->state(layer, cpu_of(d), out);
}

static mx_status create(const struct mx_mixer_init *init, struct mx_mixer **out, struct mx_err *err)
{
	struct mx_mixer *m = calloc(1, sizeof *m);
	struct mx_mixer_init with = *init;
	struct mx_state_spec spec;
	if (!m)
		return MX_E_NOMEM;
	*m = (struct mx_mixer){.base = {&ops, init->layer->index},
	                       .device = init->device,
	                       .slots = init->slot_base,
	                       .slot_stride = init->slot_stride,
	                       .max_spans = init->layer->max_spans};
	with.device = cpu_of(init->device);
	mx_status st = cpu_ops()->state(init->layer, with.device, &spec);
	m->slot_bytes = st == MX_OK ? spec.fixed_bytes : 0;
	if (st == MX_OK)
		st = cpu_ops()->create(&with, &m->cpu, err);
	if (st != MX_OK) {
		free(m);
		return st;
	}
	*out = m;
	return MX_OK;
}

static void free_copy(struct copy *c)
{
	free(c->layers);
	free(c->parts);
	free(c);
}

/* Calls and copies that were never run are freed here, too. */
static void destroy(struct mx_mixer *m)
{
	if (!m)
		return;
	for (struct copy *c = m->copies, *next; c; c = next) {
		next = c->next;
		free_copy(c);
	}
	for (struct call *c = m->calls, *next; c; c = next) {
		next = c->next;
		free(c);
	}
	cpu_ops()->destroy(m->cpu);
	free(m);
}

static bool is_zero(const unsigned char *p, size_t n)
{
	return !n || (!p[0] && !memcmp(p, p + 1, n - 1));
}

/* When the tables are there. Spans of no tokens are last, if there are any. */
static void run(void *arg, size_t task, unsigned worker)
{
	struct call *c = arg;
	(void)task, (void)worker;
	struct mx_span *spans = calloc(c->m->max_spans, sizeof *spans);
	struct mx_step step = c->step;
	if (!spans)
		abort();
	step.n_spans = step.n_rows = 0;
	for (uint32_t i = 0; i < c->step.n_spans; i++) {
		const struct mx_device_span *s = &c->tables.spans[i];
		for (uint32_t k = 0; k < s->n; k++)
			if (c->tables.row_span[s->row + k] != i || c->tables.pos[s->row + k] != s->pos + k)
				abort();
		if (s->n > c->step.longest)
			abort();
		if (!s->n)
			continue;
		if (!s->pos && !is_zero(c->m->slots + s->slot * c->m->slot_stride, c->m->slot_bytes))
			abort();
		spans[step.n_spans++] = (struct mx_span){.row = s->row,
		                                         .n = s->n,
		                                         .pos = s->pos,
		                                         .max_len = s->max_len,
		                                         .kind = (enum mx_span_kind)s->kind,
		                                         .slot = s->slot,
		                                         .pages = c->tables.pages + s->page_begin,
		                                         .n_pages = s->n_pages};
		step.n_rows += s->n;
	}
	step.spans = spans;
	step.pos = c->tables.pos;
	step.tables = NULL;
	if (step.n_rows && cpu_ops()->forward(c->m->cpu, &step, c->x, c->y) != MX_OK)
		abort();
	free(spans);
}

static mx_status forward(struct mx_mixer *m, const struct mx_step *step, const void *x, void *y)
{
	struct call *c = malloc(sizeof *c);
	if (!c)
		return MX_E_NOMEM;
	*c = (struct call){m, *step, *step->tables, x, y, m->calls};
	m->calls = c;
	m->device->ops->parallel(m->device, 1, run, c);
	return MX_OK;
}

static void describe(const struct mx_mixer *m, char *text, size_t cap)
{
	cpu_ops()->describe(m->cpu, text, cap);
}

/* ---- snapshots ---- */

static void run_copy(void *arg, size_t task, unsigned worker)
{
	struct copy *c = arg;
	(void)task, (void)worker;
	mx_status st =
		c->loads ? cpu_ops()->load(c->layers, c->n, c->slot, c->pos, (const void *const *)c->parts)
				 : cpu_ops()->save(c->layers, c->n, c->slot, c->pos, c->parts);
	if (st != MX_OK)
		abort();
}

static mx_status copy_later(struct mx_mixer *const *layers, struct copy with,
                            const void *const *parts)
{
	struct copy *c = malloc(sizeof *c);
	if (!c)
		return MX_E_NOMEM;
	*c = with;
	c->layers = calloc(c->n, sizeof *c->layers);
	c->parts = calloc(c->n, sizeof *c->parts);
	if (!c->layers || !c->parts) {
		free_copy(c);
		return MX_E_NOMEM;
	}
	c->next = layers[0]->copies;
	layers[0]->copies = c;
	for (uint32_t i = 0; i < c->n; i++) {
		c->layers[i] = layers[i]->cpu;
		c->parts[i] = (void *)(uintptr_t)parts[i];
	}
	layers[0]->device->ops->parallel(layers[0]->device, 1, run_copy, c);
	return MX_OK;
}

static mx_status save(struct mx_mixer *const *layers, uint32_t n, uint32_t slot, uint32_t pos,
                      void *const *out)
{
	return copy_later(layers, (struct copy){.n = n, .slot = slot, .pos = pos},
	                  (const void *const *)out);
}

static mx_status load(struct mx_mixer *const *layers, uint32_t n, uint32_t slot, uint32_t pos,
                      const void *const *in)
{
	return copy_later(layers, (struct copy){.n = n, .slot = slot, .pos = pos, .loads = true}, in);
}

static struct mx_mixer_ops ops = {
	.abi = MX_MIXER_ABI,
	.struct_size = sizeof(struct mx_mixer_ops),
	.name = FAKE_MIXER,
	.summary = FAKE_MIXER " on a device that is none",
	.probe = probe,
	.weights = weights,
	.state = state,
	.extent = mx_mixer_extent_all,
	.create = create,
	.prepare = mx_mixer_prepare_nothing,
	.destroy = destroy,
	.forward = forward,
	.commit = mx_mixer_commit_nothing,
	.settle = mx_mixer_settle_nothing,
	.fork = mx_mixer_fork_unsupported,
	.save = save,
	.load = load,
	.resume = mx_mixer_resume_nothing,
	.describe = describe,
};

mx_mixer_module_f mx_mixer_module_v2;

const struct mx_mixer_ops *mx_mixer_module_v2(void)
{
	const uint32_t kept =
		MX_MIXER_DRAFT | MX_MIXER_SHARE_PAGES | MX_MIXER_SNAPSHOT | MX_MIXER_RANKS;
	ops.caps = MX_MIXER_CUDA | (cpu_ops()->caps & kept);
	return &ops;
}
