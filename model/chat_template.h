/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A checkpoint's chat template: the subset of Jinja2 that real templates use,
 * interpreted in a sandbox with limits on steps, depth, memory and output.
 *
 * The semantics are those of Jinja 3.1 as Hugging Face transformers sets it up
 * (trim_blocks, lstrip_blocks, loop controls, {% generation %}, nothing can be
 * changed in place: list.append and the like are errors there and here).
 *
 * Immutable after load and safe from any thread; needs 256 KiB of stack.
 */
#ifndef MX_MODEL_CHAT_TEMPLATE_H
#define MX_MODEL_CHAT_TEMPLATE_H

#include <jansson.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"

struct mx_chat_template;

/* Finds the template of a checkpoint folder: chat_template.jinja, else chat_template.json, else
 * tokenizer_config.json's chat_template (string, or a list from which "default" is taken).
 * MX_E_NOTFOUND if the checkpoint has none. */
mx_status mx_chat_template_load(const char *dir, struct mx_chat_template **out, struct mx_err *err);
/* Compiles a template. Syntax errors and unsupported constructs: line and column in *err. */
mx_status mx_chat_template_parse(const char *text, size_t len, struct mx_chat_template **out,
                                 struct mx_err *err);
void mx_chat_template_destroy(struct mx_chat_template *t); /* takes NULL */

struct mx_chat_limits {
	uint64_t max_steps; /* evaluated nodes; 0 = a default of some millions */
	size_t max_output;  /* bytes; 0 = a default of 16 MiB */
};

/* Renders with `vars` (a JSON object: messages, tools, documents, add_generation_prompt, bos_token,
 * eos_token, and the request's chat_template_kwargs) and appends to *out, or nothing on failure.
 * Where they are absent tools and documents are none and add_generation_prompt is false, as
 * transformers always passes them. raise_exception() and run-time errors: MX_E_INVALID with the
 * message; a method or format we lack: MX_E_UNSUPPORTED; limits: MX_E_LIMIT; all with the line and
 * column. `now` (seconds since the epoch, local time zone UTC) feeds strftime_now. */
mx_status mx_chat_template_render(const struct mx_chat_template *t, const json_t *vars, int64_t now,
                                  const struct mx_chat_limits *limits, struct mx_buf *out,
                                  struct mx_err *err);

#endif
