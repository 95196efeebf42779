/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/closest.h"
#include "daemon/config.h"
#include "daemon/serve/metrics_text.h"
#include "device/dtype.h"

#define MODEL "models: [{name: demo, path: m}]\n"

static struct mx_config *parse(const char *text)
{
	struct mx_config *c = NULL;
	struct mx_err err = {0};
	if (mx_config_parse("dir/f.yaml", text, strlen(text), &c, &err))
		fail_msg("%s: %s", err.where, err.text);
	return c;
}

/* Parses a model with such a list of devices. */
static void check_devices(const char *text, uint64_t tensor, uint64_t context)
{
	char all[200];
	struct mx_config *c;
	struct mx_err err = {0};
	snprintf(all, sizeof all, "models: [{name: a, path: /p, device: %s}]\n", text);
	assert_int_equal(mx_config_parse("f.yaml", all, strlen(all), &c, &err), MX_OK);
	assert_int_equal(c->models[0].device.n, tensor * context);
	assert_int_equal(c->models[0].parallel.tensor, tensor);
	assert_int_equal(c->models[0].parallel.context, context);
	mx_config_free(c);
}

/* The text must be refused at that place with a message that holds `message`. */
static void refuse(const char *text, const char *where, const char *message)
{
	struct mx_config *c = NULL;
	struct mx_err err = {0};
	assert_int_not_equal(mx_config_parse("f.yaml", text, strlen(text), &c, &err), MX_OK);
	assert_null(c);
	if (strcmp(err.where, where) || !strstr(err.text, message))
		fail_msg("expected \"%s: ...%s...\", got \"%s: %s\"", where, message, err.where, err.text);
}

