/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A checkpoint's chat template: the subset of Jinja2 that real templates use,
 * interpreted in a sandbox with limits on steps, depth, memory and output.
 *
 * The semantics are those of Jinja 3.1 as Hugging Face transformers sets it up
 * (trim_blocks, lstrip_blocks, loop controls, {% generation %}). As there, values
 * cannot be changed in place: list.append and the like are errors.
 *
 * A template is immutable after load and may be rendered by any thread. Rendering
 * needs 256 KiB of stack.
 */
#ifndef MX_MODEL_CHAT_TEMPLATE_H
#define MX_MODEL_CHAT_TEMPLATE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"

struct mx_chat_template;

/* Loads the template of a checkpoint folder: chat_template.jinja, else chat_template.json, else
 * chat_template in tokenizer_config.json. Where it has templates of several names, "default" is
 * taken, and "tool_use" for conversations with tools: from the list in the JSON file, or from
 * additional_chat_templates/tool_use.jinja. MX_E_NOTFOUND if the checkpoint has none. */
mx_status mx_chat_template_load(const char *dir, struct mx_chat_template **out, struct mx_err *err);
/* Compiles a template. For syntax errors and unsupported constructs *err has line and column. */
mx_status mx_chat_template_parse(const char *text, size_t len, struct mx_chat_template **out,
                                 struct mx_err *err);
void mx_chat_template_destroy(struct mx_chat_template *t); /* takes NULL */
/* Makes with_tools, which t then owns, the template of conversations with tools: it is rendered
 * instead of t where the variable `tools` is given and not null. */
void mx_chat_template_add_tools(struct mx_chat_template *t, struct mx_chat_template *with_tools);
/* Returns the text that the template was compiled from and, in *out_len, its bytes. The template
 * owns it. */
const char *mx_chat_template_source(const struct mx_chat_template *t, size_t *out_len);
/* Returns the template of conversations with tools, NULL if it is the same one. */
const struct mx_chat_template *mx_chat_template_tools(const struct mx_chat_template *t);

/* Most bytes of memory that a rendering takes, without the output. */
#define MX_CHAT_MEMORY ((size_t)32 << 20)
/* Returns the most bytes of output that messages and variables of n bytes may give: a template
 * repeats them a few times at most, and adds its own text. */
size_t mx_chat_template_max_output(size_t n);
/* Returns true if the template, or the one for tools, reads a variable of that name anywhere. False
 * means that what is passed under it cannot change the text. */
bool mx_chat_template_reads(const struct mx_chat_template *t, const char *name);
/* Returns true if an attribute or a whole string of the templates is that word: x.word, x['word'],
 * x.get('word'), 'word' in x, x == 'word'. False means that the template looks at no member of that
 * name, unless it writes out all members of an object. The names of a message's reasoning count as
 * one another, as in mx_chat_template_render. */
bool mx_chat_template_names(const struct mx_chat_template *t, const char *word);

/* Returns true if the template understands content that is a list of parts: it has a loop over
 * something named `content`. Others take it for a string. */
bool mx_chat_template_takes_parts(const struct mx_chat_template *t);

struct mx_chat_limits {
	uint64_t max_steps; /* evaluated nodes; 0 = a default of some millions */
	size_t max_output;  /* bytes; 0 = a default of 8 MiB */
};

/* Renders the template and appends the text to *out; appends nothing on failure.
 *
 * - vars: a JSON object with messages, tools, documents, add_generation_prompt, bos_token,
 *   eos_token, and the request's chat_template_kwargs. If absent, tools and documents are none and
 *   add_generation_prompt is false, because transformers always passes these. As there, members
 *   of a message that are null are left out, and its reasoning (reasoning_content, thinking or
 *   reasoning, the first that it has) is also there as reasoning_content and as thinking.
 * - now: seconds since the epoch, for strftime_now; the local time zone is UTC.
 * - limits: NULL = the defaults.
 *
 * MX_E_INVALID with the message for raise_exception() and run-time errors, MX_E_UNSUPPORTED for a
 * method or format that is not implemented, MX_E_LIMIT for limits; *err has line and column. */
mx_status mx_chat_template_render(const struct mx_chat_template *t, const json_t *vars, int64_t now,
                                  const struct mx_chat_limits *limits, struct mx_buf *out,
                                  struct mx_err *err);

#endif
