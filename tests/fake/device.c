/* SPDX-License-Identifier: Apache-2.0 */
/* See fake.h. Exports the same function as device-cuda.so. Recordings are freed with the device. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/cpu/cpu.h"
#include "device/cuda/device_cuda.h"
#include "device/quant.h"
#include "tests/fake/queue.h"

/* MAX_ROWS and MAX_WIDTH bound the products of the models that tests run. */
enum { DEVICES = 4, MEMORY = 1 << 28, MAX_ROWS = 1024, MAX_WIDTH = 4096 };

static struct fake *fake(struct mx_device *d)
{
	return (struct fake *)d;
}

static void append(struct mx_recording *r, struct call *c)
{
	c->next = NULL;
	*(r->first ? &r->last->next : &r->first) = c;
	r->last = c;
}

mx_status fake_later(struct mx_device *d, const struct call *c)
{
	struct fake *f = fake(d);
	struct call *copy = f->lost ? NULL : malloc(sizeof *copy);
	if (f->lost)
		return MX_E_DEVICE;
	if (!copy)
		return MX_E_NOMEM;
	*copy = *c;
	for (int i = 0; i < MAX_OUT; i++)
		if (copy->out[i].w)
			copy->w[i] = *c->out[i].w;
	fake_lock(f);
	append(f->recording ? f->recording : &f->queue, copy);
	fake_unlock(f);
	return MX_OK;
}

static void free_calls(struct mx_recording *r)
{
	for (struct call *c = r->first, *next; c; c = next) {
		next = c->next;
		free(c);
	}
	r->first = r->last = NULL;
}

void fake_pop(struct fake *f)
{
	struct call *c = f->queue.first;
	f->queue.first = c->next;
	free(c);
}

void fake_advance(struct fake *f)
{
	while (f->queue.first && !(f->comm && fake_is_collective(f->queue.first))) {
		f->queue.first->run(f->base.cpu, f->queue.first);
		fake_pop(f);
	}
}

static mx_status wait_all(struct mx_device *d)
{
	struct fake *f = fake(d);
	if (f->comm)
		fake_run_ranks(f);
	else
		fake_advance(f);
	return f->recording ? MX_E_INVALID : MX_OK; /* waiting while recording is a mistake */
}

static void must(mx_status st)
{
	if (st != MX_OK)
		abort();
}

/* ---- operators ---- */

static const struct mx_ops *cpu_ops; /* of every CPU device */

/* Makes panels for GPUs, which the CPU has no products for, elements that the caller frees. */
static void expand(struct mx_weight *w)
{
	float *data = malloc((size_t)w->rows * w->cols * sizeof *data);
	if (!data)
		abort();
	for (size_t r = 0; r < w->rows; r++)
		mx_quant_row(w, r, data + r * w->cols);
	*w = (struct mx_weight){.dtype = MX_F32, .rows = w->rows, .cols = w->cols, .data = data};
}

/* linear of the CPU, for this device and its mixers. */
static mx_status cpu_linear(struct mx_device *cpu, const void *x, size_t ldx, size_t n,
                            const struct mx_linear_out *out, size_t n_out)
{
	mx_status st = MX_OK;
	for (size_t i = 0; i < n_out && st == MX_OK; i++) {
		struct mx_weight w = *out[i].w;
		struct mx_linear_out o = out[i];
		o.w = &w;
		if (w.quant)
			expand(&w);
		st = cpu_ops->linear(cpu, x, ldx, n, &o, 1);
		if (out[i].w->quant)
			free((void *)(uintptr_t)w.data);
	}
	return st;
}

static void run_linear(struct mx_device *cpu, const struct call *c)
{
	struct mx_linear_out out[MAX_OUT];
	for (size_t i = 0; i < c->k; i++) {
		out[i] = c->out[i];
		out[i].w = &c->w[i];
	}
	must(cpu->ops->linear(cpu, c->a, c->m, c->n, out, c->k));
}

static mx_status linear(struct mx_device *d, const void *x, size_t ldx, size_t n,
                        const struct mx_linear_out *out, size_t n_out)
{
	struct call c = {run_linear, .a = x, .m = ldx, .n = n, .k = n_out};
	if (n_out > MAX_OUT)
		return MX_E_UNSUPPORTED;
	memcpy(c.out, out, n_out * sizeof *out);
	return fake_later(d, &c);
}

