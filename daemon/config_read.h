/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads YAML by tables of keys (config_keys.h): the configuration and the file of
 * keys. Every fault has its file, line, column and the path of the key.
 */
#ifndef MX_DAEMON_CONFIG_READ_H
#define MX_DAEMON_CONFIG_READ_H

#include <stdio.h>
#include <yaml.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/status.h"
#include "daemon/config_keys.h"

#define MX_CONFIG_MAX_FILE ((size_t)1 << 20) /* bytes */

struct mx_config_reader {
	const char *file;       /* for messages */
	struct mx_arena *arena; /* of the strings and lists that are read */
	struct mx_err *err;
	/* Reads the document, and what stands for a key of kind K_MODELS (NULL: no table has one). */
	mx_status (*read_root)(struct mx_config_reader *r, const yaml_node_t *root);
	mx_status (*read_models)(struct mx_config_reader *r, const yaml_node_t *n);
	void *out; /* for these functions */

	/* Set while reading. */
	yaml_document_t *doc;
	char path[160]; /* of the key being read */
};

/* Parses a text of one document and has it read. The reader is zeroed but for its first fields. */
mx_status mx_config_read(struct mx_config_reader *r, const char *text, size_t len);
/* Reads what is left of an open file, MX_CONFIG_MAX_FILE bytes at most. */
mx_status mx_config_read_file(const char *file, FILE *f, struct mx_buf *out, struct mx_err *err);

/* Reads a mapping by its table into the struct at `base`. Each key may come at most once. */
mx_status mx_config_read_map(struct mx_config_reader *r, const yaml_node_t *n,
                             const struct mx_config_key *keys, char *base);
/* Fails with the place of a node and the reader's path. Returns MX_E_INVALID. */
mx_status mx_config_fail(struct mx_config_reader *r, const yaml_node_t *n, const char *fmt, ...)
	MX_PRINTF(3, 4);
/* Returns what a node is, for messages: "a list". */
const char *mx_config_kind_of(const yaml_node_t *n);

#endif
