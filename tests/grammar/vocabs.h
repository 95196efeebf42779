/* SPDX-License-Identifier: Apache-2.0 */
/* Vocabularies with which tests run grammars. What fails ends the program with a message. */
#ifndef MX_TESTS_GRAMMAR_VOCABS_H
#define MX_TESTS_GRAMMAR_VOCABS_H

#include "base/buf.h"
#include "grammar/matcher.h"
#include "model/tokenizer/tokenizer.h"

/* The last token is the end; the others have bytes, or none if they are special. */
struct test_vocab {
	struct mx_grammar_vocab *v;
	struct mx_tokenizer *tokenizer; /* NULL: the vocabulary is made up */
	struct mx_buf text;
	size_t *offset, n;
};

/* Numbers below n, the same in every run until the seed changes. */
uint32_t test_draw(uint32_t n);
void test_seed(uint64_t seed);

_Noreturn void test_die(const char *what);

/* The 256 bytes, and `merges` texts that are joined from two others, as byte pair encoding does. */
void test_vocab_made_up(struct test_vocab *v, int merges);
/* The tokenizer of a model's folder. */
void test_vocab_of_model(struct test_vocab *v, const char *folder);
void test_vocab_free(struct test_vocab *v);

/* Whether the grammar takes the text token by token, each allowed by the mask in front of it, and
 * then the end. Made up vocabularies cut the text differently at every call. */
bool test_vocab_takes(const struct test_vocab *v, struct mx_grammar *g, const char *s, size_t n);

#endif
