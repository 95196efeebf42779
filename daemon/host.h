/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads models and owns what belongs to them (hosted.h). Front ends see the
 * models through serve/service.h.
 *
 * mx_host_create, _start and _destroy are for the main thread; in between one
 * other thread changes the models (reload.c). A model that is replaced or
 * removed finishes the requests that hold it before it is freed.
 */
#ifndef MX_DAEMON_HOST_H
#define MX_DAEMON_HOST_H

#include <stdio.h>

#include "daemon/cluster.h"
#include "daemon/config.h"
#include "daemon/serve/service.h"
#include "mixers/registry.h"

struct mx_host;

/* Loads the mixer modules: those of MIXD_MODULE_PATH (folders separated by ':')
 * or of the built-in folder, then those of the configuration's folders. */
mx_status mx_host_modules(const struct mx_config *config, struct mx_registry **out,
                          struct mx_err *err);

/* True if the changes of prefix caches are told: to subscribers, or by gRPC. */
bool mx_host_tells(const struct mx_config *config);

/* Validates every model of the configuration against its checkpoint and prints
 * its memory plan to `out`. Loads no weights. */
mx_status mx_host_check(const struct mx_config *config, const struct mx_registry *mixers, FILE *out,
                        struct mx_err *err);

/* Lists the models of the configuration in the service, in state LOADING.
 * Config, registry, service and cluster (NULL: one host computes the models) must outlive the host.
 */
mx_status mx_host_create(const struct mx_config *config, struct mx_registry *mixers,
                         struct mx_service *service, struct mx_cluster *cluster,
                         struct mx_host **out);

/* Starts one loader thread for each model. */
mx_status mx_host_start(struct mx_host *h, struct mx_err *err);

/* Names of models, separated by commas. */
struct mx_host_change {
	struct mx_buf added, removed, replaced;
};
void mx_host_change_free(struct mx_host_change *c);

/* Makes the served models those of `to`, where `from` says with which settings the present ones
 * were loaded. A model that is new, or whose settings differ in more than aliases, or whose path
 * leads to another folder than before, is loaded beside the others; then the list is replaced at
 * once. *change says what was done, or was to be. On failure nothing changes: MX_E_RANGE if there
 * is not enough memory for old and new models together. To be called when all models have been
 * loaded; takes as long as loading takes. `to` is needed until it returns. */
mx_status mx_host_change(struct mx_host *h, const struct mx_config *from,
                         const struct mx_config *to, struct mx_host_change *change,
                         struct mx_err *err);

/* Frees the models that are not listed any more and that no request holds.
 * Returns how many are left. For the thread that changes the models. */
size_t mx_host_reap(struct mx_host *h);

/* A model that is not listed any more and finishes its requests. */
struct mx_retired {
	char name[128];
	unsigned held; /* requests that hold it */
};
/* Lists them, at most `cap`; returns their number. Any thread. */
size_t mx_host_retired(struct mx_host *h, struct mx_retired *out, size_t cap);

/* Waits for the loaders, stops the schedulers and frees everything. All front
 * ends must have ended. Takes NULL. */
void mx_host_destroy(struct mx_host *h);

#endif
