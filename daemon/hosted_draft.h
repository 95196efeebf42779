/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the draft model that a model's settings name. */
#ifndef MX_DAEMON_HOSTED_DRAFT_H
#define MX_DAEMON_HOSTED_DRAFT_H

#include "daemon/hosted.h"

/* Opens plan and checkpoint of the draft model. Fails if its tokenizer differs from the model's,
 * which is open; *err says which token does. */
mx_status mx_hosted_draft_open(struct mx_hosted *h, struct mx_err *err);

#endif
