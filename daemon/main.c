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
#include "base/paths.h"
#include "daemon/admin/admin.h"
#include "daemon/cluster.h"
#include "daemon/config.h"
#include "daemon/exposed.h"
#include "daemon/files_check.h"
#include "daemon/grpc/front.h"
#include "daemon/host.h"
#include "daemon/keys_file.h"
#include "daemon/http/server.h"
#include "daemon/metrics.h"
#include "daemon/model_option.h"
#include "daemon/notify.h"
#include "daemon/passed.h"
#include "daemon/progress.h"
#include "daemon/reload.h"
#include "daemon/request_plan.h"
#include "daemon/serve/service.h"
#include "daemon/serve/tls_check.h"
#include "daemon/version.h"
#include "daemon/weights.h"
#include "daemon/worker.h"
#include "model/catalogue.h"

/* Everything the process holds, in the order in which it is built. */
struct mixd {
	const char *config_file; /* NULL: the command line has a model */
	struct mx_config *config;
	struct mx_registry *mixers;
	struct mx_service service;
	struct mx_keys *keys; /* the service's */
	struct mx_launch launch;
	struct mx_cluster *cluster; /* of several hosts; NULL: there is one */
	struct mx_host *host;
	struct mx_reload *reload;
	struct mx_admin *admin; /* NULL: there is no socket */
	bool reloading;         /* the service manager was told so */
	struct mx_metrics *metrics;
	struct mx_front *http;      /* one of fronts */
	struct mx_front *fronts[3]; /* [n_fronts] in the order in which they were started */
	size_t n_fronts;
	const struct mx_grpc_table *grpc_table; /* of the module */
	struct mx_front *grpc;                  /* one of fronts; NULL: gRPC is not served */
	struct mx_progress loading;
	bool ready; /* READY=1 was sent */
};

enum { TICK_MS = 100, OPERATOR_CONNECTIONS = 64 };

#define DEFAULT_CONFIG MIXD_SYSCONFDIR "/mixd/mixd.yaml"

static void usage(FILE *out)
{
	fputs(
		"usage: mixd [--config FILE] [--check [--deep]]\n"
		"       mixd --model DIR|FILE.gguf [--name NAME] [--port PORT] [--device DEVICE] [--check "
		"[--deep]]\n"
		"       mixd [--config FILE] --worker --join HOST:PORT [--host N]\n"
		"       mixd [--config FILE] --launched\n"
		"       mixd --list-models\n"
		"       mixd --hash-key\n"
		"\n"
		"  -c, --config FILE    configuration (default " DEFAULT_CONFIG ")\n"
		"  -m, --model PATH     serve this checkpoint, a folder or a GGUF file (--model may be\n"
		"                       left out before FILE.gguf), without a configuration file;\n"
		"                       prints the configuration that this stands for\n"
		"      --name NAME      its id in requests (default: the folder's name)\n"
		"      --port PORT      of 127.0.0.1 (default 8080; 0 = any free one)\n"
		"      --device DEVICE  cpu (default), cuda or cuda:N\n"
		"      --check          validate, print the memory plan of every model, and exit\n"
		"      --deep           with --check: read all weights too, and look for NaN and infinity\n"
		"      --worker         compute a part of the model for another host (cluster.hosts)\n"
		"      --join HOST:PORT the host that serves the requests, and its cluster.listen\n"
		"      --host N         of a worker: its number, 1 or more (default: any)\n"
		"      --launched       serve or work, as Slurm, Kubernetes or MIXD_HOST say\n"
		"      --list-models    print which models can be loaded, and exit\n"
		"      --hash-key       read a key from standard input, or make one, and print its line\n"
		"                       for the file of keys\n"
		"  -V, --version        print the version and what the build has, and exit\n"
		"  -h, --help           print this and exit\n",
		out);
}

/* For somebody who starts mixd for the first time. */
static void explain_start(void)
{
	fputs("mixd: there is no configuration file " DEFAULT_CONFIG ".\n"
	      "Either serve one model, a folder in Hugging Face form or a GGUF file, with the "
	      "defaults:\n"
	      "    mixd --model DIR\n"
	      "or write that file, or another and name it (" DEFAULT_CONFIG ".example has\n"
	      "every key with its default; man mixd.yaml):\n"
	      "    mixd --config FILE\n",
	      stderr);
}

