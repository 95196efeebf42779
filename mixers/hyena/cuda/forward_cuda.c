/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A step of hyena on CUDA devices, and what follows it.
 *
 * forward: rows of decode and draft spans by one kernel, which a recording may hold; prompts by
 * several, whose grids depend on the spans; whole blocks of theirs by transforms of a block unless
 * the device is deterministic. settle: the units that become due, of all layers, by
 * one kernel for each token that stays: one for all spans that decode.
 */
#include "mixers/hyena/cuda/hyena_cuda.h"

static cudaStream_t stream_of(const struct mx_mixer *m)
{
	return (cudaStream_t)mx_cuda_base(m->device)->stream;
}

static mx_status check(const struct mx_mixer *m, cudaError_t e, const char *what)
{
	return mx_cuda_base(m->device)->check(m->device, (int)e, what);
}

/* Returns the first layer with an implicit filter; NULL if there is none. */
static const struct mx_mixer *first_long(struct mx_mixer *const *layers, uint32_t n_layers)
{
	for (uint32_t i = 0; i < n_layers; i++)
		if (!hyc_modal(layers[i]))
			return layers[i];
	return NULL;
}

static struct lcg_step step_of(const struct mx_step *step)
{
	const struct mx_device_tables *t = step->tables;
	return (struct lcg_step){t->spans, t->pages};
}

/* ---- prompts ---- */

/* Returns the most units of a stage of a level that a span of the list has. */
static uint32_t most_units(const struct mx_mixer *m, const struct mx_step *step,
                           const struct lcg_spans *which, uint32_t level, enum lcg_stage stage)
{
	const uint32_t log2_n = level + LCG_LOG2_BLOCK;
	uint32_t most = 0;
	for (uint32_t i = 0; i < which->n; i++) {
		const struct mx_span *s = &step->spans[which->index[i]];
		const struct lcg_stretch due = lcg_stage_of(stage, log2_n, s->pos, s->n);
		const struct lcg_range r =
			lcg_range_of(log2_n, m->channels, m->shape.period, m->layer.phase, due.from, due.to);
		const uint32_t blocks = ((s->max_len - 1) >> log2_n) + 1; /* of outputs */
		const uint32_t end = r.end < blocks * r.groups ? r.end : blocks * r.groups;
		most = end > r.begin && end - r.begin > most ? end - r.begin : most;
	}
	return most;
}

static bool has_whole(const struct mx_step *step, const struct lcg_spans *which)
{
	for (uint32_t i = 0; i < which->n; i++) {
		const struct mx_span *s = &step->spans[which->index[i]];
		const struct lcg_stretch whole = lcg_whole(s->pos, s->n);
		if (whole.to > whole.from)
			return true;
	}
	return false;
}

/* Runs a stage of all levels, the largest first. */
static cudaError_t run_stage(const struct mx_mixer *m, const struct mx_step *step,
                             const struct lcg_spans *which, enum lcg_stage stage,
                             const struct lcg_prompt *p)
{
	const struct lcg_step on_device = step_of(step);
	cudaError_t e = cudaSuccess;
	for (uint32_t level = m->shape.n_levels; level-- > 0 && e == cudaSuccess;) {
		const uint32_t most = most_units(m, step, which, level, stage);
		if (most)
			e = lcg_run_range(stream_of(m), &m->shape, m->layers + m->number, 1, &on_device, which,
			                  level, stage, &p->sums, most);
	}
	return e;
}

static cudaError_t run_prompts(const struct mx_mixer *m, const struct mx_step *step,
                               const struct lcg_spans *which, uint32_t longest,
                               struct lcg_prompt *p)
{
	const struct lcg_step on_device = step_of(step);
	const struct lcg_layer *layer = m->layers + m->number;
	cudaStream_t stream = stream_of(m);
	p->whole = m->layer.near && has_whole(step, which);
	cudaError_t e = lcg_prompt_enter(stream, &m->shape, layer, &on_device, which, longest, p);
	if (e == cudaSuccess)
		e = run_stage(m, step, which, p->whole ? LCG_BEFORE : LCG_ALL, p);
	if (e == cudaSuccess && p->whole)
		e = run_stage(m, step, which, LCG_UNDO, p);
	if (e == cudaSuccess && p->whole)
		e = lcg_run_whole(stream, &m->shape, layer, &on_device, which, &p->sums, m->blocks);
	if (e == cudaSuccess && p->whole)
		e = run_stage(m, step, which, LCG_BEHIND, p);
	return e == cudaSuccess
	           ? lcg_prompt_finish(stream, &m->shape, layer, &on_device, which, longest, p)
	           : e;
}

