/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compiled grammars, for all requests and models. One is found again by the text that it was made
 * of, and kept until others need its memory. All that exist, in use or kept, take at most
 * MX_GRAMMARS_BYTES together.
 *
 * Compiling takes up to a second, so no thread that serves others may call mx_grammars_take. What
 * takes more than a tenth of that is compiled one at a time: whoever comes meanwhile with another
 * such grammar is to come again, so that clients cannot keep all workers busy with it.
 */
#ifndef MX_DAEMON_SERVE_GRAMMARS_H
#define MX_DAEMON_SERVE_GRAMMARS_H

#include <pthread.h>
#include <sys/queue.h>

#include "base/hist.h"
#include "daemon/serve/metrics_text.h"
#include "grammar/grammar.h"
#include "proto/request.h"
#include "proto/tools/formats.h"

#define MX_GRAMMARS_BYTES ((size_t)64 << 20)

/* What a grammar is made of. */
struct mx_grammar_source {
	const char *field; /* of the request, for errors */
	/* Two sources with the same kind and text make the same grammar. */
	const char *kind;
	const char *text; /* [len] */
	size_t len;
	/* Builds the grammar and returns its root; 0 with the reason in *err, or in the rules. */
	uint32_t (*build)(void *arg, struct mx_rules *r, struct mx_err *err);
	void *arg;
	/* If not NULL: reasoning that may come before the text, or that the prompt has begun. */
	const struct mx_reasoning_format *reasoning;
	bool reasoning_open;
};

/* A grammar, and who uses it. */
struct mx_grammar_held {
	struct mx_grammar *grammar;
	uint8_t key[32]; /* SHA-256 of kind, text and reasoning */
	size_t bytes;
	unsigned holds; /* under the lock, as the link */
	TAILQ_ENTRY(mx_grammar_held) link;
};

struct mx_grammars {
	pthread_mutex_t lock;
	TAILQ_HEAD(mx_grammar_list, mx_grammar_held) list; /* the latest use first */
	size_t bytes;
	pthread_mutex_t large; /* held while a large grammar is compiled */
	uint64_t hits, misses, failures, evictions;
	struct mx_hist compile; /* seconds */
};

void mx_grammars_init(struct mx_grammars *g);
/* No grammar may be held. */
void mx_grammars_destroy(struct mx_grammars *g);

/* Finds or compiles a grammar; mx_grammars_release gives it back. Fails with a 400 that names the
 * field and the place in its text. */
mx_status mx_grammars_take(struct mx_grammars *g, const struct mx_grammar_source *source,
                           struct mx_grammar_held **out, struct mx_api_error *err);
void mx_grammars_release(struct mx_grammars *g, struct mx_grammar_held *held); /* takes NULL */

/* What a request says of the form of its output, as a source. */
struct mx_constraint_source {
	struct mx_grammar_source source;
	struct mx_api_text value; /* the rest is what the source points to */
	json_t *parsed;
	struct mx_buf text;
};
/* Fills *o for a constraint of any kind but none; both must outlive its use. Fails with a 400 if a
 * schema that came as a text is no JSON. */
mx_status mx_constraint_source_open(struct mx_constraint_source *o,
                                    const struct mx_api_constraint *c, struct mx_api_error *err);
void mx_constraint_source_close(struct mx_constraint_source *o);

/* The same for what a request says of the form of its output, which comes after reasoning (`f` as
 * in the source). */
mx_status mx_grammars_take_constraint(struct mx_grammars *g, const struct mx_api_constraint *c,
                                      const struct mx_reasoning_format *f, bool open,
                                      struct mx_grammar_held **out, struct mx_api_error *err);

void mx_grammars_write_metrics(struct mx_grammars *g, struct mx_metrics_writer *w);

#endif