static void print_error(const struct mx_err *err)
{
	mx_error("mixd", "%s%s%s", err->where, err->where[0] ? ": " : "", err->text);
}

/* ---- start ---- */

/* Takes a front end that was started. `how`: for the log, how it got its sockets. */
static void add_front(struct mixd *m, struct mx_front *front, const struct mx_config_tls *tls,
                      const char *how)
{
	m->fronts[m->n_fronts++] = front;
	mx_metrics_add_front(m->metrics, front);
	for (size_t i = 0; front->ops->address(front, i); i++)
		mx_info(front->ops->name, "listening on %s%s", front->ops->address(front, i), how);
	mx_exposed_warn(
		front, (struct mx_protection){.encrypted = tls->cert != NULL,
	                                  .knows_clients = tls->client_ca || mx_keys_wanted(m->keys)});
}

/* Starts the listener for operators, if there is to be one. It is the first to start and to end:
 * its /metrics asks the others. */
static mx_status start_operators(struct mixd *m, struct mx_err *err)
{
	const struct mx_config *c = m->config;
	const struct mx_http_config hc = {
		.role = MX_HTTP_OPERATORS,
		.listen = c->admin.listen.items,
		.n_listen = c->admin.listen.n,
		.max_connections = OPERATOR_CONNECTIONS,
		.idle_timeout_s = (unsigned)c->http.idle_timeout_s,
		.header_timeout_s = (unsigned)c->http.header_timeout_s,
		.threads = 1,
		.stall_s = c->http.stall_s,
		.metrics = mx_metrics_text,
		.metrics_arg = m->metrics,
	};
	if (!c->admin.listen.n)
		return MX_OK;
	struct mx_front *front = NULL;
	mx_status st = mx_http_create(&hc, &m->service, &front, err);
	if (st)
		return st;
	m->fronts[m->n_fronts++] = front;
	for (size_t i = 0; front->ops->address(front, i); i++)
		mx_info("admin", "probes and metrics on %s", front->ops->address(front, i));
	return MX_OK;
}

static mx_status start_http(struct mixd *m, struct mx_err *err)
{
	const struct mx_config_http *c = &m->config->http;
	int fds[MX_NOTIFY_MAX_FDS];
	struct mx_http_config hc = {
		.role = m->config->admin.listen.n ? MX_HTTP_CLIENTS : MX_HTTP_ALL,
		.listen = c->listen.items,
		.n_listen = c->listen.n,
		.fds = fds,
		.max_body_bytes = c->max_body_bytes,
		.body_memory = c->body_memory == MX_CONFIG_AUTO ? 0 : c->body_memory,
		.max_connections = (unsigned)c->max_connections,
		.idle_timeout_s = (unsigned)c->idle_timeout_s,
		.header_timeout_s = (unsigned)c->header_timeout_s,
		.threads = (unsigned)c->threads,
		.workers = (unsigned)c->workers,
		.keep_alive_s = c->keep_alive_s,
		.stall_s = c->stall_s,
		.allow_unknown_fields = c->allow_unknown_fields,
		.cors_origins = c->cors_origins.items,
		.n_cors_origins = c->cors_origins.n,
		.tls = {c->tls.cert, c->tls.key, c->tls.client_ca},
		.tls_min_version = c->tls.min_version,
		.page = c->page,
		.metrics = mx_metrics_text,
		.metrics_arg = m->metrics,
	};
	m->service.answers.limit = c->answer_memory;
	struct mx_front *front = NULL;
	mx_status st = mx_notify_listen_fds(fds, &hc.n_fds, err);
	const struct mx_service_limits limits = mx_http_limits(&hc);
	if (st == MX_OK)
		st = mx_service_start(&m->service, &limits, err);
	if (st == MX_OK)
		st = start_operators(m, err);
	if (st == MX_OK)
		st = mx_http_create(&hc, &m->service, &front, err);
	if (st)
		return st;
	m->http = front;
	add_front(m, front, &c->tls, hc.n_fds ? " (passed by the service manager)" : "");
	if (hc.n_fds && c->listen_given)
		mx_passed_compare(&c->listen, front);
	mx_info("http", "requests take at most %.1f MiB, %.1f MiB of them for answers",
	        (double)mx_request_plan_bytes(m->config) / 0x1p20, (double)c->answer_memory / 0x1p20);
	return MX_OK;
}

