/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a checkpoint says of the vectors that are made of its hidden states, in the files of
 * sentence-transformers: modules.json lists the steps, and a pooling step has a folder with a
 * config.json (sentence-transformers 3 and 5, models/Pooling.py); or in a GGUF file's pooling_type,
 * where vectors have length 1, as llama.cpp's server makes them.
 */
#ifndef MX_MODEL_EMBEDDING_H
#define MX_MODEL_EMBEDDING_H

#include <stdbool.h>

#include "base/status.h"

enum mx_embedding_pooling { MX_EMBEDDING_LAST, MX_EMBEDDING_MEAN };

struct mx_embedding {
	enum mx_embedding_pooling pooling;
	bool normalize;
};

/* Reads the files in `dir`, or a GGUF file. MX_E_NOTFOUND: there is no modules.json or key.
 * MX_E_UNSUPPORTED: they ask for something else, which the message names. */
mx_status mx_embedding_load(const char *dir, struct mx_embedding *out, struct mx_err *err);

#endif
