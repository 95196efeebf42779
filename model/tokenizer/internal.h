/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of the tokenizer share. tokenizer.json is compiled at load
 * into lists of primitive steps. Encoding runs a text through them:
 *
 *   added.c       split on added tokens
 *   normalize.c   rewrite each piece of text
 *   pretokenize.c split into pre-tokens
 *   bpe.c         pre-token to ids
 *   decode.c      ids to text
 *
 * chars.c makes a tokenizer.json for a character tokenizer that has none, world.c for
 * RWKV's, which it also encodes with. All rest
 * on text.c (UTF-8), unicode.c (character classes), pattern.c
 * (regular expressions), vocab.c (string to id), lookup.c (id to string),
 * work.c and room.c (memory of one call) and json.c (checked reading).
 *
 * Everything in struct mx_tokenizer is immutable after load. The memory of one call
 * is struct mx_tok_work.
 */
#ifndef MX_MODEL_TOK_INTERNAL_H
#define MX_MODEL_TOK_INTERNAL_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/status.h"
#include "model/tokenizer/tokenizer.h"

/* Limit of ids: the tables below are arrays indexed by id, so a file must not make them huge. */
#define MX_TOK_MAX_IDS ((uint32_t)1 << 21)
/* Limit of primitive steps of one kind; real files have fewer than ten. */
#define MX_TOK_MAX_STEPS 32
/* Limit of nested Sequence steps. */
#define MX_TOK_MAX_DEPTH 8

/* --- text.c -------------------------------------------------------------------------- */

/* Returns the code point at s[*i] and advances *i. The text must be valid UTF-8 and *i below its
 * length. */
static inline uint32_t mx_tok_next(const char *s, size_t *i)
{
	const unsigned char *p = (const unsigned char *)s + *i;
	if (p[0] < 0x80) {
		*i += 1;
		return p[0];
	}
	if (p[0] < 0xe0) {
		*i += 2;
		return (uint32_t)(p[0] & 0x1f) << 6 | (p[1] & 0x3f);
	}
	if (p[0] < 0xf0) {
		*i += 3;
		return (uint32_t)(p[0] & 0x0f) << 12 | (uint32_t)(p[1] & 0x3f) << 6 | (p[2] & 0x3f);
	}
	*i += 4;
	return (uint32_t)(p[0] & 0x07) << 18 | (uint32_t)(p[1] & 0x3f) << 12 |
	       (uint32_t)(p[2] & 0x3f) << 6 | (p[3] & 0x3f);
}

/* Returns the start of the character that ends just before s[i]; i > 0. */
static inline size_t mx_tok_prev(const char *s, size_t i)
{
	do
		i--;
	while (i > 0 && ((unsigned char)s[i] & 0xc0) == 0x80);
	return i;
}

/* Appends a code point. */
void mx_tok_put(struct mx_buf *b, uint32_t cp);
/* Returns the length of the longest prefix of whole valid characters. *bad: length of the maximal
 * ill-formed part after it (Unicode 3.9, as Rust and Python replace it), 0 at the end of the text.
 * *cut: more bytes could still make that part a character. */
size_t mx_tok_valid(const char *s, size_t n, size_t *bad, bool *cut);
/* Appends s with every maximal ill-formed part replaced by U+FFFD. */
void mx_tok_lossy(struct mx_buf *b, const char *s, size_t n);

/* The byte-level alphabet: GPT-2's printable stand-in for each byte, and back (-1: none). */
uint32_t mx_tok_byte_char(unsigned char byte);
int mx_tok_char_byte(uint32_t cp);

/* --- unicode.c ----------------------------------------------------------------------- */

bool mx_tok_is_space(uint32_t cp);   /* White_Space */
bool mx_tok_is_word(uint32_t cp);    /* \w of Rust's regex crate */
bool mx_tok_is_numeric(uint32_t cp); /* general category N */
bool mx_tok_is_punct(uint32_t cp);   /* ASCII punctuation or general category P */
bool mx_tok_is_mark(uint32_t cp);    /* general category M */
int mx_tok_combining_class(uint32_t cp);
bool mx_tok_decomposes(uint32_t cp); /* may decompose: it is not too new for the normalizers */
uint32_t mx_tok_lower(uint32_t cp);  /* simple lower case */
/* True if s has a character that Oniguruma knows and PCRE2 may not (new since Unicode 14). */
bool mx_tok_has_newer(const char *s, size_t n);
/* Appends the characters that are new since Unicode 14, of a category ("L", "Lo") and at or above
 * `from`, as members of a regex class. */