static mx_status start_grpc(struct mixd *m, struct mx_err *err)
{
	const struct mx_config_grpc *c = &m->config->grpc;
	const struct mx_grpc_config gc = {
		.listen = c->listen.items,
		.n_listen = c->listen.n,
		.tls = {c->tls.cert, c->tls.key, c->tls.client_ca},
		.max_message_bytes = m->config->http.max_body_bytes,
		.memory = c->memory,
		.max_calls = (unsigned)c->max_calls,
		.idle_timeout_s = (unsigned)c->idle_timeout_s,
		.min_ping_s = (unsigned)c->min_ping_s,
		.threads = (unsigned)c->threads,
	};
	if (!c->listen.n)
		return MX_OK;
	mx_status st = m->grpc_table->create(&gc, &m->service, &m->grpc, err);
	if (st == MX_OK)
		add_front(m, m->grpc, &c->tls, "");
	return st;
}

/* Adds a word to a list that is separated by ", ". */
static void add_word(struct mx_buf *list, const char *word)
{
	mx_buf_puts(list, list->len ? ", " : "");
	mx_buf_puts(list, word);
}

/* Reads the files of TLS again, wherever they are named: they are renewed under the same names. The
 * names are those of the start. A reload has checked the ones of the fresh configuration: these
 * fail only if the names differ, or if they were written meanwhile. */
static void reload_tls(struct mixd *m, struct mx_buf *read)
{
	const struct mx_config_tls *const tls[] = {&m->config->http.tls, &m->config->grpc.tls};
	struct mx_front *const fronts[] = {m->http, m->grpc};
	for (size_t i = 0; i < 2; i++) {
		bool grpc = i == 1;
		struct mx_front *f = fronts[i];
		struct mx_err err = {0};
		if (!f || !tls[i]->cert)
			continue;
		/* gRPC's library says of a faulty pair only that the next handshake failed */
		const struct mx_tls_paths paths = {tls[i]->cert, tls[i]->key, tls[i]->client_ca};
		mx_status st = mx_tls_check(&paths, NULL, &err);
		if (st == MX_OK)
			st = grpc ? m->grpc_table->reload_tls(f, &err) : mx_http_reload_tls(f, &err);
		if (st == MX_OK) {
			add_word(read, grpc ? "grpc.tls" : "http.tls");
			mx_info(f->ops->name, "read the files of TLS again");
		} else {
			mx_error(f->ops->name, "%s: %s: the old files of TLS stay in force", err.where,
			         err.text);
		}
	}
}

/* Requests need a key of the file from now on, or none if there is no file. */
static mx_status use_keys(struct mixd *m, const char *file, struct mx_err *err)
{
	mx_status st = MX_OK;
	if (file)
		st = mx_keys_file_load(file, m->keys, err);
	else if ((st = mx_keys_set(m->keys, NULL, 0, false)) != MX_OK)
		mx_fail_at(err, st, "keys", "out of memory");
	if (st == MX_OK && file)
		mx_info("mixd", "requests need a key of %s", file);
	return st;
}

/* Applies what a reload changes in the front ends. */
static void apply(void *arg, const struct mx_config *fresh, struct mx_buf *read)
{
	struct mixd *m = arg;
	struct mx_err err = {0};
	if (!fresh->keys && mx_keys_wanted(m->keys))
		mx_warning("mixd", "keys: there is no file any more, and requests need no key");
	if (use_keys(m, fresh->keys, &err))
		mx_error("mixd", "%s: %s: the old keys stay in force", err.where, err.text);
	else if (fresh->keys)
		add_word(read, "keys");
	const struct mx_strings *origins = &fresh->http.cors_origins;
	if (mx_http_set_cors(m->http, origins->items, origins->n))
		mx_error("http", "http.cors.origins stays as it is: out of memory");
	mx_http_set_page(m->http, fresh->http.page);
	reload_tls(m, read);
}

