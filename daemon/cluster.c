/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h> /* not ours: the build's */

#include "daemon/cluster.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "device/hosts/tcp.h"
#include "device/hosts/tls.h"

#define LEAST_SECRET 16
#define MOST_SECRET  4096

struct mx_cluster {
	const struct mx_config_cluster *config;
	const struct mx_launch *launch;
	uint8_t secret[MOST_SECRET];
	size_t secret_bytes;
	int listener; /* -1 = there is none, or it was given away */
	atomic_bool stopped, loaded;
	_Atomic(struct mx_hosts *) hosts;
};

/* Reads the secret, without the end of its line. */
static mx_status read_secret(const char *file, uint8_t secret[MOST_SECRET], size_t *out_n,
                             struct mx_err *err)
{
	const int fd = open(file, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return mx_fail_at(err, MX_E_IO, file, "cannot be opened: %s", strerror(errno));
	ssize_t n = read(fd, secret, MOST_SECRET);
	const int error = errno;
	close(fd);
	if (n < 0)
		return mx_fail_at(err, MX_E_IO, file, "cannot be read: %s", strerror(error));
	while (n && (secret[n - 1] == '\n' || secret[n - 1] == '\r'))
		n--;
	if (n < LEAST_SECRET || n == MOST_SECRET)
		return mx_fail_at(err, MX_E_RANGE, file,
		                  "the secret has %zd bytes: must be %d to %d (openssl rand -hex 32)", n,
		                  LEAST_SECRET, MOST_SECRET - 1);
	*out_n = (size_t)n;
	return MX_OK;
}

mx_status mx_cluster_check(const struct mx_config *config, struct mx_err *err)
{
	uint8_t secret[MOST_SECRET];
	size_t n;
	if (config->cluster.hosts < 2)
		return MX_OK;
	if (config->cluster.tls && !mx_hosts_have_tls())
		return mx_fail_at(
			err, MX_E_UNSUPPORTED, "cluster.tls",
			"mixd was built without TLS: libgnutls28-dev was missing; false = nothing "
			"is encrypted");
	mx_status st = read_secret(config->cluster.secret, secret, &n, err);
	explicit_bzero(secret, sizeof secret);
	return st;
}

mx_status mx_cluster_open(const struct mx_config *config, const struct mx_launch *launch,
                          struct mx_cluster **out, struct mx_err *err)
{
	const struct mx_config_cluster *cc = &config->cluster;
	char name[MX_TCP_NAME];
	struct mx_cluster *c = mx_calloc(1, sizeof *c);
	if (!c)
		return mx_fail(err, MX_E_NOMEM, "out of memory");
	*c = (struct mx_cluster){.config = cc, .launch = launch, .listener = -1};
	mx_status st = read_secret(cc->secret, c->secret, &c->secret_bytes, err);
	if (st == MX_OK && !launch->worker)
		st = mx_tcp_listen(cc->listen, &c->listener, name, err);
	if (st != MX_OK) {
		mx_cluster_close(c);
		return st;
	}
	if (!launch->worker)
		mx_info("hosts", "waiting for %u other hosts on %s", (unsigned)cc->hosts - 1, name);
	*out = c;
	return MX_OK;
}

mx_status mx_cluster_connect(struct mx_cluster *c, const char *terms, struct mx_err *err)
{
	const struct mx_hosts_setup setup = {
		.n_hosts = (uint32_t)c->config->hosts,
		.version = PACKAGE_VERSION,
		.secret = c->secret,
		.secret_bytes = c->secret_bytes,
		.tls = c->config->tls,
		.terms = terms,
		.wanted = c->launch->number,
		.patience_ns = (uint64_t)(c->config->join_s * 1e9),
		.stop = &c->stopped,
	};
	struct mx_hosts *hosts = NULL;
	const int listener = c->listener;
	mx_status st;
	c->listener = -1;
	if (c->launch->worker) {
		mx_info("hosts", "joining %s", c->launch->join);
		st = mx_hosts_join(&setup, c->launch->join, &hosts, err);
	} else {
		st = mx_hosts_gather(&setup, listener, &hosts, err);
	}
	if (st != MX_OK)
		return st;
	mx_info("hosts", "this is host %u of %u, and all are there", mx_hosts_number(hosts),
	        setup.n_hosts);
	atomic_store(&c->hosts, hosts);
	if (atomic_load(&c->stopped)) /* meanwhile */
		mx_hosts_abort(hosts, "it was stopped");
	return MX_OK;
}

struct mx_hosts *mx_cluster_hosts(struct mx_cluster *c)
{
	return c ? atomic_load(&c->hosts) : NULL;
}

void mx_cluster_loaded(struct mx_cluster *c)
{
	if (c)
		atomic_store(&c->loaded, true);
}

void mx_cluster_stop(struct mx_cluster *c, const char *why)
{
	if (!c)
		return;
	atomic_store(&c->stopped, true);
	struct mx_hosts *hosts = atomic_load(&c->hosts);
	if (hosts && !atomic_load(&c->loaded))
		mx_hosts_abort(hosts, why);
}

bool mx_cluster_lost(struct mx_cluster *c)
{
	struct mx_hosts *hosts = mx_cluster_hosts(c);
	return hosts && mx_hosts_lost(hosts, NULL);
}

void mx_cluster_close(struct mx_cluster *c)
{
	if (!c)
		return;
	mx_hosts_destroy(atomic_load(&c->hosts));
	if (c->listener >= 0)
		close(c->listener);
	explicit_bzero(c->secret, sizeof c->secret);
	free(c);
}
