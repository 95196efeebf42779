/* SPDX-License-Identifier: Apache-2.0 */
/* mixctl: looks at a running mixd and commands it, over its admin socket. */
#include <config.h> /* not ours: the build's */

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tools/mixctl/client.h"
#include "tools/mixctl/show.h"

#define DEFAULT_SOCKET "/run/mixd/admin.sock"

struct options {
	const char *socket;
	bool json, once;
};

static void usage(FILE *out)
{
	fputs("usage: mixctl [--socket PATH] [--json] COMMAND\n"
	      "\n"
	      "  status            what the server and its models do\n"
	      "  top [--once]      requests, tokens, pages, slots and gaps by model, every second\n"
	      "  models            the models, their aliases and devices\n"
	      "  requests          the requests that run, with their ids\n"
	      "  reload            read the configuration again, and wait until it is in force\n"
	      "  drain [MODEL]     take no new requests, and wait until those that run have ended\n"
	      "  undrain [MODEL]   take requests again\n"
	      "  cancel ID         end the request of that id\n"
	      "  log LEVEL         log from level error, warning, info or debug on\n"
	      "\n"
	      "  -s, --socket PATH the server's admin.socket (default MIXD_SOCKET, or\n"
	      "                    " DEFAULT_SOCKET ")\n"
	      "      --json        print the answer as JSON\n"
	      "      --once        top: print once and end\n"
	      "  -V, --version     print the version and exit\n"
	      "  -h, --help        print this and exit\n",
	      out);
}

static void print_json(const json_t *v)
{
	char *text = json_dumps(v, JSON_COMPACT);
	if (text)
		puts(text);
	free(text);
	fflush(stdout);
}

/* Prints the error of an answer; returns an exit status, or -1 if it is none. */
static int refused(const struct options *o, const json_t *answer)
{
	if (!answer)
		return MIXCTL_NO_SERVER;
	const char *error = json_string_value(json_object_get(answer, "error"));
	if (!error)
		return -1;
	if (o->json)
		print_json(answer);
	fprintf(stderr, "mixctl: %s\n", error);
	return MIXCTL_REFUSED;
}

static json_t *command(const char *name)
{
	return json_pack("{s:s}", "command", name);
}

/* ---- top ---- */

static void wait_second(void)
{
	const struct timespec second = {.tv_sec = 1};
	nanosleep(&second, NULL);
}

static int top(const struct options *o, int fd)
{
	json_t *before = NULL;
	bool terminal = isatty(STDOUT_FILENO);
	for (int i = 0;; i++) {
		json_t *now = mixctl_ask(fd, command("status"));
		int rc = refused(o, now);
		if (rc >= 0) {
			json_decref(before);
			json_decref(now);
			return rc;
		}
		if (i) { /* the first answer is what the second is compared with */
			json_t *figures = o->json ? mixctl_top(before, now) : NULL;
			if (terminal && !o->once && !o->json)
				fputs("\033[H\033[2J", stdout);
			if (figures)
				print_json(figures);
			else
				mixctl_show_top(before, now);
			json_decref(figures);
			fflush(stdout);
		}
		json_decref(before);
		before = now;
		if (i && (o->once || ferror(stdout))) {
			json_decref(before);
			return MIXCTL_OK;
		}
		wait_second();
	}
}

/* ---- the others ---- */

static void show_ok(const json_t *answer)
{
	(void)answer;
}

/* Seconds in which mixd answers what is no work. */
enum { PATIENCE = 10 };

static const struct verb {
	const char *name, *command;
	const char *member; /* takes an argument: its name in the command */
	bool needs;         /* the argument must be given */
	bool long_work;     /* the answer comes when all is done */
	void (*show)(const json_t *answer);
} verbs[] = {
	{"status", "status", NULL, false, false, mixctl_show_status},
	{"top", NULL, NULL, false, false, NULL},
	{"models", "status", NULL, false, false, mixctl_show_models},
	{"requests", "requests", NULL, false, false, mixctl_show_requests},
	{"reload", "reload", NULL, false, true, mixctl_show_reload},
	{"drain", "drain", "model", false, true, show_ok},
	{"undrain", "undrain", "model", false, false, show_ok},
	{"cancel", "cancel", "id", true, false, show_ok},
	{"log", "log", "level", true, false, show_ok},
};

static const struct verb *find_verb(const char *name)
{
	for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
		if (!strcmp(verbs[i].name, name))
			return &verbs[i];
	return NULL;
}

static int run(const struct options *o, const struct verb *v, const char *argument)
{
	int fd = mixctl_connect(o->socket, v->long_work ? 0 : PATIENCE);
	if (fd < 0)
		return MIXCTL_NO_SERVER;
	int rc;
	if (!v->command) {
		rc = top(o, fd);
	} else {
		json_t *c = command(v->command);
		if (argument)
			json_object_set_new(c, v->member, json_string(argument));
		json_t *answer = mixctl_ask(fd, c);
		rc = refused(o, answer);
		if (rc < 0) {
			if (o->json)
				print_json(answer);
			else
				v->show(answer);
			rc = MIXCTL_OK;
		}
		json_decref(answer);
	}
	close(fd);
	return rc;
}

/* Parses the options. Returns an exit status, or -1 to continue. */
static int read_options(int argc, char **argv, struct options *o)
{
	static const struct option options[] = {
		{"socket", required_argument, NULL, 's'}, {"json", no_argument, NULL, 'j'},
		{"once", no_argument, NULL, '1'},         {"version", no_argument, NULL, 'V'},
		{"help", no_argument, NULL, 'h'},         {0}};
	for (int c; (c = getopt_long(argc, argv, "s:Vh", options, NULL)) != -1;) {
		switch (c) {
		case 's': o->socket = optarg; break;
		case 'j': o->json = true; break;
		case '1': o->once = true; break;
		case 'V': puts("mixctl " PACKAGE_VERSION); return MIXCTL_OK;
		case 'h': usage(stdout); return MIXCTL_OK;
		default: usage(stderr); return MIXCTL_USAGE;
		}
	}
	return -1;
}

int main(int argc, char **argv)
{
	const char *named = getenv("MIXD_SOCKET");
	struct options o = {.socket = named && *named ? named : DEFAULT_SOCKET};
	int rc = read_options(argc, argv, &o);
	if (rc >= 0)
		return rc;
	if (optind == argc) {
		usage(stderr);
		return MIXCTL_USAGE;
	}
	const struct verb *v = find_verb(argv[optind]);
	int n = argc - optind - 1;
	if (!v) {
		fprintf(stderr, "mixctl: no command \"%s\"\n", argv[optind]);
		usage(stderr);
		return MIXCTL_USAGE;
	}
	if (n > (v->member ? 1 : 0) || (v->needs && !n)) {
		fprintf(stderr, "mixctl: %s takes %s%s\n", v->name,
		        !v->member ? "no argument"
		        : v->needs ? "one argument: "
		                   : "at most one argument: ",
		        v->member ? v->member : "");
		return MIXCTL_USAGE;
	}
	return run(&o, v, n ? argv[optind + 1] : NULL);
}