static mx_status start_reloads(struct mixd *m, struct mx_err *err)
{
	const struct mx_reload_setup setup = {
		.config = m->config,
		.from_file = m->config_file != NULL,
		.service = &m->service,
		.host = m->host,
		.apply = apply,
		.arg = m,
	};
	mx_status st = mx_reload_start(&setup, &m->reload);
	return st == MX_OK ? MX_OK : mx_fail(err, st, "out of memory");
}

/* Returns the number of requests that are being served. */
static unsigned active(const struct mixd *m)
{
	unsigned n = 0;
	for (size_t i = 0; i < m->n_fronts; i++)
		n += m->fronts[i]->ops->active(m->fronts[i]);
	return n;
}

static unsigned active_of(void *arg)
{
	return active(arg);
}

/* Opens the admin socket, if there is to be one. */
static mx_status start_admin(struct mixd *m, struct mx_err *err)
{
	char path[4096];
	struct mx_admin_setup setup = {
		.path = m->config->admin.socket,
		.service = &m->service,
		.host = m->host,
		.reload = m->reload,
		.active = active_of,
		.arg = m,
	};
	if (setup.path && !strcmp(setup.path, MX_CONFIG_SOCKET_AUTO)) {
		const char *folders = mx_paths_of("RUNTIME_DIRECTORY", "");
		char folder[4000];
		setup.path = NULL;
		if (mx_paths_next(&folders, folder, sizeof folder)) {
			snprintf(path, sizeof path, "%s/admin.sock", folder);
			setup.path = path;
		}
	}
	mx_status st = setup.path ? mx_admin_start(&setup, &m->admin, err) : MX_OK;
	if (st == MX_OK && setup.path)
		mx_info("admin", "listening on %s", setup.path);
	return st;
}

static mx_status start(struct mixd *m, struct mx_err *err)
{
	mx_status st = mx_service_init(&m->service, PACKAGE_VERSION);
	if (st == MX_OK)
		st = mx_keys_create(&m->keys);
	m->service.keys = m->keys;
	if (st == MX_OK)
		st = mx_host_create(m->config, m->mixers, &m->service, m->cluster, &m->host);
	if (st)
		return mx_fail(err, st, "out of memory");
	m->metrics = mx_metrics_create(&m->service, m->config->metrics.vllm_names, m->cluster);
	if (!m->metrics)
		return mx_fail(err, MX_E_NOMEM, "out of memory");
	st = use_keys(m, m->config->keys, err);
	/* Sockets open first: clients that connect while weights load get a 503 with that reason. */
	if (st == MX_OK)
		st = start_http(m, err);
	if (st == MX_OK)
		st = start_grpc(m, err);
	if (st == MX_OK)
		st = mx_host_start(m->host, err);
	if (st == MX_OK)
		st = start_reloads(m, err);
	if (st == MX_OK)
		st = start_admin(m, err);
	return st;
}

