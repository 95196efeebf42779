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
#include "daemon/grpc/front.h"
#include "daemon/host.h"
#include "daemon/http/server.h"
#include "daemon/metrics.h"
#include "daemon/model_option.h"
#include "daemon/notify.h"
#include "daemon/passed.h"
#include "daemon/progress.h"
#include "daemon/reload.h"
#include "daemon/request_plan.h"
#include "daemon/serve/service.h"
#include "daemon/weights.h"
#include "model/catalogue.h"

/* Everything the process holds, in the order in which it is built. */
struct mixd {
	const char *config_file; /* NULL: the command line has a model */
	struct mx_config *config;
	struct mx_registry *mixers;
	struct mx_service service;
	struct mx_host *host;
	struct mx_metrics *metrics;
	struct mx_front *fronts[2]; /* [n_fronts] in the order in which they were started */
	size_t n_fronts;
	const struct mx_grpc_table *grpc_table; /* of the module */
	struct mx_front *grpc;                  /* one of fronts; NULL: gRPC is not served */
	struct mx_progress loading;
	bool ready; /* READY=1 was sent */
};

enum { TICK_MS = 100 };

#define DEFAULT_CONFIG MIXD_SYSCONFDIR "/mixd/mixd.yaml"

static void usage(FILE *out)
{
	fputs(
		"usage: mixd [--config FILE] [--check [--deep]]\n"
		"       mixd --model DIR [--name NAME] [--port PORT] [--device DEVICE] [--check [--deep]]\n"
		"       mixd --list-models\n"
		"\n"
		"  -c, --config FILE    configuration (default " DEFAULT_CONFIG ")\n"
		"  -m, --model DIR      serve this checkpoint, without a configuration file;\n"
		"                       prints the configuration that this stands for\n"
		"      --name NAME      its id in requests (default: the folder's name)\n"
		"      --port PORT      of 127.0.0.1 (default 8080; 0 = any free one)\n"
		"      --device DEVICE  cpu (default), cuda or cuda:N\n"
		"      --check          validate, print the memory plan of every model, and exit\n"
		"      --deep           with --check: read all weights too, and look for NaN and infinity\n"
		"      --list-models    print which models can be loaded, and exit\n"
		"  -V, --version        print the version and exit\n"
		"  -h, --help           print this and exit\n",
		out);
}

