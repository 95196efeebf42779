/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/cluster_terms.h"

#include <string.h>

#include "base/sha256.h"

#define FIRST_BYTES 64 /* of each tensor: reading all would take as long as loading */

static void add_tensor(struct mx_sha256 *h, const struct mx_tensor *t)
{
	const uint32_t form[] = {(uint32_t)t->dtype, (uint32_t)t->format, t->ndim};
	mx_sha256_add(h, t->name, strlen(t->name) + 1);
	mx_sha256_add(h, form, sizeof form);
	mx_sha256_add(h, t->shape, t->ndim * sizeof *t->shape);
	if (t->data)
		mx_sha256_add(h, t->data, t->bytes < FIRST_BYTES ? t->bytes : FIRST_BYTES);
	if (t->values)
		add_tensor(h, t->values);
}

static void add_hash(const struct mx_checkpoint *c, struct mx_buf *out)
{
	struct mx_sha256 h;
	uint8_t digest[MX_SHA256_BYTES];
	mx_sha256_begin(&h);
	for (size_t i = 0; i < mx_checkpoint_count(c); i++)
		add_tensor(&h, mx_checkpoint_at(c, i));
	mx_sha256_end(&h, digest);
	mx_buf_puts(out, "tensors: ");
	for (size_t i = 0; i < 16; i++)
		mx_buf_printf(out, "%02x", digest[i]);
	mx_buf_putc(out, '\n');
}

static void add(struct mx_buf *out, const char *name, uint64_t value)
{
	if (value == MX_CONFIG_AUTO)
		mx_buf_printf(out, "%s: auto\n", name);
	else
		mx_buf_printf(out, "%s: %llu\n", name, (unsigned long long)value);
}

void mx_cluster_terms(const struct mx_config_cluster *cluster,
                      const struct mx_config_scheduler *scheduler, const struct mx_config_model *m,
                      const struct mx_plan *plan, const struct mx_checkpoint *checkpoint,
                      struct mx_buf *out)
{
	char layers[1024];
	mx_plan_describe_layers(plan, layers, sizeof layers);
	add(out, "cluster.hosts", cluster->hosts);
	mx_buf_printf(out, "models[].name: %.120s\n", m->name);
	add(out, "number of devices", m->device.n);
	add(out, "parallel.tensor", m->parallel.tensor);
	add(out, "parallel.context", m->parallel.context);
	add(out, "scheduler.max_sequences", scheduler->max_sequences);
	add(out, "scheduler.step_tokens", scheduler->step_tokens);
	add(out, "max_context", m->max_context);
	add(out, "page_tokens", m->page_tokens);
	mx_buf_printf(out, "weights: %d bits\n", m->weights == MX_WEIGHTS_COPIED ? 0 : m->weights);
	mx_buf_printf(out, "kv_dtype: %d\n", m->kv_dtype);
	mx_buf_printf(out, "prefix_cache: %s\n", m->prefix_cache ? "true" : "false");
	mx_buf_printf(out, "speculation.source: %d\n", m->speculation.source);
	add(out, "speculation.tokens", m->speculation.source ? m->speculation.tokens : 0);
	mx_buf_printf(out, "speculation.tree: %d\n", m->speculation.tree);
	add(out, "number of layers overrides", m->layers.n);
	mx_buf_printf(out, "model: %s, %u layers, width %u, vocabulary %u\n", plan->family,
	              plan->n_layers, plan->width, plan->vocab);
	mx_buf_printf(out, "layers: %s\n", layers);
	add_hash(checkpoint, out);
}
