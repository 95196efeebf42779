/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the cases of one mixer from a JSON file. mixd-test-mixer(1) describes the format. */
#ifndef MX_TOOLS_TEST_MIXER_CASES_JSON_H
#define MX_TOOLS_TEST_MIXER_CASES_JSON_H

#include "tools/test-mixer/case.h"

/* Reads FILE. The set lives as long as the process. *err names the key and the case that are wrong;
 * an unknown key is an error. */
mx_status cases_read(const char *file, struct mixer_set *out, struct mx_err *err);

#endif
