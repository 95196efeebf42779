/* SPDX-License-Identifier: Apache-2.0 */
/* mixd --model DIR: the configuration of one model from the command line. */
#ifndef MX_DAEMON_MODEL_OPTION_H
#define MX_DAEMON_MODEL_OPTION_H

#include "base/buf.h"

/* The options; NULL = not given. */
struct mx_model_option {
	const char *model;  /* --model: the checkpoint's folder */
	const char *name;   /* --name; default: the folder's last part */
	const char *port;   /* --port of 127.0.0.1; default 8080 */
	const char *device; /* --device; default cpu */
};

/* Appends the configuration file that the options stand for. Paths are made absolute, so that it
 * may be stored anywhere. MX_E_INVALID with the option in err->where for a wrong value, or for
 * options without --model; names and devices are checked by mx_config_parse. */
mx_status mx_model_option_yaml(const struct mx_model_option *o, struct mx_buf *out,
                               struct mx_err *err);

#endif
