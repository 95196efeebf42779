/* SPDX-License-Identifier: Apache-2.0 */
/* The tokens of a model as grammars see them. */
#ifndef MX_DAEMON_SERVE_VOCABULARY_H
#define MX_DAEMON_SERVE_VOCABULARY_H

#include "daemon/serve/service.h"
#include "grammar/grammar.h"
#include "proto/error.h"

/* Memory for masks that a model's vocabulary keeps. */
#define MX_VOCABULARY_MASKS ((size_t)16 << 20)

/* Returns the model's vocabulary, which is made when it is first asked for; that takes a tenth of a
 * second. It lives as long as the model. Special tokens have no bytes in it, but `marks` is true:
 * then those that delimit tool calls and reasoning have. */
mx_status mx_served_vocabulary(struct mx_served *m, bool marks, struct mx_grammar_vocab **out,
                               struct mx_api_error *err);

#endif
