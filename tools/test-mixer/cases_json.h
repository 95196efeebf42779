/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the cases of one mixer from a JSON file. mixd-test-mixer(1) describes the format. */
#ifndef MX_TOOLS_TEST_MIXER_CASES_JSON_H
#define MX_TOOLS_TEST_MIXER_CASES_JSON_H

#include <jansson.h>

#include "base/mem.h"
#include "tools/test-mixer/case.h"

struct case_file {
	struct mixer_set set;
	struct mx_arena arena; /* the set's memory, with `json` */
	json_t *json;
};

/* Reads FILE. *err names the key and the case that are wrong; an unknown key is an error. Free *out
 * with cases_free, also after an error. */
mx_status cases_read(const char *file, struct case_file *out, struct mx_err *err);
void cases_free(struct case_file *f);

#endif