static void every_key_is_taken(void **state)
{
	(void)state;
	struct mx_config *c = parse(
		"http: {listen: ['127.0.0.1:1', '[::1]:2'], max_body_bytes: 1MiB, max_connections: 7,\n"
		"  idle_timeout_s: 9, header_timeout_s: 8, threads: 3, workers: 4,\n"
		"  keep_alive_s: 2.5, stall_s: 11}\n"
		"grpc: {listen: ['127.0.0.1:3'], tls: {cert: c.pem, key: /k.pem, client_ca: ''},\n"
		"  memory: 2MiB, max_calls: 12, idle_timeout_s: 13, min_ping_s: 7, threads: 5}\n"
		"log: {level: debug, format: json, access: errors}\n"
		"scheduler: {max_sequences: 5, step_tokens: 77, queue: 6, max_step_stretch: 2.5}\n"
		"shutdown: {drain_s: 1.5}\n"
		"metrics: {vllm_names: false}\n"
		"modules: [a, /b]\n"
		"models:\n"
		"  - {name: demo, path: m/demo, aliases: [x, y], device: cpu, threads: 2, max_context: "
		"99,\n"
		"     memory: 1.5GiB, page_tokens: 32, dtype: bf16, kv_dtype: f32, prefix_cache: false, "
		"weights: copied,\n"
		"     snapshot_memory: 64MiB, snapshot_every: 100,\n"
		"     layers: [{layers: 8-31, mixer: dci, top_k: auto, alpha: 0.5},\n"
		"       {mixer: dci, layers: 3, top_k: 40}]}\n"
		"  - {name: other, path: /abs, device: 'cuda:3', deterministic: true, kv_dtype: fp8}\n");
	assert_int_equal(c->http.listen.n, 2);
	assert_string_equal(c->http.listen.items[1], "[::1]:2");
	assert_int_equal(c->http.max_body_bytes, 1 << 20);
	assert_int_equal(c->http.max_connections, 7);
	assert_int_equal(c->http.idle_timeout_s, 9);
	assert_int_equal(c->http.header_timeout_s, 8);
	assert_int_equal(c->http.threads, 3);
	assert_int_equal(c->http.workers, 4);
	assert_true(c->http.keep_alive_s == 2.5 && c->http.stall_s == 11);
	assert_int_equal(c->grpc.listen.n, 1);
	assert_string_equal(c->grpc.tls.cert, "dir/c.pem");
	assert_string_equal(c->grpc.tls.key, "/k.pem");
	assert_null(c->grpc.tls.client_ca);
	assert_int_equal(c->grpc.memory, 2 << 20);
	assert_int_equal(c->grpc.max_calls, 12);
	assert_int_equal(c->grpc.idle_timeout_s, 13);
	assert_int_equal(c->grpc.min_ping_s, 7);
	assert_int_equal(c->grpc.threads, 5);
	assert_int_equal(c->log.level, MX_LOG_DEBUG);
	assert_int_equal(c->log.format, MX_LOG_JSON);
	assert_int_equal(c->log.access, 1);
	assert_int_equal(c->scheduler.max_sequences, 5);
	assert_int_equal(c->scheduler.step_tokens, 77);
	assert_int_equal(c->scheduler.queue, 6);
	assert_true(c->scheduler.max_step_stretch == 2.5);
	assert_true(c->shutdown.drain_s == 1.5);
	assert_false(c->metrics.vllm_names);
	assert_string_equal(c->modules.items[0], "dir/a");
	assert_string_equal(c->modules.items[1], "/b");
	assert_int_equal(c->n_models, 2);
	const struct mx_config_model *m = c->models;
	assert_string_equal(m->path, "dir/m/demo");
	assert_string_equal(m->aliases.items[1], "y");
	assert_int_equal(m->threads, 2);
	assert_int_equal(m->max_context, 99);
	assert_int_equal(m->memory, 3ull << 29);
	assert_int_equal(m->page_tokens, 32);
	assert_int_equal(m->dtype, MX_BF16);
	assert_int_equal(m->kv_dtype, MX_F32);
	assert_false(m->prefix_cache);
	assert_int_equal(m[0].weights, MX_WEIGHTS_COPIED);
	assert_int_equal(m[1].weights, MX_WEIGHTS_MAPPED);
	assert_int_equal(m->snapshot_memory, 64 << 20);
	assert_int_equal(m->snapshot_every, 100);
	assert_int_equal(m->layers.n, 2);
	const struct mx_plan_override *o = m->layers.items;
	assert_string_equal(o[0].layers, "8-31");
	assert_string_equal(o[0].mixer, "dci");
	assert_string_equal(mx_param_string(&o[0].params, "top_k", ""), "auto");
	assert_true(mx_param_float(&o[0].params, "alpha", 0) == 0.5);
	assert_string_equal(o[1].layers, "3");
	assert_int_equal(mx_param_int(&o[1].params, "top_k", 0), 40);
	assert_non_null(strstr(o[1].origin, ":16:8: models[0].layers[1]"));
	assert_int_equal(m[0].device.n, 1);
	assert_string_equal(m[0].device.items[0], "cpu");
	assert_int_equal(m[0].parallel.tensor, 1);
	assert_false(m[0].deterministic);
	assert_string_equal(m[1].device.items[0], "cuda:3");
	check_devices("[cpu, cpu, cpu]", 3, 1);
	check_devices("['cuda:0', 'cuda:1', 'cuda:2', 'cuda:3'], parallel: {context: 2}", 2, 2);
	check_devices("[cpu, cpu], parallel: {context: 2, tensor: 1}", 1, 2);
	assert_true(m[1].deterministic);
	assert_int_equal(m[1].kv_dtype, MX_F8E4M3);
	assert_string_equal(m[1].path, "/abs");
	assert_int_equal(m[1].dtype, -1);
	assert_true(m[1].prefix_cache);
	mx_config_free(c);
}

/* Compares the keys of one kind that differ when `after` replaces `before`. */
static void expect_differing(const char *before, const char *after, bool reloadable,
                             const char *keys)
{
	struct mx_config *a = parse(before), *b = parse(after);
	struct mx_buf out = {0};
	mx_config_compare(a, b, reloadable, &out);
	assert_string_equal(mx_buf_str(&out), keys);
	mx_buf_free(&out);
	mx_config_free(a);
	mx_config_free(b);
}