void mx_tok_newer_ranges(struct mx_buf *out, const char *category, uint32_t from);

/* --- json.c: reading with the key's path in the message ------------------------------ */

#define MX_TOK_PATH 160
/* Writes "parent.key" or "parent[index]" (key NULL) into out[MX_TOK_PATH]. */
void mx_tok_path(char *out, const char *parent, const char *key, size_t index);
/* Checks that obj is an object that has only keys of the NULL-terminated list. */
mx_status mx_tok_keys(const json_t *obj, const char *path, const char *const *allowed,
                      struct mx_err *err);
/* Read an optional member. If it is absent or null, *out is unchanged. */
mx_status mx_tok_bool(const json_t *obj, const char *path, const char *key, bool *out,
                      struct mx_err *err);
mx_status mx_tok_size(const json_t *obj, const char *path, const char *key, size_t *out,
                      struct mx_err *err);
/* Reads a required member: a string of at most `max` bytes. */
mx_status mx_tok_str(const json_t *obj, const char *path, const char *key, size_t max,
                     const char **out, size_t *len, struct mx_err *err);
/* Reads the required string "type". */
mx_status mx_tok_type(const json_t *obj, const char *path, const char **out, struct mx_err *err);

/* --- vocab.c ------------------------------------------------------------------------- */

struct mx_tok_piece {
	const char *s; /* NUL-terminated; NULL = no such id */
	uint32_t n;
};

/* Open-addressing map from strings to indices into an array of pieces. */
struct mx_tok_map {
	int32_t *cells; /* index, or -1 */
	uint32_t mask;
};

/* Makes an empty map with room for n strings. */
mx_status mx_tok_map_init(struct mx_tok_map *m, struct mx_arena *arena, size_t n);
/* Returns the index of an equal piece, or -1. */
int32_t mx_tok_map_find(const struct mx_tok_map *m, const struct mx_tok_piece *pieces,
                        const char *s, size_t n);
/* Enters pieces[index]. It replaces an equal piece. */
void mx_tok_map_set(struct mx_tok_map *m, const struct mx_tok_piece *pieces, int32_t index);

/* The model's vocabulary. */
struct mx_tok_vocab {
	struct mx_tok_piece *pieces; /* [n_ids] */
	uint32_t n_ids;              /* largest id + 1 */
	uint32_t count;              /* entries */
	struct mx_tok_map map;
};

mx_status mx_tok_vocab_parse(const json_t *vocab, const char *path, struct mx_arena *arena,
                             struct mx_tok_vocab *v, struct mx_err *err);
static inline int32_t mx_tok_vocab_id(const struct mx_tok_vocab *v, const char *s, size_t n)
{
	return mx_tok_map_find(&v->map, v->pieces, s, n);
}

/* Returns the id of the piece that has the bytes s in the byte-level alphabet, or -1. */
int32_t mx_tok_vocab_bytes_id(const struct mx_tok_vocab *v, const char *s, size_t n);

/* --- pattern.c ----------------------------------------------------------------------- */

enum mx_tok_pattern_kind {
	MX_TOK_LITERAL,
	MX_TOK_REGEX,
	MX_TOK_CLASS, /* any character of a class */
	MX_TOK_WORDS, /* a run of word characters, or of characters that are neither word nor space */
};

struct mx_tok_pattern {
	enum mx_tok_pattern_kind kind;
	const char *literal;
	size_t n;
	pcre2_code *code;
	pcre2_code *code_newer; /* for texts with characters newer than Unicode 14; slower */
	bool (*in_class)(uint32_t cp);
	struct mx_tok_pattern *next; /* list of all regexes of a tokenizer, for mx_tokenizer_destroy */
};

struct mx_tok_work;

/* Compiles a regex written for Oniguruma (the library of `tokenizers`). */
mx_status mx_tok_regex(struct mx_tokenizer *t, const char *regex, size_t n, const char *path,
                       struct mx_tok_pattern **out, struct mx_err *err);
