/* SPDX-License-Identifier: Apache-2.0 */
/* SIGHUP: what can change at run time is taken from the configuration file. */
#ifndef MX_DAEMON_RELOAD_H
#define MX_DAEMON_RELOAD_H

#include "daemon/config.h"
#include "daemon/serve/service.h"

/* Logs from now on as the configuration says. */
void mx_reload_log(const struct mx_config *c);

/* Reads the file of `running`, the configuration of the start, again. Applies the keys that its
 * tables mark as reloadable (log settings, aliases), and names the keys that wait for a restart. If
 * the file has an error, that is logged and nothing changes. */
void mx_reload(const struct mx_config *running, struct mx_service *service);

#endif