static void keys_that_wait_for_a_restart(void **state)
{
	(void)state;
	expect_differing(MODEL, "http: {listen: '127.0.0.1:8080', threads: 2}\n" MODEL, false, "");
	expect_differing(MODEL, "log: {level: error, format: json, access: off}\n" MODEL, false, "");
	expect_differing(MODEL, "models: [{name: demo, path: other, memory: 1GiB}]\n", false, "");
	expect_differing(MODEL,
	                 "http: {threads: 3, listen: [a:1, b:2], stall_s: 60.5}\n"
	                 "modules: [x]\nmetrics: {vllm_names: false}\n"
	                 "scheduler: {queue: 2, step_tokens: 64}\n" MODEL,
	                 false,
	                 "http.listen, http.threads, http.stall_s, scheduler.step_tokens, "
	                 "metrics.vllm_names, modules");
	expect_differing(MODEL, "http: {tls: {cert: c, key: k, min_version: 1.3}}\n" MODEL, false,
	                 "http.tls.cert, http.tls.key, http.tls.min_version");
	expect_differing(MODEL, "admin: {listen: '127.0.0.1:9'}\n" MODEL, false, "admin.listen");
	expect_differing(MODEL, "grpc: {tls: {cert: c, key: k}}\n" MODEL, false,
	                 "grpc.tls.cert, grpc.tls.key");
}

static void keys_that_a_reload_applies(void **state)
{
	(void)state;
	expect_differing(MODEL, MODEL, true, "");
	expect_differing(MODEL, "http: {threads: 3}\n" MODEL, true, "");
	expect_differing(
		MODEL,
		"http: {cors: {origins: ['*']}, page: false}\nlog: {level: error, format: json, access: "
		"off}\n"
		"scheduler: {queue: 2}\nshutdown: {drain_s: 1}\n" MODEL,
		true,
		"http.cors.origins, http.page, log.level, log.format, log.access, scheduler.queue, "
		"shutdown.drain_s");
	/* models are known by their names, not by their places */
	expect_differing("models: [{name: a, path: x}, {name: b, path: y}]",
	                 "models: [{name: b, path: y, aliases: [c]}, {name: a, path: x}]", true,
	                 "models[b].aliases");
	expect_differing(MODEL, "models: [{name: other, path: m, aliases: [c]}]", true, "");
}

static void models_with_other_settings(void **state)
{
	(void)state;
	struct mx_config *a = parse("models: [{name: a, path: x}]");
	static const struct {
		const char *keys;
		bool same;
	} cases[] = {{"path: x", true},
	             {"path: x, aliases: [b]", true},
	             {"path: y", false},
	             {"path: x, memory: 1GiB", false},
	             {"path: x, kv_dtype: f32", false},
	             {"path: x, layers: [{layers: 1, mixer: dci, top_k: 5}]", false},
	             {"path: x, snapshot_every: 0", false}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		char text[200];
		snprintf(text, sizeof text, "models: [{name: z, path: z}, {name: a, %s}]", cases[i].keys);
		struct mx_config *b = parse(text);
		const struct mx_config_model *m = mx_config_find(b, "a");
		assert_non_null(m);
		assert_int_equal(mx_config_same_model(mx_config_find(a, "a"), m), cases[i].same);
		assert_null(mx_config_find(b, "b"));
		mx_config_free(b);
	}
	mx_config_free(a);
}

static void defaults_are_those_of_the_manual(void **state)
{
	(void)state;
	struct mx_config *c = parse(MODEL);
	assert_string_equal(c->http.listen.items[0], "127.0.0.1:8080");
	assert_int_equal(c->http.max_body_bytes, 8388608);
	assert_int_equal(c->http.max_connections, 1024);
	assert_int_equal(c->http.idle_timeout_s, 75);
	assert_int_equal(c->http.header_timeout_s, 10);
	assert_int_equal(c->log.access, 2);
	assert_int_equal(c->scheduler.max_sequences, 64);
	assert_int_equal(c->scheduler.step_tokens, 512);
	assert_int_equal(c->scheduler.queue, 1024);
	assert_true(c->shutdown.drain_s == 30);
	assert_true(c->metrics.vllm_names);
	assert_int_equal(c->models[0].memory, 0);
	assert_true(c->models[0].snapshot_memory == MX_CONFIG_AUTO);
	assert_true(c->models[0].snapshot_every == MX_CONFIG_AUTO);
	mx_config_free(c);
	c = parse("models: [{name: demo, path: m, snapshot_memory: auto, snapshot_every: auto},\n"
	          "         {name: other, path: m, snapshot_memory: 0, snapshot_every: 0}]\n");
	assert_true(c->models[0].snapshot_memory == MX_CONFIG_AUTO);
	assert_true(c->models[0].snapshot_every == MX_CONFIG_AUTO);
	assert_int_equal(c->models[1].snapshot_memory, 0);
	assert_int_equal(c->models[1].snapshot_every, 0);
	mx_config_free(c);
}