/* Reads {"String": s} or {"Regex": r}. */
mx_status mx_tok_pattern_parse(struct mx_tokenizer *t, const json_t *json, const char *path,
                               struct mx_tok_pattern **out, struct mx_err *err);
mx_status mx_tok_pattern_literal(struct mx_tokenizer *t, const char *s, size_t n,
                                 struct mx_tok_pattern **out);
mx_status mx_tok_pattern_class(struct mx_tokenizer *t, enum mx_tok_pattern_kind kind,
                               bool (*in_class)(uint32_t cp), struct mx_tok_pattern **out);

/* Iterates over the matches in one text as the onig crate's find_iter does. */
struct mx_tok_find {
	const struct mx_tok_pattern *p;
	const char *s;
	size_t n, pos, last_end;
	bool any; /* true once last_end is set */
};
/* Finds the next match; *found is false if there is none. */
mx_status mx_tok_find_next(struct mx_tok_find *f, struct mx_tok_work *w, bool *found, size_t *start,
                           size_t *end);

/* Appends s with every match replaced. */
mx_status mx_tok_replace(const struct mx_tok_pattern *p, const char *content, size_t n_content,
                         struct mx_tok_work *w, const char *s, size_t n, struct mx_buf *out);

/* --- work.c: work memory of one call ------------------------------------------------- */

/* A stretch of text, or an added token. */
struct mx_tok_split {
	uint32_t off, len;
	int32_t id;     /* >= 0: an added token */
	uint32_t first; /* 1 if it begins the whole text */
};

/* The memory that one call may still take for its arrays. */
struct mx_tok_room {
	size_t left; /* bytes */
	bool over;   /* an array could not grow for lack of it */
};
/* Resizes an array of old_n elements to n, within the room. NULL if there is none or memory is out;
 * the array is intact then. */
void *mx_tok_grow(struct mx_tok_room *room, void *p, size_t old_n, size_t n, size_t size);
/* Returns the next capacity of a full array: large ones grow by half. */
size_t mx_tok_next_cap(size_t cap);

struct mx_tok_splits {
	struct mx_tok_room *room;
	struct mx_tok_split *v;
	size_t n, cap;
};
mx_status mx_tok_splits_add(struct mx_tok_splits *s, size_t off, size_t len, int32_t id,
                            bool first);

struct mx_tok_range {
	uint32_t start, end;
	bool match;
};

struct mx_tok_bpe_work;

struct mx_tok_work {
	struct mx_err *err;
	size_t text_len;   /* bytes of the input */
	bool newer;        /* the text has characters newer than Unicode 14 */
	size_t text_limit; /* limit of the bytes of the rewritten text */
	struct mx_tok_room room;
	struct mx_buf text, other, scratch[2];
	struct mx_tok_splits splits, more;
	struct mx_tok_range *ranges;
	size_t n_ranges, cap_ranges;
	struct mx_tok_bpe_work *bpe;
	pcre2_match_context *match_context; /* made by the first regex */
	pcre2_match_data *match_data;
	pcre2_jit_stack *jit_stack;
	uint64_t regex_deadline; /* ns */
	uint32_t regex_calls;
};
void mx_tok_work_free(struct mx_tok_work *w);
/* Fails because of a buffer: with `why` if its limit was reached, else for want of memory. */
mx_status mx_tok_buf_failed(const struct mx_tok_work *w, const struct mx_buf *b, const char *why);

/* --- added.c ------------------------------------------------------------------------- */

struct mx_tok_added {
	struct mx_tok_piece content;
	struct mx_tok_piece pattern; /* content, normalized if `normalized` */
	int32_t id;
	bool single_word, lstrip, rstrip, normalized, special;
};

/* Trie over bytes. Children are an unsorted list, since real sets branch little. */
struct mx_tok_trie_node {
	int32_t child, sibling; /* -1 = none */
	int32_t added;          /* index of the token that ends here, or -1 */
	unsigned char byte;
};
struct mx_tok_trie {
	struct mx_tok_trie_node *nodes;
	size_t n, cap;
	int32_t root[256]; /* node of each first byte, or -1 */
	bool any;
};

/* Adds a token unless an equal one is there. The roots of an empty trie are -1. */
mx_status mx_tok_trie_add(struct mx_tok_trie *trie, const struct mx_tok_piece *p, int32_t added,
                          struct mx_arena *arena);
