/* SPDX-License-Identifier: Apache-2.0 */
/* Looks up pieces by id and ids by piece; the tokenizer's size. */
#include "model/tokenizer/internal.h"

#include <string.h>

static const struct mx_tok_added *added_of(const struct mx_tokenizer *t, int32_t id)
{
	if (id < 0 || (uint32_t)id >= t->size || t->added.of_id[id] < 0)
		return NULL;
	return &t->added.v[t->added.of_id[id]];
}

static const struct mx_tok_piece *model_piece(const struct mx_tokenizer *t, int32_t id)
{
	if (id < 0 || (uint32_t)id >= t->vocab.n_ids || !t->vocab.pieces[id].s)
		return NULL;
	return &t->vocab.pieces[id];
}

const struct mx_tok_piece *mx_tok_decode_piece(const struct mx_tokenizer *t, int32_t id)
{
	const struct mx_tok_added *a = added_of(t, id);
	return a ? &a->pattern : model_piece(t, id);
}

size_t mx_tokenizer_size(const struct mx_tokenizer *t)
{
	return t->size;
}

size_t mx_tokenizer_bytes(const struct mx_tokenizer *t)
{
	return sizeof *t + t->arena.used;
}

const char *mx_tokenizer_piece(const struct mx_tokenizer *t, int32_t id)
{
	const struct mx_tok_added *a = added_of(t, id);
	const struct mx_tok_piece *p = a ? &a->content : model_piece(t, id);
	return p ? p->s : NULL;
}

int32_t mx_tokenizer_id(const struct mx_tokenizer *t, const char *piece)
{
	size_t n = strlen(piece);
	const struct mx_tok_added *a = mx_tok_added_find(t, piece, n);
	return a ? a->id : mx_tok_vocab_id(&t->vocab, piece, n);
}

bool mx_tokenizer_is_special(const struct mx_tokenizer *t, int32_t id)
{
	const struct mx_tok_added *a = added_of(t, id);
	return a && a->special;
}