/* Computes the rows of all prompts, LCG_SPANS spans at a time. */
static cudaError_t prompts(const struct mx_mixer *m, const struct mx_step *step,
                           struct lcg_prompt *p)
{
	cudaError_t e = cudaSuccess;
	for (uint32_t i = 0; i < step->n_spans && e == cudaSuccess;) {
		struct lcg_spans which = {0};
		uint32_t longest = 0;
		for (; i < step->n_spans && which.n < LCG_SPANS; i++)
			if (step->spans[i].kind == MX_SPAN_PREFILL && step->spans[i].n) {
				which.index[which.n++] = (uint16_t)i;
				longest = step->spans[i].n > longest ? step->spans[i].n : longest;
			}
		if (which.n)
			e = run_prompts(m, step, &which, longest, p);
	}
	return e;
}

/* ---- forward ---- */

static bool has_rows(const struct mx_step *step)
{
	for (uint32_t i = 0; i < step->n_spans; i++)
		if (step->spans[i].kind != MX_SPAN_PREFILL)
			return true;
	return false;
}

static mx_status convolve(const struct mx_mixer *m, const struct mx_step *step,
                          const struct lcg_rows *rows)
{
	unsigned char *scratch = step->scratch;
	struct lcg_prompt p = {
		.rows = rows,
		.sums = {(float *)(scratch + m->sizes.scratch.sums), m->max_rows},
	};
	cudaError_t e = cudaSuccess;
	if (hyc_modal(m))
		return check(m,
		             lcg_modal_rows(stream_of(m), &m->shape, &m->layer, &m->modal, step, rows,
		                            (float *)(scratch + m->sizes.scratch.z),
		                            (float *)(scratch + m->sizes.scratch.gate)),
		             "modal filter");
	if (step->recording || has_rows(step)) {
		const struct lcg_step on_device = step_of(step);
		e = lcg_rows_step(stream_of(m), &m->shape, m->layers + m->number, &on_device, step->n_spans,
		                  rows);
	}
	if (e == cudaSuccess && !step->recording)
		e = prompts(m, step, &p);
	return check(m, e, "long convolution");
}

mx_status hyc_forward(struct mx_mixer *m, const struct mx_step *step, const void *x, void *y)
{
	const struct mx_cuda_base *cuda = mx_cuda_base(m->device);
	const struct mx_ops *ops = m->device->ops;
	unsigned char *scratch = step->scratch;
	const struct lcg_rows rows = {
		.u = (float *)(scratch + m->sizes.scratch.u),
		.out = scratch + m->sizes.scratch.out,
		.act = m->device->info.act_dtype,
	};
	const struct hyena_params *p = &m->params;
	struct mx_linear_out in[3];
	const struct mx_linear_out out = {.w = m->w_out, .bias = m->b_out, .y = y, .ldy = m->width};

	if (step->n_rows > m->max_rows)
		return MX_E_RANGE;
	if (step->n_rows == 0)
		return MX_OK;
	for (uint32_t i = 0; i < p->n_parts; i++)
		in[i] = (struct mx_linear_out){.w = m->w_in[i],
		                               .bias = m->b_in ? m->b_in + p->part_first[i] : NULL,
		                               .y = (float *)rows.u + (size_t)i * p->part_rows,
		                               .ldy = 3 * (size_t)m->channels,
		                               .y_f32 = true};
	mx_status status = ops->linear(m->device, x, m->width, step->n_rows, in, p->n_parts);
	if (status == MX_OK)
		status = cuda->bind(m->device);
	if (status == MX_OK)
		status = convolve(m, step, &rows);
	return status != MX_OK ? status
	                       : ops->linear(m->device, rows.out, m->channels, step->n_rows, &out, 1);
}

/* ---- settle ---- */

/* Settles the listed spans: one token of each at a time, so that no two units that are due together
 * write the same cells. */
