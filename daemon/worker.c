/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/worker.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

#include "base/log.h"
#include "daemon/hosted.h"
#include "daemon/notify.h"

#define TICK_MS 100

struct worker {
	const struct mx_config *config;
	const struct mx_registry *mixers;
	struct mx_cluster *cluster;
	atomic_bool done, ready;
	bool fine;
};

static void *worker_main(void *arg)
{
	struct worker *w = arg;
	struct mx_hosted h = {.settings = &w->config->models[0],
	                      .scheduler = w->config->scheduler,
	                      .first = true,
	                      .cluster_config = &w->config->cluster,
	                      .cluster = w->cluster};
	struct mx_err err = {0};
	mx_status st = mx_hosted_load_part(&h, w->mixers, &err);
	if (st == MX_OK) {
		mx_info("hosts", "this host's part of %s is loaded", h.settings->name);
		atomic_store(&w->ready, true);
		st = mx_engine_follow(h.engine);
		char why[MX_HOSTS_WHY] = "another host is lost";
		if (st != MX_OK) {
			(void)mx_hosts_lost(mx_cluster_hosts(w->cluster), why);
			mx_fail(&err, st, "the hosts are lost: %s", why);
		}
	}
	if (st == MX_OK)
		mx_info("hosts", "the first host has ended, and so does this one");
	else if (st != MX_E_CANCELLED)
		mx_error("hosts", "%s%s%s", err.where, err.where[0] ? ": " : "", err.text);
	mx_hosted_close(&h);
	w->fine = st == MX_OK || st == MX_E_CANCELLED;
	atomic_store(&w->done, true);
	return NULL;
}

int mx_worker_run(const struct mx_config *config, const struct mx_registry *mixers,
                  struct mx_cluster *cluster, const sigset_t *signals)
{
	struct worker w = {.config = config, .mixers = mixers, .cluster = cluster};
	const struct timespec tick = {.tv_nsec = TICK_MS * 1000000L};
	bool told = false, stopped = false;
	pthread_t thread;
	if (pthread_create(&thread, NULL, worker_main, &w)) {
		mx_error("hosts", "cannot start a thread");
		return 1;
	}
	while (!atomic_load(&w.done)) {
		const int sig = sigtimedwait(signals, NULL, &tick);
		if ((sig == SIGTERM || sig == SIGINT) && !stopped) {
			mx_info("hosts", "stopped by a signal: the first host loses the model");
			mx_notify_stopping();
			mx_cluster_stop(cluster, "it was stopped by a signal");
			stopped = true;
		}
		if (atomic_load(&w.ready) && !told) {
			mx_notify_status("computing a part of %s", config->models[0].name);
			mx_notify_ready();
			told = true;
		} else if (!told) {
			mx_notify_extend(30 * 1000000);
		}
		mx_notify_alive();
	}
	pthread_join(thread, NULL);
	return w.fine || stopped ? 0 : 1;
}