static mx_status linear_each(struct mx_device *d, size_t n, const struct mx_linear_each *each,
                             size_t n_each)
{
	mx_status st = MX_OK;
	for (size_t i = 0; i < n_each && st == MX_OK; i++) {
		const struct mx_linear_out out = {.w = each[i].w, .y = each[i].y, .ldy = each[i].ldy};
		st = linear(d, each[i].x, each[i].ldx, n, &out, 1);
	}
	return st;
}

static void run_rmsnorm(struct mx_device *cpu, const struct call *c)
{
	must(cpu->ops->rmsnorm(cpu, c->a, c->b, c->f, c->n, c->m, c->y));
}

static mx_status rmsnorm(struct mx_device *d, const void *x, const float *weight, float eps,
                         size_t n, size_t width, void *y)
{
	return fake_later(
		d, &(struct call){run_rmsnorm, .a = x, .b = weight, .y = y, .n = n, .m = width, .f = eps});
}

static mx_status linear_normed(struct mx_device *d, const struct mx_linear_in *in, size_t n,
                               const struct mx_linear_out *out, size_t n_out)
{
	const uint32_t width = out->w->cols;
	mx_status st = rmsnorm(d, in->x, in->norm, in->norm_eps, n, width, in->room);
	return st == MX_OK ? linear(d, in->room, width, n, out, n_out) : st;
}

static void run_add_rmsnorm(struct mx_device *cpu, const struct call *c)
{
	must(cpu->ops->add_rmsnorm(cpu, c->out[0].y, c->a, c->b, c->f, c->n, c->m, c->y));
}

static mx_status add_rmsnorm(struct mx_device *d, void *x, const void *r, const float *weight,
                             float eps, size_t n, size_t width, void *y)
{
	return fake_later(d, &(struct call){run_add_rmsnorm, .a = r, .b = weight, .y = y, .n = n,
	                                    .m = width, .f = eps, .out = {{.y = x}}});
}

static void run_silu_mul(struct mx_device *cpu, const struct call *c)
{
	must(cpu->ops->silu_mul(cpu, c->a, c->k, c->b, c->l, c->n, c->m, c->y, c->out[0].ldy));
}

static mx_status silu_mul(struct mx_device *d, const void *gate, size_t ld_gate, const void *up,
                          size_t ld_up, size_t n, size_t width, void *y, size_t ld_y)
{
	return fake_later(d,
	                  &(struct call){run_silu_mul, .a = gate, .b = up, .y = y, .n = n, .m = width,
	                                 .k = ld_gate, .l = ld_up, .out = {{.ldy = ld_y}}});
}

static mx_status rope(struct mx_device *d, void *x, size_t ld, size_t n, uint32_t n_heads,
                      uint32_t head_dim, const struct mx_rope *r, const uint32_t *pos,
                      const float *norm, float eps)
{
	(void)d, (void)x, (void)ld, (void)n, (void)n_heads, (void)head_dim, (void)r, (void)pos;
	(void)norm, (void)eps;
	return MX_E_UNSUPPORTED; /* mixers do it themselves */
}

static void run_embed(struct mx_device *cpu, const struct call *c)
{
	must(cpu->ops->embed(cpu, &c->w[0], c->a, c->n, c->y));
}

static mx_status embed(struct mx_device *d, const struct mx_weight *table, const int32_t *ids,
                       size_t n, void *y)
{
	return fake_later(d,
	                  &(struct call){run_embed, .a = ids, .n = n, .y = y, .out = {{.w = table}}});
}

static void run_scale(struct mx_device *cpu, const struct call *c)
{
	must(cpu->ops->scale(cpu, c->y, c->n, c->f));
}

static mx_status scale(struct mx_device *d, void *y, size_t n, float by)
{
	return fake_later(d, &(struct call){run_scale, .y = y, .n = n, .f = by});
}

static void run_add_scaled(struct mx_device *cpu, const struct call *c)
{
	must(cpu->ops->add_scaled(cpu, c->y, c->a, c->n, c->f));
}

static mx_status add_scaled(struct mx_device *d, void *y, const void *a, size_t n, float by)
{
	return fake_later(d, &(struct call){run_add_scaled, .y = y, .a = a, .n = n, .f = by});
}

static void run_scale_logits(struct mx_device *cpu, const struct call *c)
{
	must(cpu->ops->scale_logits(cpu, c->y, c->m, c->n, (uint32_t)c->k, c->f));
}

