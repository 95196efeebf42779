/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/load_report.h"
#include "daemon/http/exchange.h"

void mx_exchange_add_load_report(const struct mx_exchange *x, struct MHD_Response *r)
{
	const char *format =
		MHD_lookup_connection_value(x->conn, MHD_HEADER_KIND, "endpoint-load-metrics-format");
	char report[MX_LOAD_REPORT_MAX];
	if (format && x->gen && mx_load_report(x->gen, format, report))
		MHD_add_response_header(r, "endpoint-load-metrics", report);
}
