/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/request_plan.h"

#include "daemon/http/server.h"
#include "daemon/serve/grammars.h"
#include "daemon/serve/vocabulary.h"

static double mib(uint64_t bytes)
{
	return (double)bytes / 0x1p20;
}

static struct mx_http_memory memory(const struct mx_config *c)
{
	const struct mx_http_config hc = {
		.max_body_bytes = c->http.max_body_bytes,
		.body_memory = c->http.body_memory == MX_CONFIG_AUTO ? 0 : c->http.body_memory,
		.max_connections = (unsigned)c->http.max_connections,
		.workers = (unsigned)c->http.workers,
		.tls.cert = c->http.tls.cert,
	};
	struct mx_http_memory m;
	mx_http_memory(&hc, &m);
	return m;
}

/* What gRPC may take beside, if it is served: buffers of its library. */
static uint64_t grpc_bytes(const struct mx_config *c)
{
	return c->grpc.listen.n ? c->grpc.memory : 0;
}

/* What grammars of structured output may take: compiled ones, and the masks that each model keeps.
 */
static uint64_t grammar_bytes(const struct mx_config *c)
{
	return MX_GRAMMARS_BYTES + c->n_models * MX_VOCABULARY_MASKS;
}

uint64_t mx_request_plan_bytes(const struct mx_config *c)
{
	return memory(c).total + c->http.answer_memory + grammar_bytes(c) + grpc_bytes(c);
}

void mx_request_plan_print(const struct mx_config *c, uint64_t models, FILE *out)
{
	struct mx_http_memory m = memory(c);
	uint64_t requests = mx_request_plan_bytes(c);
	fprintf(out, "requests, at most\n");
	fprintf(out, "  answers             %10.1f MiB  http.answer_memory\n",
	        mib(c->http.answer_memory));
	fprintf(out, "  bodies              %10.1f MiB  http.body_memory\n", mib(m.bodies));
	fprintf(out, "  work on short ones  %10.1f MiB  http.workers: %u, %.1f MiB each\n",
	        mib(m.n_short * m.short_work), m.n_short, mib(m.short_work));
	fprintf(out, "  work on long ones   %10.1f MiB  %u, %.1f MiB each, for bodies above %zu KiB\n",
	        mib(m.n_long * m.long_work), m.n_long, mib(m.long_work), MX_HTTP_SHORT_BODY >> 10);
	fprintf(out, "  connections         %10.1f MiB  http.max_connections: %u\n", mib(m.connections),
	        (unsigned)c->http.max_connections);
	fprintf(out, "  grammars            %10.1f MiB  of structured output\n", mib(grammar_bytes(c)));
	if (c->grpc.listen.n)
		fprintf(out, "  gRPC                %10.1f MiB  grpc.memory\n", mib(grpc_bytes(c)));
	fprintf(out, "process\n");
	fprintf(out, "  resident at start   %10.1f MiB  models\n", mib(models));
	fprintf(out, "  total               %10.1f MiB  models and requests\n", mib(models + requests));
}