static mx_status scale_logits(struct mx_device *d, float *y, size_t ld, size_t n, uint32_t vocab,
                              float by)
{
	return fake_later(
		d, &(struct call){run_scale_logits, .y = y, .m = ld, .n = n, .k = vocab, .f = by});
}

static void run_gather(struct mx_device *cpu, const struct call *c)
{
	must(cpu->ops->gather(cpu, c->a, c->b, c->n, c->m, c->y));
}

static mx_status gather(struct mx_device *d, const void *x, const uint32_t *rows, size_t n,
                        size_t width, void *y)
{
	return fake_later(d, &(struct call){run_gather, .a = x, .b = rows, .y = y, .n = n, .m = width});
}

static void run_move_rows(struct mx_device *cpu, const struct call *c)
{
	must(cpu->ops->move_rows(cpu, c->a, c->n, c->m));
}

static mx_status move_rows(struct mx_device *d, const struct mx_row_move *moves, size_t n,
                           size_t bytes)
{
	return fake_later(d, &(struct call){run_move_rows, .a = moves, .n = n, .m = bytes});
}

static void run_copy(struct mx_device *cpu, const struct call *c)
{
	(void)cpu;
	memcpy(c->y, c->a, c->n);
}

static mx_status copy(struct mx_device *d, void *to, const void *from, size_t bytes)
{
	return fake_later(d, &(struct call){run_copy, .y = to, .a = from, .n = bytes});
}

static mx_status upload(struct mx_device *d, void *to, const void *from, size_t bytes)
{
	fake(d)->base.uploaded += bytes;
	return copy(d, to, from, bytes);
}

static void run_put(struct mx_device *cpu, const struct call *c)
{
	(void)cpu;
	*(uint32_t *)c->y = (uint32_t)c->n;
}

static mx_status put(struct mx_device *d, uint32_t *to, const struct mx_word *words, size_t n)
{
	mx_status st = fake(d)->recording ? MX_E_INVALID : MX_OK;
	fake(d)->base.uploaded += n * sizeof *words;
	fake(d)->base.n_put++;
	for (size_t i = 0; i < n && st == MX_OK; i++)
		st = fake_later(d, &(struct call){run_put, .y = to + words[i].at, .n = words[i].value});
	return st;
}

static void run_zero(struct mx_device *cpu, const struct call *c)
{
	(void)cpu;
	memset(c->y, 0, c->n);
}

static mx_status zero(struct mx_device *d, void *to, size_t bytes)
{
	return fake_later(d, &(struct call){run_zero, .y = to, .n = bytes});
}

static void run_function(struct mx_device *cpu, const struct call *c)
{
	(void)cpu;
	c->fn((void *)c->a, 0, 0);
}

static void parallel(struct mx_device *d, size_t n_tasks, mx_parallel_f *fn, void *arg)
{
	if (n_tasks != 1)
		abort();
	must(fake_later(d, &(struct call){run_function, .a = arg, .fn = fn}));
}

/* ---- memory ---- */

static mx_status alloc(struct mx_device *d, size_t bytes, void **out)
{
	(void)d;
	void *p = aligned_alloc(256, (bytes + 256) & ~(size_t)255);
	if (!p)
		return MX_E_NOMEM;
	memset(p, 0xff, bytes); /* NaN */
	*out = p;
	return MX_OK;
}

static void release(struct mx_device *d, void *p)
{
	(void)d;
	free(p);
}

static mx_status load(struct mx_device *d, void *to, enum mx_dtype to_dtype, const void *from,
                      enum mx_dtype dtype, size_t n)
{
	struct mx_device *cpu = fake(d)->base.cpu;
	return cpu->ops->load(cpu, to, to_dtype, from, dtype, n);
}

/* ---- sampling ---- */

static mx_status sample_prepare(struct mx_device *d, const struct mx_sample_row *rows, size_t n)
{
	memcpy(fake(d)->samples, rows, n * sizeof *rows);
	return MX_OK;
}

static void run_draw(struct mx_device *cpu, const struct call *c)
{
	struct fake *f = (struct fake *)c->b;
	f->sampled = cpu->ops->sample(cpu, c->y, c->m, c->n, (uint32_t)c->k, f->samples, f->drawn);
}

static mx_status sample_draw(struct mx_device *d, float *y, size_t ld, size_t n, uint32_t vocab)
{
	return fake_later(d, &(struct call){run_draw, .b = d, .y = y, .m = ld, .n = n, .k = vocab});
}

