/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page pool of a model and its prefix cache. Book-keeping only: the memory of the pages belongs
 * to the engine.
 *
 * A page holds the state of page_tokens consecutive tokens in every paged layer. It is in one of
 * three states:
 *
 *   free    its contents are not needed
 *   used    held by one or more sequences
 *   cached  full, held by no sequence, can be found by its tokens
 *
 * The prefix cache is a forest of known pages: a full page is found by (page before it, its
 * tokens), a first page by (salt, its tokens). Tokens are compared, not only their hash.
 *
 * Invariant: the known pages of a sequence are a path from a root, so a sequence that holds a page
 * holds all pages before it. For that, a sequence that completes a page which another sequence
 * completed earlier takes the other's page (the bits are equal, see mixers/mixer.h) and gives its
 * own back. It follows that every cached page can be evicted: used + cached + free = all pages, and
 * cached + free pages can be reserved. As pages enter the LRU list last page first, the oldest
 * entry never has a successor in the cache.
 *
 * Every function is O(1) a page. Nothing is allocated after create.
 *
 * Threads: the engine thread, except mx_pages_usage (any thread).
 */
#ifndef MX_ENGINE_PAGES_H
#define MX_ENGINE_PAGES_H

#include "engine/engine.h"
#include "engine/kv_events.h"
#include "engine/seq_tokens.h"

struct mx_pages;

#define MX_NO_PAGE UINT32_MAX

/* The pages of one sequence. The caller owns `ids` [cap] and raises n_told; the pool sets the other
 * numbers. */
struct mx_page_list {
	uint32_t *ids; /* in order of position */
	uint32_t n, cap;
	uint32_t n_known; /* the first n_known are in the cache's forest */
	uint32_t n_gone; /* private lists: the first n_gone were given back; their ids are MX_NO_PAGE */
	/* The first n_told ids are as the device was told them, but for those that are gone. The pool
	 * lowers it when ids change. */
	uint32_t n_told;
	bool private;     /* the sequence does not use the prefix cache */
	uint64_t salt[2]; /* mx_pages_salt */
};

/* Creates a pool of free pages. n_pages in 1 .. 2^31, page_tokens >= 1. Without prefix_cache every
 * list is private. */
mx_status mx_pages_create(uint32_t n_pages, uint32_t page_tokens, bool prefix_cache,
                          struct mx_pages **out);
void mx_pages_destroy(struct mx_pages *p); /* takes NULL */
/* Returns the bytes that create allocates. */
size_t mx_pages_bytes(uint32_t n_pages, uint32_t page_tokens, bool prefix_cache);

/* Fills salt[2] with a keyed hash of the text. NULL stands for no salt, which equals no text's. */
void mx_pages_salt(const struct mx_pages *p, const char *text, uint64_t salt[2]);

/* Adds the longest run of known pages that match the first n tokens to an empty list, at most
 * `limit` tokens. Returns the number of tokens covered. */
uint32_t mx_pages_attach(struct mx_pages *p, struct mx_page_list *list,
                         const struct mx_seq_tokens *tokens, uint32_t n, uint32_t limit);

/* Adds pages to the list until it covers n_tokens positions. All or nothing: MX_E_NOMEM leaves the
 * list unchanged; MX_E_RANGE if it would need more than cap pages. */
mx_status mx_pages_reserve(struct mx_pages *p, struct mx_page_list *list, uint32_t n_tokens);

/* Adds the full pages of the first `computed` tokens to the prefix cache. Ids in the list may
 * change.
 */
void mx_pages_publish(struct mx_pages *p, struct mx_page_list *list,
                      const struct mx_seq_tokens *tokens, uint32_t computed);

/* Gives back all but the first n pages. */
void mx_pages_trim(struct mx_pages *p, struct mx_page_list *list, uint32_t n);

/* Gives back the first n pages of a private list; the later pages keep their places in it. Does
 * nothing to other lists, whose first pages the prefix cache needs. */
void mx_pages_let_go(struct mx_pages *p, struct mx_page_list *list, uint32_t n);

/* Publishes, then gives all pages back. */
void mx_pages_release(struct mx_pages *p, struct mx_page_list *list,
                      const struct mx_seq_tokens *tokens, uint32_t computed);

/* Frees all cached pages. */
void mx_pages_drop(struct mx_pages *p);

/* ---- events ---- */

/* Has every known page that comes or goes told to `events`, whose block i is page i; if
 * only_covered, those only that are covered by a saved state. To be called before any page is
 * known. */
void mx_pages_tell(struct mx_pages *p, struct mx_kv_events *events, bool only_covered);

/* A saved state at or behind the end of a known page. */
struct mx_cover {
	uint32_t page;  /* MX_NO_PAGE = the state covers no page */
	uint32_t stamp; /* tells whether the page is still the one that was covered */
};

/* Covers the first n known pages of a list, n <= n_known, for one saved state, and returns what
 * mx_pages_uncover takes when the state is lost. A page that becomes unknown is covered no more. */
struct mx_cover mx_pages_cover(struct mx_pages *p, const struct mx_page_list *list, uint32_t n);
/* True if the covered pages are known still. */
bool mx_pages_covered(const struct mx_pages *p, struct mx_cover c);
void mx_pages_uncover(struct mx_pages *p, struct mx_cover c);

/* Fills the fields about pages, and prefix_evictions. Any thread. */
void mx_pages_usage(const struct mx_pages *p, struct mx_engine_usage *out);

/* For tests: returns NULL if every page is in exactly one state, and the pool's reference counts
 * agree with `lists` [n], all lists that hold pages; else a text that says what is wrong.
 * O(n_pages). */
const char *mx_pages_check(const struct mx_pages *p, const struct mx_page_list *const *lists,
                           size_t n);

#endif
