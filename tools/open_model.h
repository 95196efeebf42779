/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a checkpoint folder with the installed mixer modules, for programs beside the daemon. */
#ifndef MX_TOOLS_OPEN_MODEL_H
#define MX_TOOLS_OPEN_MODEL_H

#include "engine/load.h"

struct opened_model {
	struct mx_registry *mixers;
	struct mx_plan *plan;
	struct mx_checkpoint *checkpoint;
	struct mx_engine *engine; /* NULL until opened_model_load */
};

/* Opens the folder's plan and checkpoint and loads the mixer modules: from the directories of
 * MIXD_MODULE_PATH (separated by colons), or if it is unset from where they were installed. */
mx_status opened_model_open(const char *dir, struct opened_model *out, struct mx_err *err);
mx_status opened_model_load(struct opened_model *m, const struct mx_engine_config *config,
                            struct mx_err *err);
void opened_model_close(struct opened_model *m); /* takes a zeroed struct */

#endif
