/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of the configuration's keys, shared by the files config*.c. config.c defines them. */
#ifndef MX_DAEMON_CONFIG_KEYS_H
#define MX_DAEMON_CONFIG_KEYS_H

#include "daemon/config.h"

enum mx_config_kind {
	K_BOOL,
	K_UINT,
	K_BYTES,
	K_NUMBER,
	K_STRING,
	K_STRINGS,
	K_CHOICE,
	K_MAP,
	K_MODELS,
	K_LAYERS
};

struct mx_config_choice {
	const char *name;
	int value;
};

struct mx_config_key {
	const char *name;
	enum mx_config_kind kind;
	size_t offset;
	double min, max; /* numbers */
	bool automatic;  /* K_UINT, K_BYTES: may be "auto", MX_CONFIG_AUTO; K_STRING: empty, NULL */
	const struct mx_config_choice *choices; /* K_CHOICE, ended by a NULL name */
	const struct mx_config_key *keys;       /* K_MAP, ended by a NULL name */
	bool required;
	const char *(*check)(const char *item); /* K_STRINGS: returns the fault of an entry, or NULL */
	bool reloadable;                        /* SIGHUP applies it; others wait for a restart */
};

extern const struct mx_config_key mx_config_top_keys[];
extern const struct mx_config_key mx_config_model_keys[];

#endif
