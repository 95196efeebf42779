/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/test-mixer/dump.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "tools/test-mixer/trials.h"

/* The file, and the header that lists the tensors in the order of their data. */
struct dump {
	json_t *header;
	size_t bytes; /* of data so far */
	const float *data[MX_MIXER_MAX_WEIGHTS + 2];
	size_t n[MX_MIXER_MAX_WEIGHTS + 2];
	size_t n_tensors;
};

static void add(struct dump *d, const char *name, const uint64_t *shape, uint32_t ndim,
                const float *data)
{
	json_t *sizes = json_array();
	size_t n = 1;
	for (uint32_t i = 0; i < ndim; i++) {
		json_array_append_new(sizes, json_integer((json_int_t)shape[i]));
		n *= shape[i];
	}
	json_t *entry =
		json_pack("{s:s, s:o, s:[I, I]}", "dtype", "F32", "shape", sizes, "data_offsets",
	              (json_int_t)d->bytes, (json_int_t)(d->bytes + n * sizeof(float)));
	MUST(entry && !json_object_get(d->header, name));
	MUST(json_object_set_new(d->header, name, entry) == 0);
	d->bytes += n * sizeof(float);
	d->data[d->n_tensors] = data;
	d->n[d->n_tensors++] = n;
}

static void add_weights(struct dump *d, const struct rig *r)
{
	for (size_t i = 0; i < r->n_weights; i++) {
		const struct mx_weight_spec *s = &r->weights[i].spec;
		uint64_t shape[4];
		char name[320];
		if (!r->weights[i].present)
			continue;
		memcpy(shape, s->shape, sizeof shape);
		snprintf(name, sizeof name, "%s", s->name);
		if (s->n_slices) {
			const struct mx_weight_slice *rows = &s->slices[0];
			shape[0] = rows->n;
			snprintf(name, sizeof name, "%.255s[%llu:%llu]", s->name,
			         (unsigned long long)rows->first, (unsigned long long)(rows->first + rows->n));
		}
		add(d, name, shape, s->ndim, r->weights[i].f32);
	}
}

static bool write_file(const struct dump *d, FILE *f)
{
	char *text = json_dumps(d->header, JSON_COMPACT);
	MUST(text);
	size_t len = strlen(text);
	uint64_t padded = (len + 7) / 8 * 8; /* the header's length, little-endian as the host is */
	bool ok = fwrite(&padded, 8, 1, f) == 1 && fwrite(text, 1, len, f) == len &&
	          fprintf(f, "%*s", (int)(padded - len), "") >= 0;
	free(text);
	for (size_t i = 0; i < d->n_tensors; i++)
		ok = ok && fwrite(d->data[i], sizeof(float), d->n[i], f) == d->n[i];
	return ok;
}

mx_status dump_case(const char *file, const struct rig_options *o, const struct mixer_case *c,
                    struct mx_err *err)
{
	struct rig r;
	struct texts x;
	struct dump d = {.header = json_object()};
	rig_open(&r, c, o);
	texts_make(&r, &x);
	const struct text *t = &x.t[0];
	const uint64_t shape[2] = {t->len, c->width};
	for (size_t i = 0; r.element == 2 && i < (size_t)t->len * c->width; i++)
		t->x[i] = mx_bf16_to_f32(mx_f32_to_bf16(t->x[i])); /* as the layer got it */
	add(&d, "x", shape, 2, t->x);
	add(&d, "y", shape, 2, t->y[0]);
	add_weights(&d, &r);
	FILE *f = fopen(file, "wbe");
	bool ok = f && write_file(&d, f);
	ok = f && !fclose(f) && ok;
	mx_status st = ok ? MX_OK : mx_fail(err, MX_E_IO, "%s: %s", file, strerror(errno));
	json_decref(d.header);
	texts_free(&x);
	rig_close(&r);
	return st;
}