static cudaError_t settle_spans(const struct mx_mixer *m, const struct lcg_step *step,
                                const struct lcg_spans *which, uint32_t tokens, bool drafts)
{
	cudaStream_t stream = stream_of(m);
	cudaError_t e =
		drafts ? lcg_keep(stream, &m->shape, m->layers, m->n_layers, step, which) : cudaSuccess;
	/* no unit that is due now adds to the next position: the windows come first, since they need
	 * few registers, and units begin beside them */
	if (e == cudaSuccess)
		e = lcg_look_ahead(stream, &m->shape, m->layers, m->n_layers, step, which);
	for (uint32_t t = 0; m->shape.n_levels && t < tokens && e == cudaSuccess; t++)
		e = lcg_run_due(stream, &m->shape, m->layers, m->n_layers, step, which, t, m->blocks);
	return e;
}

mx_status hyc_settle(struct mx_mixer *const *layers, uint32_t n_layers, const struct mx_step *step,
                     const struct mx_kept *kept)
{
	const struct mx_mixer *m = first_long(layers, n_layers);
	if (!m)
		return MX_OK;
	const struct lcg_step on_device = step_of(step);
	mx_status status = mx_cuda_base(m->device)->bind(m->device);
	for (uint32_t i = 0; i < step->n_spans && status == MX_OK;) {
		struct lcg_spans which = {0};
		uint32_t tokens = 0;
		bool drafts = false;
		for (; i < step->n_spans && which.n < LCG_SPANS; i++) {
			if (step->spans[i].kind == MX_SPAN_PREFILL || !kept[i].n)
				continue; /* forward did it for prompts */
			tokens = kept[i].n > tokens ? kept[i].n : tokens;
			drafts |= step->spans[i].kind == MX_SPAN_DRAFT;
			which.tokens[which.n] = (uint8_t)kept[i].n;
			which.index[which.n++] = (uint16_t)i;
		}
		if (which.n)
			status = check(m, settle_spans(m, &on_device, &which, tokens, drafts),
			               "tiles of long convolutions");
	}
	return status;
}

/* ---- resume ---- */

/* Returns the most units of a level that were due before a span's position, of the block that holds
 * it and of the next. */
static uint32_t most_before(struct mx_mixer *const *layers, uint32_t n_layers,
                            const struct mx_step *step, const struct lcg_spans *which,
                            uint32_t level)
{
	const uint32_t log2_n = level + LCG_LOG2_BLOCK;
	uint32_t most = 0;
	for (uint32_t i = 0; i < which->n; i++)
		for (uint32_t l = 0; l < n_layers; l++) {
			const struct mx_mixer *m = layers[l];
			if (hyc_modal(m))
				continue;
			const uint32_t pos = step->spans[which->index[i]].pos, block = pos >> log2_n;
			const struct lcg_range r =
				lcg_range_of(log2_n, m->channels, m->shape.period, m->layer.phase,
			                 block ? (block - 1) << log2_n : 0, pos);
			most = r.end - r.begin > most ? r.end - r.begin : most;
		}
	return most;
}

/* The largest level comes first: *progress is the number of levels that were run. Inputs are copied
 * to the rings in the first call. */
mx_status hyc_resume(struct mx_mixer *const *layers, uint32_t n_layers, const struct mx_step *step,
                     uint32_t *progress)
{
	const struct mx_mixer *m = first_long(layers, n_layers);
	if (!m) {
		*progress = MX_RESUMED;
		return MX_OK;
	}
	const struct lcg_step on_device = step_of(step);
	const uint32_t done = *progress, n_levels = m->shape.n_levels;
	mx_status status = mx_cuda_base(m->device)->bind(m->device);
	for (uint32_t i = 0; i < step->n_spans && status == MX_OK;) {
		struct lcg_spans which = {0};
		for (; i < step->n_spans && which.n < LCG_SPANS; i++)
			which.index[which.n++] = (uint16_t)i;
		cudaError_t e =
			done ? cudaSuccess
				 : lcg_refill(stream_of(m), &m->shape, m->layers, m->n_layers, &on_device, &which);
		if (e == cudaSuccess && done < n_levels) {
			const uint32_t level = n_levels - 1 - done;
			const uint32_t most = most_before(layers, n_layers, step, &which, level);
			if (most)
				e = lcg_run_range(stream_of(m), &m->shape, m->layers, m->n_layers, &on_device,
				                  &which, level, LCG_RESUME, NULL, most);
		}
		status = check(m, e, "sums of long convolutions");
	}
	*progress = done + 1 < n_levels ? done + 1 : MX_RESUMED;
	return status;
}