static void faults_name_their_place(void **state)
{
	(void)state;
	refuse("htpp: {}\n" MODEL, "f.yaml:1:1: htpp", "did you mean \"http\"");
	refuse("http: {lisen: x}\n" MODEL, "f.yaml:1:8: http.lisen", "did you mean \"listen\"");
	refuse("http: {tls: {cert: c}}\n" MODEL, "f.yaml:1:1: (top level)", "http.tls needs both");
	refuse("http: {tls: {min_version: 1.1}}\n" MODEL, "f.yaml:1:27: http.tls.min_version",
	       "must be one of 1.2, 1.3");
	refuse("grpc: {tls: {min_version: 1.3}}\n" MODEL, "f.yaml:1:1: (top level)", "gRPC's library");
	refuse("log: {colour: red}\n" MODEL, "f.yaml:1:7: log.colour",
	       "valid keys here: level, format");
	refuse("log:\n  level: loud\n" MODEL, "f.yaml:2:10: log.level",
	       "must be one of error, warning, info, debug");
	refuse("scheduler: {queue: many}\n" MODEL, "f.yaml:1:20: scheduler.queue",
	       "must be a whole number, not \"many\"");
	refuse("scheduler: {queue: '7'}\n" MODEL, "f.yaml:1:20: scheduler.queue",
	       "must be a whole number, not a string");
	refuse("scheduler: {queue: -1}\n" MODEL, "f.yaml:1:20: scheduler.queue", "whole number");
	refuse("scheduler: {queue: 0}\n" MODEL, "f.yaml:1:20: scheduler.queue", "out of range");
	refuse("scheduler: {queue: 99999999999}\n" MODEL, "f.yaml:1:20: scheduler.queue",
	       "must be 1 to 1048576");
	refuse("scheduler: [1]\n" MODEL, "f.yaml:1:12: scheduler", "must be a mapping, not a list");
	refuse("http: {listen: {}}\n" MODEL, "f.yaml:1:16: http.listen", "must be a string");
	refuse("http: {listen: []}\n" MODEL, "f.yaml:1:16: http.listen", "must have 1 to 16 entries");
	refuse("http: {max_body_bytes: 2Gb}\n" MODEL, "f.yaml:1:24: http.max_body_bytes",
	       "unknown unit \"Gb\"");
	refuse("http: {max_body_bytes: auto}\n" MODEL, "f.yaml:1:24: http.max_body_bytes",
	       "must be a size such as 2GiB, not \"auto\"");
	refuse("models: [{name: a, path: b, snapshot_memory: all}]\n",
	       "f.yaml:1:46: models[0].snapshot_memory", "such as 2GiB or auto, not \"all\"");
	refuse("models: [{name: a, path: b, snapshot_every: often}]\n",
	       "f.yaml:1:45: models[0].snapshot_every", "whole number or auto, not \"often\"");
	refuse("models: [{name: a, path: b, layers: 3}]\n", "f.yaml:1:37: models[0].layers",
	       "must be a list");
	refuse("models: [{name: a, path: b, layers: [{layers: all}]}]\n",
	       "f.yaml:1:38: models[0].layers[0]", "the key \"mixer\" is missing");
	refuse("models: [{name: a, path: b, layers: [{layers: all, mixer: [x]}]}]\n",
	       "f.yaml:1:59: models[0].layers[0].mixer", "must be a string");
	refuse("models: [{name: a, path: b, layers: [{layers: all, mixer: dci, k: 1, k: 2}]}]\n",
	       "f.yaml:1:70: models[0].layers[0].k", "duplicate key");
	refuse("http: {keep_alive_s: .nan}\n" MODEL, "f.yaml:1:22: http.keep_alive_s",
	       "must be a number");
	refuse("metrics: {vllm_names: yes}\n" MODEL, "f.yaml:1:23: metrics.vllm_names",
	       "must be true or false");
	refuse("log: {}\nlog: {}\n" MODEL, "f.yaml:2:1: log", "duplicate key; it stands at line 1");
	refuse("models: [{name: a, name: b, path: p}]\n", "f.yaml:1:20: models[0].name",
	       "duplicate key");
	refuse("models: [{name: a}]\n", "f.yaml:1:10: models[0]", "the key \"path\" is missing");
	refuse("models: []\n", "f.yaml:1:9: models", "must have 1 to 64 entries, not 0");
	refuse("models: [{name: a, path: p, device: 'cuda:'}]\n", "f.yaml:1:37: models[0].device",
	       "no device \"cuda:\"");
	refuse("models: [{name: a, path: p, kv_dtype: fp8}]\n", "f.yaml:1:39: models[0].kv_dtype",
	       "fp8 needs device: cuda");
	refuse("models: [{name: a, path: p, device: [cpu, tpu]}]\n", "f.yaml:1:43: models[0].device[1]",
	       "no device \"tpu\"");
	refuse("models: [{name: a, path: p, device: [cpu, cuda]}]\n",
	       "f.yaml:1:43: models[0].device[1]", "must be of one kind");
	refuse("models: [{name: a, path: p, device: []}]\n", "f.yaml:1:37: models[0].device",
	       "must have 1 to 64 entries");
	refuse("models: [{name: a, path: p, device: [cpu, cpu, cpu], parallel: {tensor: 2}}]\n",
	       "f.yaml:1:64: models[0].parallel",
	       "tensor 2 times context 1 is not the number of devices, 3");
	refuse("models: [{name: a, path: p, parallel: {context: 2}}]\n",
	       "f.yaml:1:39: models[0].parallel", "tensor 1 times context 2");
	refuse("models: [{name: a, path: p, parallel: {tensor: 0}}]\n",
	       "f.yaml:1:48: models[0].parallel.tensor", "out of range");
	refuse("models: [{name: a, path: p, device: tpu}]\n", "f.yaml:1:37: models[0].device",
	       "no device \"tpu\": must be cpu, cuda or cuda:N");
	refuse("models: [{name: a, path: p}, {name: b, path: p, aliases: [a]}]\n",
	       "f.yaml:1:59: models[1].aliases[0]", "the name \"a\" is used twice");
	refuse("models: [{name: a, path: p},\n {name: a, path: p}]\n", "f.yaml:2:9: models[1].name",
	       "the name \"a\" is used twice");
	refuse(MODEL "--- \n" MODEL, "f.yaml:3:1: (top level)", "a second YAML document");
	refuse(MODEL "...\n--- 3\n", "f.yaml:3:5: (top level)", "a second YAML document");
	refuse(MODEL "---\n a: [\n", "f.yaml:4:1", "not valid YAML");
	refuse("log: {}\n", "f.yaml:1:1: (top level)", "the key \"models\" is missing");
	refuse("", "f.yaml", "empty");
	refuse("a: [\n", "f.yaml:2:1", "not valid YAML");
	refuse("scheduler: {max_sequences: 100, step_tokens: 50}\n" MODEL, "f.yaml:1:1: (top level)",
	       "scheduler.max_sequences (100) is above scheduler.step_tokens (50)");
}