/* For somebody who starts mixd for the first time. */
static void explain_start(void)
{
	fputs("mixd: there is no configuration file " DEFAULT_CONFIG ".\n"
	      "Either serve one model, a folder in Hugging Face form, with the defaults:\n"
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
static void add_front(struct mixd *m, struct mx_front *front, const char *how)
{
	m->fronts[m->n_fronts++] = front;
	mx_metrics_add_front(m->metrics, front);
	for (size_t i = 0; front->ops->address(front, i); i++)
		mx_info(front->ops->name, "listening on %s%s", front->ops->address(front, i), how);
}

static mx_status start_http(struct mixd *m, struct mx_err *err)
{
	const struct mx_config_http *c = &m->config->http;
	int fds[MX_NOTIFY_MAX_FDS];
	struct mx_http_config hc = {
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
		st = mx_http_create(&hc, &m->service, &front, err);
	if (st)
		return st;
	add_front(m, front, hc.n_fds ? " (passed by the service manager)" : "");
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
		.threads = (unsigned)c->threads,
	};
	if (!c->listen.n)
		return MX_OK;
	mx_status st = mx_grpc_load(&m->grpc_table, err);
	if (st == MX_OK)
		st = m->grpc_table->create(&gc, &m->service, &m->grpc, err);
	if (st == MX_OK)
		add_front(m, m->grpc, "");
	return st;
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
		st = start_grpc(m, err);
	if (st == MX_OK)
		st = mx_host_start(m->config, m->mixers, &m->service, &m->host, err);
	return st;
}

static void stop(struct mixd *m)
{
	/* HTTP first: its /metrics asks the others */
	for (size_t i = 0; i < m->n_fronts; i++)
		m->fronts[i]->ops->destroy(m->fronts[i]);
	mx_host_destroy(m->host);
	mx_metrics_destroy(m->metrics);
	mx_service_destroy(&m->service);
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
static void report_loading(struct mixd *m)
{
	uint64_t done = 0, all = 0;
	for (size_t i = 0; i < m->service.n_models; i++) {
		uint64_t d, a;
		mx_served_progress_bytes(&m->service.models[i], &d, &a);
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

/* Reports the progress of loading, and READY=1 once all models are loaded. False if one failed. */
static bool watch_loading(struct mixd *m)
{
	size_t ready = 0;
	for (size_t i = 0; i < m->service.n_models; i++) {
		enum mx_served_state state = mx_served_state(&m->service.models[i]);
		if (state == MX_SERVED_FAILED) {
			mx_log_status("");
			return false;
		}
		ready += state == MX_SERVED_READY;
	}
	if (ready < m->service.n_models) {
		report_loading(m);
		return true;
	}
	m->ready = true;
	mx_log_status("");
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

/* Returns the number of requests that are being served. */
static unsigned active(const struct mixd *m)
{
	unsigned n = 0;
	for (size_t i = 0; i < m->n_fronts; i++)
		n += m->fronts[i]->ops->active(m->fronts[i]);
	return n;
}

/* Lets accepted requests finish, until the deadline or a second signal. The end of the front ends
 * ends the rest with an error. */
static void drain(struct mixd *m, const sigset_t *signals)
{
	mx_notify_stopping();
	mx_service_drain(&m->service);
	for (size_t i = 0; i < m->n_fronts; i++)
		m->fronts[i]->ops->stop_accepting(m->fronts[i]);
	uint64_t deadline = mx_now_ns() + (uint64_t)(m->config->shutdown.drain_s * 1e9);
	mx_info("mixd", "draining: up to %.0f s, a second signal ends at once",
	        m->config->shutdown.drain_s);
	mx_notify_extend((uint64_t)(m->config->shutdown.drain_s * 1e6) + 10 * 1000000);
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

/* Reads the files of TLS again, wherever they are named: they are renewed under the same names. */
static void reload_tls(struct mixd *m)
{
	struct mx_err err = {0};
	if (!m->grpc || !m->config->grpc.tls.cert)
		return;
	if (m->grpc_table->reload_tls(m->grpc, &err) == MX_OK)
		mx_info("grpc", "read the files of TLS again");
	else
		mx_error("grpc", "%s: %s: the old files of TLS stay in force", err.where, err.text);
}

static void reload(struct mixd *m)
{
	mx_notify_reloading();
	if (m->config_file)
		mx_reload(m->config, &m->service);
	else
		mx_info("mixd", "nothing to reload: the configuration is the command line's");
	reload_tls(m);
	if (m->ready)
		mx_notify_ready();
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

/* What the command line says. */
struct options {
	const char *config_file;
	struct mx_model_option model;
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

/* Parses the command line. Returns an exit status, or -1 to continue. */
static int read_options(int argc, char **argv, struct options *o)
{
	static const struct option options[] = {{"config", required_argument, NULL, 'c'},
	                                        {"check", no_argument, NULL, 'k'},
	                                        {"list-models", no_argument, NULL, 'l'},
	                                        {"deep", no_argument, NULL, 'D'},
	                                        {"model", required_argument, NULL, 'm'},
	                                        {"name", required_argument, NULL, 'n'},
	                                        {"port", required_argument, NULL, 'p'},
	                                        {"device", required_argument, NULL, 'd'},
	                                        {"version", no_argument, NULL, 'V'},
	                                        {"help", no_argument, NULL, 'h'},
	                                        {0}};
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
		case 'l': return list_models();
		case 'V': puts("mixd " PACKAGE_VERSION); return 0;
		case 'h': usage(stdout); return 0;
		default: usage(stderr); return 2;
		}
		if (!fine)
			return 2;
	}
	if (optind < argc) {
		fprintf(stderr, "mixd: unexpected argument \"%s\"\n", argv[optind]);
		usage(stderr);
		return 2;
	}
	if (o->config_file && o->model.model) {
		fputs("mixd: --config and --model exclude each other\n", stderr);
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

/* Checks or serves what is configured. Returns the exit status. */
static int run(struct mixd *m, const struct options *o, const sigset_t *signals)
{
	struct mx_err err = {0};
	int rc = 0;
	mx_reload_log(m->config);
	mx_status st = mx_host_modules(m->config, &m->mixers, &err);
	if (st == MX_OK && o->check) {
		st = mx_host_check(m->config, m->mixers, stdout, &err);
		if (st == MX_OK && o->deep)
			st = mx_weights_check(m->config, stdout, &err);
	} else if (st == MX_OK) {
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