/* Returns the length of the longest token at s, of n > 0 bytes; 0 if there is none. */
size_t mx_tok_trie_longest(const struct mx_tok_trie *trie, const char *s, size_t n, int32_t *added);

struct mx_tok_added_set {
	struct mx_tok_added *v;
	struct mx_tok_piece *contents; /* [cap] beside v, for the map */
	size_t n, cap;
	struct mx_tok_map map; /* content to index */
	int32_t *of_id;        /* [tokenizer size] index or -1 */
	struct mx_tok_trie raw, normalized;
};

/* Adds one token as `tokenizers` does: with the id of an equal vocabulary entry, else the next free
 * id. */
mx_status mx_tok_added_add(struct mx_tokenizer *t, const struct mx_tok_added *a, int32_t *next_id,
                           struct mx_err *err);
/* Returns the first id that mx_tok_added_add may give to a new token. */
int32_t mx_tok_added_next_id(const struct mx_tokenizer *t);
mx_status mx_tok_added_parse(struct mx_tokenizer *t, const json_t *list, const char *path,
                             struct mx_err *err);
/* Reads the flags of an added token beside `content`. */
mx_status mx_tok_added_flags(const json_t *obj, const char *path, struct mx_tok_added *a,
                             struct mx_err *err);
/* Builds the tries and of_id. Call it once all tokens are added. */
mx_status mx_tok_added_finish(struct mx_tokenizer *t, struct mx_err *err);
const struct mx_tok_added *mx_tok_added_find(const struct mx_tokenizer *t, const char *s, size_t n);
/* Appends the splits of text[off..off+len) to *out. */
mx_status mx_tok_added_split(const struct mx_tokenizer *t, const struct mx_tok_trie *trie,
                             const char *text, size_t off, size_t len, bool first,
                             struct mx_tok_splits *out);

/* --- normalize.c --------------------------------------------------------------------- */

struct mx_tok_norm;
struct mx_tok_norms {
	struct mx_tok_norm *v;
	size_t n;
};
mx_status mx_tok_normalizer_parse(struct mx_tokenizer *t, const json_t *json, const char *path,
                                  struct mx_err *err);
/* Appends the normalized text to *out. s must not lie in *out or in w->scratch. */
mx_status mx_tok_normalize(const struct mx_tokenizer *t, struct mx_tok_work *w, const char *s,
                           size_t n, struct mx_buf *out);

/* --- pretokenize.c ------------------------------------------------------------------- */

struct mx_tok_pre;
struct mx_tok_pres {
	struct mx_tok_pre *v;
	size_t n;
};
mx_status mx_tok_pretokenizer_parse(struct mx_tokenizer *t, const json_t *json, const char *path,
                                    struct mx_err *err);
/* Splits the entries of w->splits (which refer to w->text) further. */
mx_status mx_tok_pretokenize(const struct mx_tokenizer *t, struct mx_tok_work *w);

/* --- bpe.c --------------------------------------------------------------------------- */

struct mx_tok_merge {
	uint32_t a, b; /* a = UINT32_MAX: empty cell */
	uint32_t rank;
	int32_t id;
};

struct mx_tok_bpe {
	struct mx_tok_merge *merges; /* hash table on (a, b) */
	uint32_t merge_mask;
	uint64_t *joints; /* hash set: pairs of initial symbols that some merge joins */
	uint32_t joint_mask;
	bool can_cut;     /* texts may be cut between symbols that no merge joins (see bpe.c) */
	int32_t *char_id; /* [n_char_id] id of a one-character piece by code point, or -1 */
	uint32_t n_char_id;
	int32_t byte_id[256]; /* byte_fallback: id of <0xNN>, or -1 */
	const char *unk_token;
	int32_t unk;
	const char *prefix, *suffix; /* continuing_subword_prefix, end_of_word_suffix, or NULL */
	size_t n_prefix, n_suffix;
	bool fuse_unk, byte_fallback, ignore_merges;
	/* The file has no merges: any two pieces whose union is one may be merged, in the order of the
	 * ids of the unions. Pieces below first_rank take no part. */
	bool by_rank;
	uint32_t first_rank;
};