static void listen_addresses_are_checked(void **state)
{
	(void)state;
	const char *good[] = {"127.0.0.1:0", "[::1]:65535",   "[fe80::1%eth0]:80",
	                      "*:8080",      "localhost:080", "my-host.example:1"};
	for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
		char text[200];
		snprintf(text, sizeof text, "http: {listen: \"%s\"}\n" MODEL, good[i]);
		struct mx_config *c = parse(text);
		assert_string_equal(c->http.listen.items[0], good[i]);
		mx_config_free(c);
	}
	static const struct {
		const char *address, *why;
	} bad[] = {
		{"127.0.0.1:99999", "the port must be a number of 0 to 65535"},
		{"127.0.0.1:65536", "the port must be"},
		{"127.0.0.1:000080", "the port must be"},
		{"127.0.0.1:", "the port must be"},
		{"127.0.0.1:http", "the port must be"},
		{"127.0.0.1:-1", "the port must be"},
		{"127.0.0.1:+1", "the port must be"},
		{"unix:/x", "the port must be"},
		{"foo", "form host:port"},
		{"[::1]", "form host:port"},
		{"[:1", "form host:port"},
		{"[:", "form host:port"},
		{"[]:80", "not an IPv6 address"},
		{"[127.0.0.1]:80", "not an IPv6 address"},
		{"[::1%]:80", "not an IPv6 address"},
		{"::1:80", "in brackets"},
		{":80", "no host before the port"},
		{"1.2.3:80", "not an IPv4 address"},
		{"300.0.0.1:80", "not an IPv4 address"},
		{"a b:80", "not a host name"},
		{"http://x:80", "in brackets"},
	};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		char text[200];
		snprintf(text, sizeof text, "http:\n  listen: '%s'\n" MODEL, bad[i].address);
		refuse(text, "f.yaml:2:11: http.listen", bad[i].why);
	}
	refuse("http: {listen: ['*:1', foo]}\n" MODEL, "f.yaml:1:24: http.listen[1]",
	       "\"foo\": not an address");
}