static mx_status sample_drawn(struct mx_device *d, size_t n, int32_t *out)
{
	struct fake *f = fake(d);
	mx_status st = wait_all(d);
	if (f->steps_left && !--f->steps_left)
		f->lost = true;
	if (f->lost)
		return MX_E_DEVICE;
	memcpy(out, f->drawn, n * sizeof *out);
	return st != MX_OK ? st : f->sampled;
}

static mx_status sample(struct mx_device *d, float *y, size_t ld, size_t n, uint32_t vocab,
                        const struct mx_sample_row *rows, int32_t *out)
{
	mx_status st = sample_prepare(d, rows, n);
	if (st == MX_OK)
		st = sample_draw(d, y, ld, n, vocab);
	return st == MX_OK ? sample_drawn(d, n, out) : st;
}

static mx_status logprobs(struct mx_device *d, const float *y, size_t ld, size_t n, uint32_t vocab,
                          const int32_t *tokens, const uint32_t *n_top, struct mx_logprob *out)
{
	struct mx_device *cpu = fake(d)->base.cpu;
	mx_status st = wait_all(d);
	return st == MX_OK ? cpu->ops->logprobs(cpu, y, ld, n, vocab, tokens, n_top, out) : st;
}

/* ---- recordings ---- */

static mx_status record(struct mx_device *d)
{
	struct fake *f = fake(d);
	struct mx_recording *r = calloc(1, sizeof *r);
	if (!r || f->recording)
		return MX_E_INVALID;
	r->next = f->recorded;
	f->recorded = f->recording = r;
	return MX_OK;
}

static mx_status recorded(struct mx_device *d, struct mx_recording **out)
{
	*out = fake(d)->recording;
	fake(d)->recording = NULL;
	return MX_OK;
}

static mx_status replay(struct mx_device *d, struct mx_recording *r)
{
	mx_status st = MX_OK;
	fake(d)->base.n_replayed++;
	for (const struct call *c = r->first; c && st == MX_OK; c = c->next) {
		struct call again = *c;
		for (int i = 0; i < MAX_OUT; i++) /* `later` copies the weights from here */
			if (again.out[i].w)
				again.out[i].w = &c->w[i];
		st = fake_later(d, &again);
	}
	return st;
}

static void forget(struct mx_device *d, struct mx_recording *r)
{
	(void)d, (void)r;
}

/* ---- life ---- */

static void destroy(struct mx_device *d)
{
	if (!d)
		return;
	struct fake *f = fake(d);
	free_calls(&f->queue);
	for (struct mx_recording *r = f->recorded, *next; r; r = next) {
		next = r->next;
		free_calls(r);
		free(r);
	}
	mx_cpu_destroy(f->base.cpu);
	free(f->samples);
	free(f->drawn);
	free(f);
}

static void run_layernorm(struct mx_device *cpu, const struct call *c)
{
	must(cpu->ops->layernorm(cpu, c->out[0].y, c->a, c->b, c->out[0].bias, c->f, c->n, c->m, c->y));
}

static mx_status layernorm(struct mx_device *d, void *x, const void *r, const float *weight,
                           const float *bias, float eps, size_t n, size_t width, void *y)
{
	return fake_later(d, &(struct call){run_layernorm, .a = r, .b = weight, .y = y, .n = n,
	                                    .m = width, .f = eps, .out = {{.y = x, .bias = bias}}});
}

static void run_gelu_tanh(struct mx_device *cpu, const struct call *c)
{
	must(cpu->ops->gelu_tanh(cpu, c->y, c->n));
}

static mx_status gelu_tanh(struct mx_device *d, void *y, size_t n)
{
	return fake_later(d, &(struct call){run_gelu_tanh, .y = y, .n = n});
}

static void run_act_mul(struct mx_device *cpu, const struct call *c)
{
	must(cpu->ops->act_mul(cpu, (enum mx_act)c->i, c->a, c->k, c->b, c->l, c->n, c->m, c->y,
	                       c->out[0].ldy));
}

static mx_status act_mul(struct mx_device *d, enum mx_act act, const void *gate, size_t ld_gate,
                         const void *up, size_t ld_up, size_t n, size_t width, void *y, size_t ld_y)
{
	return fake_later(d,
	                  &(struct call){run_act_mul, .i = (int)act, .a = gate, .b = up, .y = y, .n = n,
	                                 .m = width, .k = ld_gate, .l = ld_up, .out = {{.ldy = ld_y}}});
}

static void run_softcap_logits(struct mx_device *cpu, const struct call *c)
{
	must(cpu->ops->softcap_logits(cpu, c->y, c->m, c->n, (uint32_t)c->k, c->f));
}

