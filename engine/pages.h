/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page pool of a model and its prefix cache: book-keeping only, the bytes
 * of the pages belong to the engine.
 *
 * A page holds the state of page_tokens consecutive tokens in every paged
 * layer. It is in one of three states:
 *
 *   free    nobody wants what is in it
 *   used    held by one or more sequences
 *   cached  full, held by no sequence, findable by its tokens
 *
 * The cache is a forest: a full page is known by (page before it, its tokens),
 * a first page by (salt, its tokens). Tokens are compared, not only their hash.
 *
 * Invariant: the known pages of a sequence are a path from a root, so whoever
 * holds a page holds all before it. For that, a sequence that finishes a page
 * which another one finished before takes the other's (the bits are equal, see
 * mixers/mixer.h) and gives its own back. It follows that every cached page
 * can be dropped when room is needed: page_used + cached + free = all, and
 * cached + free is what a reservation can have. And as pages enter the LRU
 * list last page first, the oldest entry never has a successor in the cache.
 *
 * Everything is O(1) a page, and nothing is allocated after create.
 *
 * Threads: the engine thread, except mx_pages_usage (any thread).
 */
#ifndef MX_ENGINE_PAGES_H
#define MX_ENGINE_PAGES_H

#include "engine/engine.h"

struct mx_pages;

#define MX_NO_PAGE UINT32_MAX

/* The pages of one sequence. `ids` [cap] belongs to the caller; the rest is the pool's. */
struct mx_page_list {
	uint32_t *ids; /* in order of position */
	uint32_t n, cap;
	uint32_t n_known; /* the first n_known are in the cache's forest */
	uint32_t n_gone;  /* private lists: the first n_gone were given back and are MX_NO_PAGE */
	bool private;     /* neither looks up nor leaves anything */
	uint64_t salt[2]; /* mx_pages_salt */
};

/* n_pages in 1 .. 2^31, page_tokens >= 1. With prefix_cache false every list is private. */
mx_status mx_pages_create(uint32_t n_pages, uint32_t page_tokens, bool prefix_cache,
                          struct mx_pages **out);
void mx_pages_destroy(struct mx_pages *p); /* takes NULL */
/* Bytes that create allocates. */
size_t mx_pages_bytes(uint32_t n_pages, uint32_t page_tokens, bool prefix_cache);

/* Fills salt[2] for a text; NULL is a salt of its own. */
void mx_pages_salt(const struct mx_pages *p, const char *text, uint64_t salt[2]);

/* Takes the longest run of known pages that match tokens[0..n) into an empty list, covering at most
 * `limit` tokens. Returns the number of tokens covered. */
uint32_t mx_pages_attach(struct mx_pages *p, struct mx_page_list *list, const int32_t *tokens,
                         uint32_t n, uint32_t limit);

/* Makes the list cover n_tokens positions. All or nothing: MX_E_NOMEM leaves it as it was,
 * MX_E_RANGE if it is more than the list's cap. */
mx_status mx_pages_reserve(struct mx_pages *p, struct mx_page_list *list, uint32_t n_tokens);

/* Makes the full pages among the first `computed` tokens known. Ids in the list may change. */
void mx_pages_publish(struct mx_pages *p, struct mx_page_list *list, const int32_t *tokens,
                      uint32_t computed);

/* Gives back all but the first n pages. */
void mx_pages_trim(struct mx_pages *p, struct mx_page_list *list, uint32_t n);

/* Gives back the first n pages of a list that is private, none of others: there they are the cache.
 * The other pages keep their places. */
void mx_pages_let_go(struct mx_pages *p, struct mx_page_list *list, uint32_t n);

/* Gives all pages back, after publishing. */
void mx_pages_release(struct mx_pages *p, struct mx_page_list *list, const int32_t *tokens,
                      uint32_t computed);

/* Frees all cached pages. */
void mx_pages_drop(struct mx_pages *p);

/* Fills the pages' part. Any thread. */
void mx_pages_usage(const struct mx_pages *p, struct mx_engine_usage *out);

/* For tests: NULL if every page is in exactly one state and the references of `lists` [n], which
 * must be all there are, agree with the pool's; else what is wrong. O(everything). */
const char *mx_pages_check(const struct mx_pages *p, const struct mx_page_list *const *lists,
                           size_t n);

#endif