static void closest_key_is_not_a_wild_guess(void **state)
{
	(void)state;
	const char *names[] = {"max_sequences", "step_tokens", "queue"};
	assert_string_equal(mx_closest("max_sequence", names, 3), "max_sequences");
	assert_string_equal(mx_closest("Queue", names, 3), "queue");
	assert_null(mx_closest("elephant", names, 3));
}

static void exposition_formats(void **state)
{
	(void)state;
	struct mx_buf b = {0};
	const double bounds[] = {0.5, 1};
	const uint64_t count[] = {2, 0, 3};
	for (int open = 0; open < 2; open++) {
		mx_buf_clear(&b);
		struct mx_metrics_writer w = {.out = &b, .openmetrics = open};
		mx_metrics_family(&w, "a", MX_METRIC_COUNTER, "A.");
		mx_metrics_sample(&w, "l=\"x\"", 3);
		mx_metrics_family(&w, "h", MX_METRIC_HISTOGRAM, "H.");
		mx_metrics_histogram(&w, "", bounds, 2, count, 4.5);
		mx_metrics_end(&w);
		assert_string_equal(mx_buf_str(&b),
		                    open ? "# HELP a A.\n# TYPE a counter\na_total{l=\"x\"} 3\n"
		                           "# HELP h H.\n# TYPE h histogram\nh_bucket{le=\"0.5\"} 2\n"
		                           "h_bucket{le=\"1\"} 2\nh_bucket{le=\"+Inf\"} 5\nh_sum 4.5\n"
		                           "h_count 5\n# EOF\n"
		                         : "# HELP a_total A.\n# TYPE a_total counter\na_total{l=\"x\"} 3\n"
		                           "# HELP h H.\n# TYPE h histogram\nh_bucket{le=\"0.5\"} 2\n"
		                           "h_bucket{le=\"1\"} 2\nh_bucket{le=\"+Inf\"} 5\nh_sum 4.5\n"
		                           "h_count 5\n");
	}
	mx_buf_free(&b);
	char label[12];
	mx_metrics_escape(label, sizeof label, "a\"\\\nbcdefghijk");
	assert_string_equal(label, "a\\\"\\\\\\nbc");
}

