/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where one sequence stands in a grammar: which tokens may come next.
 *
 * A matcher belongs to one thread at a time. Its memory is bounded: alternatives that are still
 * open (MX_MATCHER_MAX_CONFIGS), the frames of their stacks (MX_MATCHER_MAX_FRAMES), and the last
 * tokens for mx_matcher_rollback. So is its work: a matcher has a credit of elementary steps for
 * masks and accepts, and earns some with every token. Without credit it takes nothing any more,
 * whatever is taken back; a copy has as much as was left. A grammar that needs more (it is
 * ambiguous, or nests too deep) ends in MX_E_LIMIT: fail the request.
 */
#ifndef MX_GRAMMAR_MATCHER_H
#define MX_GRAMMAR_MATCHER_H

#include "grammar/grammar.h"

#define MX_MATCHER_MAX_CONFIGS  1024
#define MX_MATCHER_MAX_FRAMES   (1u << 18)
#define MX_MATCHER_MAX_ROLLBACK 256     /* tokens that can be taken back, at least */
#define MX_MATCHER_CREDIT       4000000 /* elementary steps to begin with, and at most */
#define MX_MATCHER_EARNED       20000   /* by every token, and one for each of the vocabulary */

struct mx_matcher;

/* Begins at the start of the grammar. Holds references to both. */
mx_status mx_matcher_new(struct mx_grammar *g, struct mx_grammar_vocab *v, struct mx_matcher **out);
void mx_matcher_free(struct mx_matcher *m); /* takes NULL */
/* A second matcher at the same place, with what can be taken back. */
mx_status mx_matcher_copy(const struct mx_matcher *m, struct mx_matcher **out);

/* Takes one token. Returns false and changes nothing if the grammar does not allow it there, or if
 * a bound is reached (mx_matcher_status). An end token is allowed where the text may end; after it
 * only end tokens are. */
bool mx_matcher_accept(struct mx_matcher *m, int32_t token);
/* As mx_matcher_accept, for any bytes; for mx_matcher_rollback they count as one token. */
bool mx_matcher_accept_bytes(struct mx_matcher *m, const char *bytes, size_t n);
/* MX_OK, or why the last accept returned false although the grammar may allow the token:
 * MX_E_LIMIT or MX_E_NOMEM. */
mx_status mx_matcher_status(const struct mx_matcher *m);

/* Sets bit i % 32 of bits[i / 32] iff token i is allowed next, for all of the (size + 31) / 32
 * words. MX_E_NOTFOUND: none is (no token of the vocabulary spells what must follow);
 * MX_E_LIMIT, MX_E_NOMEM: as above. The bits are written in any case. */
mx_status mx_matcher_mask(struct mx_matcher *m, uint32_t *bits);
/* The elementary steps that are left. */
size_t mx_matcher_credit(const struct mx_matcher *m);
/* Whether the text may end here. */
bool mx_matcher_may_end(const struct mx_matcher *m);
/* Takes back the last n tokens that were accepted. False, and nothing changes, if n is more than
 * were accepted or more than are remembered. */
bool mx_matcher_rollback(struct mx_matcher *m, size_t n);

#endif
