/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the configuration file again, at SIGHUP or when an operator asks for it, on
 * a thread of its own: models are loaded there, and old ones freed. Either all that
 * can change at run time does, or nothing.
 *
 * What its tables mark as reloadable takes effect in place. Models are added,
 * removed and replaced (host.h). Every other key waits for a restart and is named. The
 * files of keys and TLS are checked before anything changes (files_check.h).
 */
#ifndef MX_DAEMON_RELOAD_H
#define MX_DAEMON_RELOAD_H

#include "daemon/config.h"
#include "daemon/host.h"
#include "daemon/serve/service.h"

struct mx_reload;

struct mx_reload_setup {
	const struct mx_config *config; /* of the start; outlives the rest */
	bool from_file;                 /* there is a file to be read again */
	struct mx_service *service;
	struct mx_host *host;
	/* Applies what is not the service's or the host's, on the thread of reloads, and writes the
	 * keys whose files it has read again, separated by ", ". */
	void (*apply)(void *arg, const struct mx_config *fresh, struct mx_buf *read);
	void *arg;
};

/* What a reload did: lists of keys or names, separated by commas, "" if there are none. */
struct mx_reload_result {
	bool ok;
	char applied[1024];                              /* keys */
	char added[1024], removed[1024], replaced[1024]; /* models */
	char read[1024];                                 /* keys whose files were read again */
	char restart[1024];                              /* keys that wait for a restart */
	char error[800];                                 /* if not ok: where and why */
};

/* Logs from now on as the configuration says. */
void mx_reload_log(const struct mx_config *c);

/* Starts the thread. */
mx_status mx_reload_start(const struct mx_reload_setup *setup, struct mx_reload **out);
/* Ends the thread, after the reload that runs. Takes NULL. */
void mx_reload_stop(struct mx_reload *r);

/* Asks for a reload, and returns its number, from 1 on. Requests that come before it begins share
 * it. Any thread. */
uint64_t mx_reload_request(struct mx_reload *r);
/* True if a reload is asked for or runs. Any thread. */
bool mx_reload_busy(struct mx_reload *r);
/* False if the reload of that number has not ended yet; else *out is its result, or that of a later
 * one. Any thread. */
bool mx_reload_result(struct mx_reload *r, uint64_t number, struct mx_reload_result *out);
/* Returns shutdown.drain_s as it is in force. Any thread. */
double mx_reload_drain_s(struct mx_reload *r);

#endif
