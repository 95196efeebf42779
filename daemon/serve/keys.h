/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who may use the server, and how much. A client shows a key; the keys file has its
 * SHA-256 under a name, which is a principal: what logs, metrics and the scheduler
 * know it by. Keys themselves are kept nowhere.
 *
 * The principals of a file are replaced as a whole, at any time. One whose name stays
 * goes on as it is: its number, what it has used up, and its running requests. A
 * principal is never freed before the table, so that requests hold it without
 * counting.
 *
 * Tokens: those of a prompt are taken from the bucket when the request is admitted,
 * which fails if there are not as many; those of the output are charged as they come,
 * and may leave a debt. (To reserve max_tokens instead would refuse requests for a
 * guess, most of all those that leave it to the context.) While there is a debt
 * nothing is admitted, so the mean is the limit, and no minute has more than two
 * minutes' worth and the output of the requests that ran at its end.
 */
#ifndef MX_DAEMON_SERVE_KEYS_H
#define MX_DAEMON_SERVE_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "daemon/serve/metrics_text.h"
#include "proto/error.h"

#define MX_KEYS_MAX       4096  /* principals of a file */
#define MX_KEYS_MAX_EVER  65536 /* names, of all files since the start */
#define MX_KEYS_MAX_NAME  63    /* bytes: letters, digits, '-', '_', '.', '@' */
#define MX_KEYS_MAX_KEY   512   /* bytes of a key */
#define MX_KEYS_HASH_SIZE 32    /* bytes of SHA-256 */

struct mx_keys;
struct mx_principal;

/* What the file says of a principal. */
struct mx_key_settings {
	const char *name;
	uint8_t hash[MX_KEYS_HASH_SIZE];
	const char *const *models; /* [n_models] names or aliases */
	size_t n_models;
	bool all_models;  /* models is not looked at */
	int32_t priority; /* of its requests: lower is served first */
	uint64_t requests_per_minute, tokens_per_minute, concurrent; /* 0 = no limit */
	uint32_t weight;                                             /* of its share */
	bool private_cache; /* its prompts share no prefix with those of others */
	bool router;        /* it acts for all: sees what they ask, and ends it */
};

/* Makes a table that lets everybody in. */
mx_status mx_keys_create(struct mx_keys **out);
void mx_keys_destroy(struct mx_keys *k); /* takes NULL */
/* Replaces all principals; the settings are copied. `wanted`: from now on every request needs a
 * key, even if there are none. On failure nothing has changed: MX_E_NOMEM; MX_E_LIMIT: there were
 * MX_KEYS_MAX_EVER names. */
mx_status mx_keys_set(struct mx_keys *k, const struct mx_key_settings *list, size_t n, bool wanted);
/* Calls fn for each name of a model that a principal of the file may use by name. fn must not call
 * the table. */
void mx_keys_visit_models(struct mx_keys *k,
                          void (*fn)(void *arg, const char *principal, const char *model),
                          void *arg);
/* Returns true if requests need a key. k may be NULL: then none does. */
bool mx_keys_wanted(const struct mx_keys *k);

/* Finds the principal of the value of a field Authorization ("Bearer KEY"; NULL = there is none).
 * *out is NULL if no key is wanted. Fails with UNAUTHENTICATED. k may be NULL. */
mx_status mx_keys_authenticate(struct mx_keys *k, const char *authorization,
                               struct mx_principal **out, struct mx_api_error *err);
/* The same of a key as it is, which another field holds (Anthropic's clients send x-api-key). */
mx_status mx_keys_authenticate_key(struct mx_keys *k, const char *key, struct mx_principal **out,
                                   struct mx_api_error *err);

/* Writes the SHA-256 of a key. MX_E_UNSUPPORTED: mixd was built without GnuTLS. */
mx_status mx_key_hash(const char *key, size_t n, uint8_t out[MX_KEYS_HASH_SIZE]);
/* Returns true if two hashes are equal, in a time that does not depend on them. */
bool mx_key_same(const uint8_t *a, const uint8_t *b);

/* Writes the figures of each principal, as metrics labelled by its name. k may be NULL. */
void mx_keys_write_metrics(struct mx_keys *k, struct mx_metrics_writer *w);

/* ---- of a principal; `p` may be NULL everywhere: nobody in particular, without limits ---- */

const char *mx_principal_name(const struct mx_principal *p); /* NULL for NULL */
/* True if it may use the model, which was asked for by one of its names. */
bool mx_principal_may_use(struct mx_principal *p, const char *asked, const char *model);
/* True if it may act for all principals. False for one whose key is no longer listed. */
bool mx_principal_is_router(struct mx_principal *p);

/* A request comes: counts it. Fails with RATE_LIMITED, and then it is not counted as running. */
mx_status mx_principal_enter(struct mx_principal *p, struct mx_api_error *err);
/* A request that has entered ends. */
void mx_principal_leave(struct mx_principal *p);
/* Takes the tokens of a request's prompts. Fails with RATE_LIMITED, or with INVALID if there can
 * never be as many. */
mx_status mx_principal_take_prompt(struct mx_principal *p, uint64_t n, struct mx_api_error *err);
/* Gives them back: the request was not run. */
void mx_principal_return_prompt(struct mx_principal *p, uint64_t n);
/* Charges tokens of the output. Never waits: for the engine thread. */
void mx_principal_charge_output(struct mx_principal *p, uint64_t n);

/* What the scheduler is told of a principal's requests. */
struct mx_principal_share {
	uint32_t principal, weight;
	int32_t priority;
	bool private_cache;
};
struct mx_principal_share mx_principal_share(struct mx_principal *p);

/* What is left of a limit. */
struct mx_left {
	uint64_t limit; /* a minute; 0 = there is none */
	uint64_t left;
	double reset_s; /* until all is left */
};
void mx_principal_left(struct mx_principal *p, struct mx_left *requests, struct mx_left *tokens);

#endif