/* Models that several GPUs compute each share none. */
static void gpus_of_several_models(void **state)
{
	(void)state;
	refuse("models:\n  - {name: a, path: p, device: ['cuda:0', 'cuda:1']}\n"
	       "  - {name: b, path: p}\n  - {name: c, path: p, device: ['cuda:2', 'cuda:1']}\n",
	       "f.yaml:1:1: (top level)",
	       "models a and c are both on several GPUs, with cuda:1 in common");
	refuse("models:\n  - {name: a, path: p, device: ['cuda:3', cuda]}\n"
	       "  - {name: b, path: p, device: ['cuda:0', 'cuda:1']}\n",
	       "f.yaml:1:1: (top level)", "with cuda:0 in common");
	struct mx_config *c = parse("models:\n  - {name: a, path: p, device: ['cuda:0', 'cuda:1']}\n"
	                            "  - {name: b, path: p, device: ['cuda:2', 'cuda:3']}\n"
	                            "  - {name: c, path: p, device: cuda}\n"
	                            "  - {name: d, path: p, device: ['cuda:1']}\n"
	                            "  - {name: e, path: p, device: [cpu, cpu]}\n"
	                            "  - {name: f, path: p, device: [cpu, cpu]}\n");
	assert_int_equal(mx_config_gpus(&c->models[0]), 3);
	assert_int_equal(mx_config_gpus(&c->models[1]), 12);
	for (int i = 2; i < 6; i++)
		assert_int_equal(mx_config_gpus(&c->models[i]), 0);
	mx_config_free(c);
}

/* The devices are those of each host, wherever cluster stands. */
static void several_hosts(void **state)
{
	(void)state;
	struct mx_config *c = parse("models: [{name: a, path: p, device: [cpu, cpu]}]\n"
	                            "cluster: {hosts: 3, listen: '*:7', secret: s, join_s: 1.5}\n");
	assert_int_equal(c->models[0].parallel.tensor, 6);
	assert_int_equal(c->cluster.hosts, 3);
	assert_string_equal(c->cluster.listen, "*:7");
	assert_string_equal(c->cluster.secret, "dir/s");
	assert_true(c->cluster.join_s == 1.5);
	assert_true(c->cluster.tls);
	mx_config_free(c);
	c = parse(MODEL);
	assert_int_equal(c->cluster.hosts, 1);
	assert_null(c->cluster.secret);
	mx_config_free(c);
	refuse("models: [{name: a, path: p, parallel: {tensor: 1}}]\ncluster: {hosts: 2, secret: s}\n",
	       "f.yaml:1:39: models[0].parallel",
	       "is not the number of devices of all hosts, 2 times 1");
	refuse("cluster: {hosts: 65}\n" MODEL, "f.yaml:1:18: cluster.hosts", "64");
	refuse("cluster: {hosts: [1]}\n" MODEL, "f.yaml:1:18: cluster.hosts", "must be");
	refuse("cluster: {hosts: 2}\n" MODEL, "f.yaml:1:1: (top level)",
	       "cluster.secret: several hosts need a file");
	refuse("cluster: {hosts: 2, secret: s}\nmodels: [{name: a, path: p}, {name: b, path: p}]\n",
	       "f.yaml:1:1: (top level)", "several hosts serve one model");
	refuse("cluster: {listen: nowhere}\n" MODEL, "f.yaml:1:1: (top level)", "cluster.listen: ");
	expect_differing(MODEL, "cluster: {hosts: 2, secret: s, listen: '*:1'}\n" MODEL, false,
	                 "cluster.hosts, cluster.listen, cluster.secret");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_key_is_taken),
		cmocka_unit_test(several_hosts),
		cmocka_unit_test(gpus_of_several_models),
		cmocka_unit_test(keys_that_wait_for_a_restart),
		cmocka_unit_test(keys_that_a_reload_applies),
		cmocka_unit_test(models_with_other_settings),
		cmocka_unit_test(defaults_are_those_of_the_manual),
		cmocka_unit_test(faults_name_their_place),
		cmocka_unit_test(listen_addresses_are_checked),
		cmocka_unit_test(closest_key_is_not_a_wild_guess),
		cmocka_unit_test(exposition_formats),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