static mx_status softcap_logits(struct mx_device *d, float *y, size_t ld, size_t n, uint32_t vocab,
                                float cap)
{
	return fake_later(
		d, &(struct call){run_softcap_logits, .y = y, .m = ld, .n = n, .k = vocab, .f = cap});
}

static void run_experts(struct mx_device *cpu, const struct call *c)
{
	must(fake_experts(cpu, &c->experts, &c->experts_call));
}

static mx_status experts(struct mx_device *d, const struct mx_experts *m,
                         const struct mx_experts_call *call)
{
	return fake_later(d, &(struct call){run_experts, .experts = *m, .experts_call = *call});
}

static const struct mx_ops ops = {
	.struct_size = sizeof(struct mx_ops),
	.linear = linear,
	.linear_normed = linear_normed,
	.rmsnorm = rmsnorm,
	.add_rmsnorm = add_rmsnorm,
	.silu_mul = silu_mul,
	.rope = rope,
	.embed = embed,
	.sample = sample,
	.logprobs = logprobs,
	.parallel = parallel,
	.destroy = destroy,
	.alloc = alloc,
	.release = release,
	.host_alloc = alloc,
	.host_release = release,
	.upload = upload,
	.download = copy,
	.copy = copy,
	.zero = zero,
	.wait = wait_all,
	.load = load,
	.scale = scale,
	.add_scaled = add_scaled,
	.scale_logits = scale_logits,
	.gather = gather,
	.sample_prepare = sample_prepare,
	.sample_draw = sample_draw,
	.sample_drawn = sample_drawn,
	.record = record,
	.recorded = recorded,
	.replay = replay,
	.forget = forget,
	.layernorm = layernorm,
	.gelu_tanh = gelu_tanh,
	.act_mul = act_mul,
	.softcap_logits = softcap_logits,
	.linear_each = linear_each,
	.experts = experts,
	.move_rows = move_rows,
	.put = put,
};

static mx_status create(int ordinal, const struct mx_cuda_limits *l, struct mx_device **out,
                        struct mx_err *err)
{
	const char *steps = getenv("MIXD_FAKE_STEPS");
	if (ordinal >= DEVICES)
		return mx_fail(err, MX_E_NOTFOUND, "cuda:%d: the fakes are cuda:0 to cuda:%d", ordinal,
		               DEVICES - 1);
	struct fake *f = calloc(1, sizeof *f);
	if (!f)
		return MX_E_NOMEM;
	f->samples = calloc(l->max_samples, sizeof *f->samples);
	f->drawn = calloc(l->max_samples, sizeof *f->drawn);
	mx_status st = mx_cpu_create(1, mx_cpu_isa(), MAX_ROWS, MAX_WIDTH, &f->base.cpu, err);
	if (st != MX_OK || !f->samples || !f->drawn) {
		destroy(&f->base.device);
		return MX_E_NOMEM;
	}
	static struct mx_ops with_quantised;
	cpu_ops = cpu_ops ? cpu_ops : f->base.cpu->ops;
	with_quantised = *cpu_ops;
	with_quantised.linear = cpu_linear;
	f->base.cpu->ops = &with_quantised;
	f->steps_left = steps ? strtoul(steps, NULL, 10) : 0;
	f->base.device.ops = &ops;
	f->base.device.info = (struct mx_device_info){.kind = MX_DEVICE_CUDA,
	                                              .isa = "fake",
	                                              .act_dtype = MX_F32,
	                                              .threads = 1,
	                                              .align = 256,
	                                              .memory = MEMORY,
	                                              .own_memory = true,
	                                              .async = true,
	                                              .records = true,
	                                              .deterministic = true,
	                                              .packs_experts = true,
	                                              .fused_rows = 4};
	snprintf(f->base.device.info.name, sizeof f->base.device.info.name, "cuda:%d", ordinal);
	*out = &f->base.device;
	return MX_OK;
}

static size_t own_bytes(const struct mx_cuda_limits *l)
{
	(void)l;
	return 1000;
}

static void log_to(mx_log_to_f *to)
{
	(void)to;
}

mx_cuda_device_f mx_cuda_device_v4;

const struct mx_cuda_device_ops *mx_cuda_device_v4(void)
{
	static const struct mx_cuda_device_ops device = {
		sizeof device, create, own_bytes, log_to, fake_comm_create, fake_comm_part};
	return &device;
}
