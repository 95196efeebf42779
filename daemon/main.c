/* SPDX-License-Identifier: Apache-2.0 */
/* mixd: command line, start, the signal loop, drain and exit. */
#include <config.h> /* not ours: the build's */

#include <errno.h>
#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/config.h"
#include "daemon/host.h"
#include "daemon/http/server.h"
#include "daemon/metrics.h"
#include "daemon/notify.h"
#include "daemon/serve/service.h"
#include "model/catalogue.h"

/* Everything the process holds, in the order in which it is built. */
struct mixd {
	const char *config_file;
	struct mx_config *config;
	struct mx_registry *mixers;
	struct mx_service service;
	struct mx_host *host;
	struct mx_metrics *metrics;
	struct mx_http *http;
	bool ready; /* READY=1 was sent */
};

enum { TICK_MS = 100 };

static void usage(FILE *out)
{
	fprintf(out,
	        "usage: mixd [--config FILE] [--check | --list-models]\n"
	        "\n"
	        "  -c, --config FILE  configuration (default %s/mixd/mixd.yaml)\n"
	        "      --check        validate it, print the memory plan of every model, and exit\n"
	        "      --list-models  print which models can be loaded, and exit\n"
	        "  -V, --version      print the version and exit\n"
	        "  -h, --help         print this and exit\n",
	        MIXD_SYSCONFDIR);
}

static void print_error(const struct mx_err *err)
{
	mx_error("mixd", "%s%s%s", err->where, err->where[0] ? ": " : "", err->text);
}

/* Logs from now on as the configuration says. */
static void apply_log(const struct mx_config *c)
{
	mx_log_set_level((enum mx_log_level)c->log.level);
	mx_log_set_format((enum mx_log_format)c->log.format);
}

/* ---- start ---- */

static mx_status start_http(struct mixd *m, struct mx_err *err)
{
	const struct mx_config_http *c = &m->config->http;
	int fds[MX_NOTIFY_MAX_FDS];
	struct mx_http_config hc = {
		.listen = c->listen.items,
		.n_listen = c->listen.n,
		.fds = fds,
		.max_body_bytes = c->max_body_bytes,
		.max_connections = (unsigned)c->max_connections,
		.idle_timeout_s = (unsigned)c->idle_timeout_s,
		.threads = (unsigned)c->threads,
		.workers = (unsigned)c->workers,
		.keep_alive_s = c->keep_alive_s,
		.stall_s = c->stall_s,
		.metrics = mx_metrics_text,
		.metrics_arg = m->metrics,
	};
	mx_status st = mx_notify_listen_fds(fds, &hc.n_fds, err);
	if (st == MX_OK)
		st = mx_http_create(&hc, &m->service, &m->http, err);
	if (st)
		return st;
	mx_metrics_set_http(m->metrics, m->http);
	for (size_t i = 0; mx_http_address(m->http, i); i++)
		mx_info("http", "listening on %s%s", mx_http_address(m->http, i),
		        hc.n_fds ? " (passed by the service manager)" : "");
	return MX_OK;
}

static mx_status start(struct mixd *m, struct mx_err *err)
{
	mx_status st = mx_service_init(&m->service, PACKAGE_VERSION, m->config->n_models);
	if (st == MX_OK)
		st = mx_host_name(m->config, &m->service);
	if (st)
		return mx_fail(err, st, "out of memory");
	m->metrics = mx_metrics_create(&m->service, m->config->metrics.vllm_names);
	if (!m->metrics)
		return mx_fail(err, MX_E_NOMEM, "out of memory");
	/* Sockets open first: clients that connect while weights load get a 503 with that reason. */
	st = start_http(m, err);
	if (st == MX_OK)
		st = mx_host_start(m->config, m->mixers, &m->service, &m->host, err);
	return st;
}

static void stop(struct mixd *m)
{
	mx_http_destroy(m->http);
	mx_host_destroy(m->host);
	mx_metrics_destroy(m->metrics);
	mx_service_destroy(&m->service);
	mx_registry_destroy(m->mixers);
	mx_config_free(m->config);
}

/* ---- SIGHUP ---- */

/* Applies the keys that can change at run time: the log's level and format, the models' aliases. */
static void reload(struct mixd *m)
{
	mx_notify_reloading();
	struct mx_config *fresh = NULL;
	struct mx_err err = {0};
	if (mx_config_load(m->config_file, &fresh, &err)) {
		print_error(&err);
		mx_error("mixd", "configuration not reloaded: the old one stays in force");
	} else {
		apply_log(fresh);
		for (size_t i = 0; i < m->service.n_models; i++) {
			struct mx_served *model = &m->service.models[i];
			const struct mx_config_model *found = NULL;
			for (size_t j = 0; j < fresh->n_models; j++)
				if (!strcmp(fresh->models[j].name, model->name))
					found = &fresh->models[j];
			if (!found)
				mx_warning("mixd", "model %s is missing in %s: it is served until a restart",
				           model->name, m->config_file);
			else if (mx_service_set_aliases(&m->service, model, found->aliases.items,
			                                found->aliases.n))
				mx_error("mixd", "aliases of %s not changed: out of memory", model->name);
		}
		mx_info("mixd", "reloaded log settings and aliases from %s", m->config_file);
		mx_config_free(fresh);
	}
	if (m->ready)
		mx_notify_ready();
}

/* ---- the signal loop ---- */

static sigset_t handled_signals(void)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	return set;
}

/* Waits for a signal and returns it, or 0 after a tick. */
static int wait_signal(const sigset_t *set)
{
	struct timespec tick = {.tv_nsec = TICK_MS * 1000000L};
	int sig = sigtimedwait(set, NULL, &tick);
	return sig > 0 ? sig : 0;
}

