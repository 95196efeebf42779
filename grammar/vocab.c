/* SPDX-License-Identifier: Apache-2.0 */
#include "grammar/vocab.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define MAX_TOKEN_BYTES 65535

static mx_status check(const size_t *offsets, size_t n_tokens, const int32_t *ends, size_t n_ends,
                       struct mx_err *err)
{
	if (n_tokens > INT32_MAX)
		return mx_fail(err, MX_E_INVALID, "a vocabulary of %zu tokens is too large", n_tokens);
	for (size_t i = 0; i < n_tokens; i++)
		if (offsets[i + 1] < offsets[i] || offsets[i + 1] - offsets[i] > MAX_TOKEN_BYTES)
			return mx_fail(err, MX_E_INVALID, "token %zu has more than %d bytes", i,
			               MAX_TOKEN_BYTES);
	for (size_t i = 0; i < n_ends; i++)
		if (ends[i] < 0 || (size_t)ends[i] >= n_tokens)
			return mx_fail(err, MX_E_INVALID, "end token %d is not in the vocabulary",
			               (int)ends[i]);
	return MX_OK;
}

/* Copies the bytes of all tokens but the end tokens. */
static bool copy_text(struct mx_grammar_vocab *v, const uint8_t *text, const size_t *offsets)
{
	size_t total = v->n_tokens ? offsets[v->n_tokens] - offsets[0] : 0, n = 0;
	v->text = mx_calloc(total + 1, 1);
	v->offsets = mx_calloc(v->n_tokens + 1, sizeof(*v->offsets));
	if (!v->text || !v->offsets)
		return false;
	for (size_t i = 0; i < v->n_tokens; i++) {
		size_t length = offsets[i + 1] - offsets[i];
		if (length && !mx_vocab_is_end(v, (int32_t)i)) {
			memcpy(v->text + n, text + offsets[i], length);
			n += length;
		}
		v->offsets[i + 1] = n;
	}
	return true;
}

static mx_status make_trie(struct mx_grammar_vocab *v)
{
	struct mx_trie_entry *entries = mx_calloc(v->n_tokens + 1, sizeof(*entries));
	if (!entries)
		return MX_E_NOMEM;
	size_t n = 0;
	for (size_t i = 0; i < v->n_tokens; i++) {
		uint32_t length = (uint32_t)(v->offsets[i + 1] - v->offsets[i]);
		if (!length)
			continue;
		entries[n++] = (struct mx_trie_entry){v->text + v->offsets[i], length, (uint32_t)i};
		v->spelled[i >> 5] |= 1u << (i & 31);
	}
	mx_status st = mx_trie_make(entries, n, &v->trie);
	free(entries);
	v->subtrees = st ? NULL : mx_calloc(v->trie.n_nodes, sizeof(*v->subtrees));
	if (!v->subtrees)
		return st ? st : MX_E_NOMEM;
	mx_subtrees(&v->trie, v->subtrees);
	return MX_OK;
}

mx_status mx_grammar_vocab_new(const uint8_t *text, const size_t *offsets, size_t n_tokens,
                               const int32_t *ends, size_t n_ends, size_t cache_bytes,
                               struct mx_grammar_vocab **out, struct mx_err *err)
{
	mx_status st = check(offsets, n_tokens, ends, n_ends, err);
	if (st)
		return st;
	struct mx_grammar_vocab *v = mx_calloc(1, sizeof(*v));
	if (!v)
		return mx_fail(err, MX_E_NOMEM, "out of memory");
	atomic_init(&v->references, 1);
	v->n_tokens = n_tokens;
	v->ends = mx_calloc((n_tokens + 31) / 32 + 1, sizeof(*v->ends));
	v->spelled = mx_calloc((n_tokens + 31) / 32 + 1, sizeof(*v->spelled));
	bool ok = mx_cache_init(&v->cache, cache_bytes) && v->ends && v->spelled;
	for (size_t i = 0; v->ends && i < n_ends; i++)
		v->ends[ends[i] >> 5] |= 1u << (ends[i] & 31);
	st = ok && copy_text(v, text, offsets) ? make_trie(v) : MX_E_NOMEM;
	if (st) {
		mx_grammar_vocab_unref(v);
		return mx_fail(err, st, "%s", mx_status_str(st));
	}
	*out = v;
	return MX_OK;
}

struct mx_grammar_vocab *mx_grammar_vocab_ref(struct mx_grammar_vocab *v)
{
	atomic_fetch_add_explicit(&v->references, 1, memory_order_relaxed);
	return v;
}

void mx_grammar_vocab_unref(struct mx_grammar_vocab *v)
{
	if (!v || atomic_fetch_sub_explicit(&v->references, 1, memory_order_acq_rel) != 1)
		return;
	mx_cache_free(&v->cache);
	mx_trie_free(&v->trie);
	free(v->subtrees);
	free(v->spelled);
	free(v->text);
	free(v->offsets);
	free(v->ends);
	free(v);
}

const uint8_t *mx_grammar_vocab_token(const struct mx_grammar_vocab *v, int32_t token, size_t *n)
{
	bool known = token >= 0 && (size_t)token < v->n_tokens;
	*n = known ? v->offsets[token + 1] - v->offsets[token] : 0;
	return *n ? v->text + v->offsets[token] : NULL;
}

size_t mx_grammar_vocab_size(const struct mx_grammar_vocab *v)
{
	return v->n_tokens;
}

void mx_grammar_vocab_stats(struct mx_grammar_vocab *v, struct mx_grammar_vocab_stats *out)
{
	size_t words = (v->n_tokens + 31) / 32;
	*out = (struct mx_grammar_vocab_stats){
		.bytes = mx_trie_bytes(&v->trie) + v->trie.n_nodes * sizeof(*v->subtrees) +
	             v->offsets[v->n_tokens] + (v->n_tokens + 1) * sizeof(*v->offsets) +
	             2 * words * sizeof(*v->ends),
	};
	pthread_mutex_lock(&v->cache.lock);
	out->cache_bytes = v->cache.bytes;
	out->hits = v->cache.hits;
	out->misses = v->cache.misses;
	out->evicted = v->cache.evicted;
	pthread_mutex_unlock(&v->cache.lock);
}