static void stop(struct mixd *m)
{
	mx_admin_stop(m->admin);
	mx_reload_stop(m->reload); /* it changes the others */
	/* in the order of their start: the first has /metrics, which asks the others */
	for (size_t i = 0; i < m->n_fronts; i++)
		m->fronts[i]->ops->destroy(m->fronts[i]);
	mx_cluster_stop(m->cluster, "it has stopped"); /* the loader may wait for hosts */
	mx_host_destroy(m->host);
	mx_cluster_close(m->cluster);
	mx_metrics_destroy(m->metrics);
	mx_service_destroy(&m->service);
	mx_keys_destroy(m->keys);
	mx_registry_destroy(m->mixers);
	mx_config_free(m->config);
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

/* Tells the service manager and a terminal how far loading is. */
static void report_loading(struct mixd *m, const struct mx_served_set *models)
{
	uint64_t done = 0, all = 0;
	for (size_t i = 0; i < models->n; i++) {
		uint64_t d, a;
		mx_served_progress_bytes(models->items[i], &d, &a);
		done += d;
		all += a;
	}
	char text[100], bar[40], line[160];
	mx_progress_at(&m->loading, mx_now_ns(), done, all);
	mx_progress_text(&m->loading, text, sizeof text);
	mx_progress_bar(&m->loading, 20, bar, sizeof bar);
	snprintf(line, sizeof line, "loading %s %s", bar, text);
	mx_log_status(line);
	mx_notify_status("loading models: %s", text);
	mx_notify_extend(30 * 1000000);
}

static void tell_ready(size_t models)
{
	mx_notify_status("serving %zu model%s", models, models == 1 ? "" : "s");
	mx_notify_ready();
}

/* For who started mixd with --model: where to look. A comment, since standard output has a
 * configuration (configure_model). */
static void print_address(const struct mixd *m)
{
	printf("# ready: http://%s/\n", m->http->ops->address(m->http, 0));
	fflush(stdout);
}

/* Reports the progress of loading, and READY=1 once all models are loaded. False if one failed. */
static bool watch_loading(struct mixd *m)
{
	struct mx_served_set models;
	mx_service_take_all(&m->service, &models);
	size_t ready = 0, failed = 0, n = models.n;
	for (size_t i = 0; i < n; i++) {
		enum mx_served_state state = mx_served_state(models.items[i]);
		failed += state == MX_SERVED_FAILED;
		ready += state == MX_SERVED_READY;
	}
	if (ready < n && !failed)
		report_loading(m, &models);
	mx_served_set_release(&models);
	if (ready < n && !failed)
		return true;
	mx_log_status("");
	if (failed)
		return false;
	m->ready = true;
	tell_ready(n);
	mx_info("mixd", "ready");
	if (!m->config_file)
		print_address(m);
	return true;
}

/* Says for shutdown.notice_s, or until a second signal, that it is not ready, while it serves as
 * before: a load balancer needs some time to see it. */
static void give_notice(struct mixd *m, const sigset_t *signals)
{
	double notice_s = m->config->shutdown.notice_s;
	uint64_t end = mx_now_ns() + (uint64_t)(notice_s * 1e9);
	if (notice_s <= 0)
		return;
	mx_service_leave(&m->service);
	mx_info("mixd", "not ready any more: serving for %.1f s yet, a second signal ends that",
	        notice_s);
	mx_notify_extend((uint64_t)(notice_s * 1e6) + 10 * 1000000);
	for (int sig = 0; mx_now_ns() < end && sig != SIGTERM && sig != SIGINT;) {
		sig = wait_signal(signals);
		mx_notify_alive();
	}
}

/* Lets accepted requests finish, until the deadline or a second signal. The end of the front ends
 * ends the rest with an error. */
static void drain(struct mixd *m, const sigset_t *signals)
{
	mx_notify_stopping();
	give_notice(m, signals);
	mx_service_drain(&m->service);
	for (size_t i = 0; i < m->n_fronts; i++)
		m->fronts[i]->ops->stop_accepting(m->fronts[i]);
	double drain_s = mx_reload_drain_s(m->reload);
	uint64_t deadline = mx_now_ns() + (uint64_t)(drain_s * 1e9);
	mx_info("mixd", "draining: up to %.0f s, a second signal ends at once", drain_s);
	mx_notify_extend((uint64_t)(drain_s * 1e6) + 10 * 1000000);
	while (!(mx_service_idle(&m->service) && active(m) == 0)) {
		if (mx_now_ns() >= deadline) {
			mx_warning("mixd", "drain deadline passed: ending %u requests", active(m));
			return;
		}
		int sig = wait_signal(signals);
		if (sig == SIGTERM || sig == SIGINT) {
			mx_warning("mixd", "second signal: ending %u requests", active(m));
			return;
		}
		mx_notify_alive();
	}
}

/* Asks for a reload if `wanted`, and keeps the service manager informed of those that run. */
static void watch_reload(struct mixd *m, bool wanted)
{
	if (wanted)
		mx_reload_request(m->reload);
	bool busy = mx_reload_busy(m->reload);
	if (wanted || (busy && !m->reloading)) {
		mx_notify_reloading();
		mx_notify_status("reloading the configuration");
		m->reloading = true;
	} else if (busy) {
		mx_notify_extend(30 * 1000000);
	}
	if (busy || !m->reloading)
		return;
	m->reloading = false;
	struct mx_served_set models;
	mx_service_take_all(&m->service, &models);
	size_t n = models.n;
	mx_served_set_release(&models);
	if (m->ready)
		tell_ready(n);
}

static int serve(struct mixd *m, const sigset_t *signals)
{
	uint64_t watchdog = mx_notify_watchdog_ns(), fed = 0;
	double stall_s = m->config->http.stall_s;
	for (;;) {
		int sig = wait_signal(signals);
		if (sig == SIGTERM || sig == SIGINT)
			break;
		watch_reload(m, sig == SIGHUP);
		if (!m->ready && !watch_loading(m))
			return 1; /* the loader has logged the reason */
		if (mx_service_lost(&m->service) || mx_cluster_lost(m->cluster)) {
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

/* What the command line says. */
struct options {
	const char *config_file;
	struct mx_model_option model;
	struct mx_launch_options launch;
	bool check, deep; /* deep: all weights are read */
};

/* Stores the value of an option that may be given once. Returns false if it was given before. */
static bool take_once(const char *name, const char **out)
{
	if (*out) {
		fprintf(stderr, "mixd: --%s is given twice: \"%s\" and \"%s\"\n", name, *out, optarg);
		return false;
	}
	*out = optarg;
	return true;
}

/* True for the name of a GGUF file, which may be given without --model. */
static bool is_gguf_name(const char *arg)
{
	size_t n = strlen(arg);
	return n > 5 && !strcmp(arg + n - 5, ".gguf");
}

/* Parses the command line. Returns an exit status, or -1 to continue. */
static int read_options(int argc, char **argv, struct options *o)
{
	static const struct option options[] = {
		{"config", required_argument, NULL, 'c'}, {"check", no_argument, NULL, 'k'},
		{"list-models", no_argument, NULL, 'l'},  {"deep", no_argument, NULL, 'D'},
		{"worker", no_argument, NULL, 'W'},       {"join", required_argument, NULL, 'j'},
		{"host", required_argument, NULL, 'H'},   {"launched", no_argument, NULL, 'L'},
		{"hash-key", no_argument, NULL, 'K'},     {"model", required_argument, NULL, 'm'},
		{"name", required_argument, NULL, 'n'},   {"port", required_argument, NULL, 'p'},
		{"device", required_argument, NULL, 'd'}, {"version", no_argument, NULL, 'V'},
		{"help", no_argument, NULL, 'h'},         {0}};
	for (int c; (c = getopt_long(argc, argv, "c:m:Vh", options, NULL)) != -1;) {
		bool fine = true;
		switch (c) {
		case 'c': fine = take_once("config", &o->config_file); break;
		case 'k': o->check = true; break;
		case 'D': o->check = o->deep = true; break;
		case 'm': fine = take_once("model", &o->model.model); break;
		case 'n': fine = take_once("name", &o->model.name); break;
		case 'p': fine = take_once("port", &o->model.port); break;
		case 'd': fine = take_once("device", &o->model.device); break;
		case 'W': o->launch.worker = true; break;
		case 'L': o->launch.launched = true; break;
		case 'j': fine = take_once("join", &o->launch.join); break;
		case 'H': fine = take_once("host", &o->launch.host); break;
		case 'l': return list_models();
		case 'K': return mx_hash_key(isatty(STDIN_FILENO) ? NULL : stdin, stdout);
		case 'V': mx_version_print(stdout); return 0;
		case 'h': usage(stdout); return 0;
		default: usage(stderr); return 2;
		}
		if (!fine)
			return 2;
	}
	if (optind < argc && !o->model.model && is_gguf_name(argv[optind]))
		o->model.model = argv[optind++];
	if (optind < argc) {
		fprintf(stderr, "mixd: unexpected argument \"%s\"\n", argv[optind]);
		usage(stderr);
		return 2;
	}
	if (o->config_file && o->model.model) {
		fputs("mixd: --config and --model exclude each other\n", stderr);
		return 2;
	}
	const struct mx_launch_options *l = &o->launch;
	if ((l->worker && l->launched) || ((l->join || l->host) && !l->worker) ||
	    ((l->worker || l->launched) && (o->model.model || o->check))) {
		fputs(
			"mixd: --join and --host belong to --worker; --worker, --launched, --model and --check "
			"exclude each other\n",
			stderr);
		return 2;
	}
	return -1;
}

/* Makes the configuration of --model, and prints it as a file. Returns an exit status, or -1 to
 * continue. */
static int configure_model(const struct mx_model_option *o, struct mx_config **out)
{
	struct mx_buf yaml = {.limit = 1 << 20};
	struct mx_err err = {0};
	mx_status st = mx_model_option_yaml(o, &yaml, &err);
	if (st == MX_OK)
		st = mx_config_parse("command line", mx_buf_str(&yaml), yaml.len, out, &err);
	if (st == MX_OK) {
		printf("# mixd --config FILE does the same with this FILE:\n%s", mx_buf_str(&yaml));
		fflush(stdout);
	} else {
		fprintf(stderr, "mixd: %s%s%s\n", err.where, err.where[0] ? ": " : "", err.text);
	}
	mx_buf_free(&yaml);
	return st == MX_OK ? -1 : 2;
}

/* Loads the configuration that the command line names. Returns an exit status, or -1 to continue.
 */
static int configure(const struct options *o, struct mixd *m)
{
	const struct mx_model_option *c = &o->model;
	if (c->model || c->name || c->port || c->device)
		return configure_model(c, &m->config);
	m->config_file = o->config_file ? o->config_file : DEFAULT_CONFIG;
	if (!o->config_file && access(DEFAULT_CONFIG, F_OK) && errno == ENOENT) {
		explain_start();
		return 2;
	}
	struct mx_err err = {0};
	if (mx_config_load(m->config_file, &m->config, &err) == MX_OK)
		return -1;
	print_error(&err);
	return 1;
}

/* Finds out which of several hosts this is, and opens its side of them. */
static mx_status open_cluster(struct mixd *m, const struct mx_launch_options *o, struct mx_err *err)
{
	const struct mx_config_cluster *c = &m->config->cluster;
	if (c->hosts < 2 && !o->worker && !o->launched)
		return MX_OK;
	mx_status st = mx_launch_find(o, c->listen, c->hosts, &m->launch, err);
	return st == MX_OK ? mx_cluster_open(m->config, &m->launch, &m->cluster, err) : st;
}

/* Checks or serves what is configured. Returns the exit status. */
static int run(struct mixd *m, const struct options *o, const sigset_t *signals)
{
	struct mx_err err = {0};
	int rc = 0;
	mx_reload_log(m->config);
	mx_status st = mx_host_modules(m->config, &m->mixers, &err);
	if (st == MX_OK)
		st = mx_files_check(m->config, &err);
	if (st == MX_OK && m->config->grpc.listen.n)
		st = mx_grpc_load(&m->grpc_table, &err);
	if (st == MX_OK && o->check) {
		st = mx_host_check(m->config, m->mixers, stdout, &err);
		if (st == MX_OK && o->deep)
			st = mx_weights_check(m->config, stdout, &err);
	} else if (st == MX_OK) {
		st = open_cluster(m, &o->launch, &err);
		if (st == MX_OK && m->launch.worker)
			return mx_worker_run(m->config, m->mixers, m->cluster, signals);
		if (st == MX_OK)
			st = start(m, &err);
		if (st == MX_OK)
			rc = serve(m, signals);
	}
	if (st == MX_OK)
		return rc;
	print_error(&err);
	return 1;
}

int main(int argc, char **argv)
{
	struct options o = {0};
	int rc = read_options(argc, argv, &o);
	if (rc >= 0)
		return rc;

	mx_heap_setup();
	/* Before any thread starts, so that all inherit the mask. A client that hangs up must not end
	 * the process by SIGPIPE. */
	sigset_t signals = handled_signals();
	pthread_sigmask(SIG_BLOCK, &signals, NULL);
	signal(SIGPIPE, SIG_IGN);
	mx_log_set_journal(mx_notify_stderr_is_journal());

	struct mixd m = {0};
	rc = configure(&o, &m);
	if (rc < 0)
		rc = run(&m, &o, &signals);
	stop(&m);
	return rc;
}