mx_status mx_tok_bpe_parse(struct mx_tokenizer *t, const json_t *json, const char *path,
                           struct mx_err *err);
/* Appends the ids of one pre-token. *out may hold at most `limit` ids (0 = no limit). */
mx_status mx_tok_bpe_encode(const struct mx_tokenizer *t, struct mx_tok_work *w, const char *s,
                            size_t n, size_t limit, struct mx_tokens *out);
void mx_tok_bpe_work_free(struct mx_tok_bpe_work *b); /* takes NULL */
mx_status mx_tokens_reserve(struct mx_tokens *t, size_t n);

/* --- post.c -------------------------------------------------------------------------- */

/* The ids that are added before and after the text. */
struct mx_tok_post {
	const int32_t *before, *after;
	size_t n_before, n_after;
};
mx_status mx_tok_post_parse(struct mx_tokenizer *t, const json_t *json, const char *path,
                            struct mx_err *err);

/* --- config.c ------------------------------------------------------------------------ */

mx_status mx_tok_config_parse(struct mx_tokenizer *t, const json_t *config, struct mx_err *err);

/* --- chars.c ------------------------------------------------------------------------- */

/* True if tokenizer_config.json describes a character tokenizer. */
bool mx_tok_is_chars(const json_t *config);
/* Makes the equivalent tokenizer.json, which the caller owns (json_decref). Named tokens that
 * `config` does not mention are added to `config`. */
mx_status mx_tok_chars(json_t *config, json_t **out, struct mx_err *err);

/* --- world.c ------------------------------------------------------------------------- */

#define MX_TOK_WORLD_FILE "rwkv_vocab_v20230424.txt"
/* Makes a tokenizer.json from that file, which the caller owns (json_decref). config may be NULL.
 */
mx_status mx_tok_world(const char *text, size_t len, const json_t *config, json_t **out,
                       struct mx_err *err);
/* Fills t->world. Call it when the vocabulary is there. */
mx_status mx_tok_world_index(struct mx_tokenizer *t, struct mx_err *err);
/* Appends the ids of a text in the byte-level alphabet: the longest token at each place. *out may
 * hold at most `limit` ids (0 = no limit). */
mx_status mx_tok_world_encode(const struct mx_tokenizer *t, const char *s, size_t n, size_t limit,
                              struct mx_tokens *out);

/* --- tekken.c ------------------------------------------------------------------------ */

/* True if a JSON file is a tekken.json. */
bool mx_tok_is_tekken(const json_t *json);
/* Makes the equivalent tokenizer.json, which the caller owns (json_decref); its model is merged by
 * rank from the id *first on. Named tokens that `config` does not mention are added to `config`. */
mx_status mx_tok_tekken(const json_t *tekken, json_t *config, json_t **out, uint32_t *first,
                        struct mx_err *err);

/* --- decode.c ------------------------------------------------------------------------ */

struct mx_tok_dec;
struct mx_tok_decs {
	struct mx_tok_dec *v;
	size_t n;
};
mx_status mx_tok_decoder_parse(struct mx_tokenizer *t, const json_t *json, const char *path,
                               struct mx_err *err);

/* --- lookup.c ------------------------------------------------------------------------ */

/* Returns the string that an id has before decoding, or NULL. */
const struct mx_tok_piece *mx_tok_decode_piece(const struct mx_tokenizer *t, int32_t id);

/* --- the tokenizer ----------------------------------------------------------------------- */

enum { MX_TOK_N_SPECIAL = 7 }; /* names of special tokens, in config.c */

struct mx_tokenizer {
	struct mx_arena arena;
	struct mx_tok_pattern *patterns; /* list of those with compiled regexes */
	struct mx_tok_vocab vocab;
	struct mx_tok_added_set added;
	struct mx_tok_norms norms;
	struct mx_tok_pres pres;
	struct mx_tok_bpe bpe;
	struct mx_tok_trie world; /* RWKV's tokens, which take the place of bpe; any = false: none */
	struct mx_tok_post post;
	struct mx_tok_decs decs;
	uint32_t size; /* number of ids, of the vocabulary and of added tokens */
	const char *special[MX_TOK_N_SPECIAL];
	const char *class_name; /* tokenizer_class of tokenizer_config.json, or NULL */
};

#endif
