/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads models and owns what belongs to them: plan, checkpoint, tokenizer, chat
 * template, engine and scheduler. Front ends see the models through serve/service.h.
 */
#ifndef MX_DAEMON_HOST_H
#define MX_DAEMON_HOST_H

#include <stdio.h>

#include "daemon/config.h"
#include "daemon/serve/service.h"
#include "mixers/registry.h"

struct mx_host;

/* Loads the mixer modules: those of MIXD_MODULE_PATH (folders separated by ':') or of the built-in
 * folder, then those of the configuration's folders. */
mx_status mx_host_modules(const struct mx_config *config, struct mx_registry **out,
                          struct mx_err *err);

/* Validates every model of the configuration against its checkpoint and prints its memory plan to
 * `out`. Loads no weights. */
mx_status mx_host_check(const struct mx_config *config, const struct mx_registry *mixers, FILE *out,
                        struct mx_err *err);

/* Gives the service's models their names and aliases. To be called before any front end starts:
 * front ends read names without a lock. */
mx_status mx_host_name(const struct mx_config *config, struct mx_service *service);

/* Starts one loader thread for each model. `service` has config->n_models models. Config, registry
 * and service must outlive the host. */
mx_status mx_host_start(const struct mx_config *config, const struct mx_registry *mixers,
                        struct mx_service *service, struct mx_host **out, struct mx_err *err);

/* Waits for the loaders, stops the schedulers and frees everything. All front ends must have ended.
 * Takes NULL. */
void mx_host_destroy(struct mx_host *h);

#endif
