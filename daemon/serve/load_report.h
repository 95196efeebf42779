/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model's load at the time of an answer, for balancers in front of several
 * servers: ORCA (Open Request Cost Aggregation, xds.data.orca.v3.OrcaLoadReport) in
 * its two forms of text, with the names of vLLM.
 */
#ifndef MX_DAEMON_SERVE_LOAD_REPORT_H
#define MX_DAEMON_SERVE_LOAD_REPORT_H

#include "daemon/serve/generate.h"

/* Room for a report, its end included. */
#define MX_LOAD_REPORT_MAX 128

/* Writes the load of the generation's model in a format, "TEXT" or "JSON" in any case. False if the
 * format is another one. */
bool mx_load_report(const struct mx_generation *g, const char *format,
                    char out[MX_LOAD_REPORT_MAX]);

/* Returns the part of the pages that running requests hold, 0 to 1; for a model without pages that
 * of the slots. */
double mx_kv_usage(const struct mx_engine_info *info, const struct mx_engine_usage *usage);

#endif
