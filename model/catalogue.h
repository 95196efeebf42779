/* SPDX-License-Identifier: Apache-2.0 */
/* The list of models that can be loaded, for people: docs/models.md is this text. */
#ifndef MX_MODEL_CATALOGUE_H
#define MX_MODEL_CATALOGUE_H

#include "base/buf.h"
#include "base/status.h"

/* Appends the list as Markdown. MX_E_INTERNAL if a family is not in the list, or the reverse;
 * MX_E_NOMEM. */
mx_status mx_catalogue_write(struct mx_buf *out);

#endif