/* Reports the progress of loading, and READY=1 once all models are loaded. False if one failed. */
static bool watch_loading(struct mixd *m)
{
	size_t ready = 0;
	double progress = 0;
	for (size_t i = 0; i < m->service.n_models; i++) {
		const struct mx_served *model = &m->service.models[i];
		enum mx_served_state state = mx_served_state(model);
		if (state == MX_SERVED_FAILED)
			return false;
		ready += state == MX_SERVED_READY;
		progress += state == MX_SERVED_READY ? 1 : mx_served_progress(model);
	}
	if (ready < m->service.n_models) {
		mx_notify_status("loading models: %.0f %%", 100 * progress / (double)m->service.n_models);
		mx_notify_extend(30 * 1000000);
		return true;
	}
	m->ready = true;
	mx_notify_status("serving %zu model%s", ready, ready == 1 ? "" : "s");
	mx_notify_ready();
	mx_info("mixd", "ready");
	return true;
}

static bool engine_lost(const struct mixd *m)
{
	for (size_t i = 0; i < m->service.n_models; i++) {
		const struct mx_served *model = &m->service.models[i];
		enum mx_served_state state = mx_served_state(model);
		/* the scheduler is published with these states */
		if ((state == MX_SERVED_READY || state == MX_SERVED_DRAINING) &&
		    mx_sched_failed(model->sched))
			return true;
	}
	return false;
}

/* Lets accepted requests finish, until the deadline or a second signal. mx_http_destroy ends the
 * rest with an error. */
static void drain(struct mixd *m, const sigset_t *signals)
{
	mx_notify_stopping();
	mx_service_drain(&m->service);
	mx_http_stop_accepting(m->http);
	uint64_t deadline = mx_now_ns() + (uint64_t)(m->config->shutdown.drain_s * 1e9);
	mx_info("mixd", "draining: up to %.0f s, a second signal ends at once",
	        m->config->shutdown.drain_s);
	mx_notify_extend((uint64_t)(m->config->shutdown.drain_s * 1e6) + 10 * 1000000);
	while (!(mx_service_idle(&m->service) && mx_http_active(m->http) == 0)) {
		if (mx_now_ns() >= deadline) {
			mx_warning("mixd", "drain deadline passed: ending %u requests",
			           mx_http_active(m->http));
			return;
		}
		int sig = wait_signal(signals);
		if (sig == SIGTERM || sig == SIGINT) {
			mx_warning("mixd", "second signal: ending %u requests", mx_http_active(m->http));
			return;
		}
		mx_notify_alive();
	}
}

static int serve(struct mixd *m, const sigset_t *signals)
{
	uint64_t watchdog = mx_notify_watchdog_ns(), fed = 0;
	double stall_s = m->config->http.stall_s;
	for (;;) {
		int sig = wait_signal(signals);
		if (sig == SIGTERM || sig == SIGINT)
			break;
		if (sig == SIGHUP)
			reload(m);
		if (!m->ready && !watch_loading(m))
			return 1; /* the loader has logged the reason */
		if (engine_lost(m)) {
			mx_error("mixd", "an engine is lost: exiting to be restarted");
			return 1;
		}
		uint64_t now = mx_now_ns();
		if (watchdog && now - fed >= watchdog / 4 && mx_service_alive(&m->service, stall_s)) {
			mx_notify_alive();
			fed = now;
		}
	}
	drain(m, signals);
	return 0;
}

/* Prints the list of models; returns the exit status. */
static int list_models(void)
{
	struct mx_buf text = {0};
	mx_status st = mx_catalogue_write(&text);
	if (st == MX_OK)
		fputs(mx_buf_str(&text), stdout);
	mx_buf_free(&text);
	return st == MX_OK ? 0 : 1;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{"config", required_argument, NULL, 'c'}, {"check", no_argument, NULL, 'k'},
		{"list-models", no_argument, NULL, 'l'},  {"version", no_argument, NULL, 'V'},
		{"help", no_argument, NULL, 'h'},         {0}};
	struct mixd m = {.config_file = MIXD_SYSCONFDIR "/mixd/mixd.yaml"};
	bool check = false;
	for (int o; (o = getopt_long(argc, argv, "c:Vh", options, NULL)) != -1;) {
		switch (o) {
		case 'c': m.config_file = optarg; break;
		case 'k': check = true; break;
		case 'l': return list_models();
		case 'V': puts("mixd " PACKAGE_VERSION); return 0;
		case 'h': usage(stdout); return 0;
		default: usage(stderr); return 2;
		}
	}
	if (optind < argc) {
		fprintf(stderr, "mixd: unexpected argument \"%s\"\n", argv[optind]);
		usage(stderr);
		return 2;
	}

	mx_heap_setup();
	/* Before any thread starts, so that all inherit the mask. A client that hangs up must not end
	 * the process by SIGPIPE. */
	sigset_t signals = handled_signals();
	pthread_sigmask(SIG_BLOCK, &signals, NULL);
	signal(SIGPIPE, SIG_IGN);
	mx_log_set_journal(mx_notify_stderr_is_journal());

	struct mx_err err = {0};
	mx_status st = mx_config_load(m.config_file, &m.config, &err);
	if (st == MX_OK) {
		apply_log(m.config);
		st = mx_host_modules(m.config, &m.mixers, &err);
	}
	int rc = 0;
	if (st == MX_OK && check) {
		st = mx_host_check(m.config, m.mixers, stdout, &err);
	} else if (st == MX_OK) {
		st = start(&m, &err);
		if (st == MX_OK)
			rc = serve(&m, &signals);
	}
	if (st) {
		print_error(&err);
		rc = 1;
	}
	stop(&m);
	return rc;
}
