/* SPDX-License-Identifier: Apache-2.0 */
/* Loads the module of the gRPC front end. */
#include "base/module.h"
#include "daemon/grpc/front.h"

mx_status mx_grpc_load(const struct mx_grpc_table **out, struct mx_err *err)
{
	static const struct mx_module module = {
		.file = "front-grpc.so",
		.variable = "MIXD_FRONT_PATH",
		.folders = MIXD_FRONT_DIR,
		.symbol = MX_GRPC_SYMBOL,
		.what = "the gRPC front end",
		.needed = "the section grpc needs",
		.built = "where gRPC's and protobuf-c's development files are",
	};
	void *symbol = NULL;
	mx_status st = mx_module_load(&module, &symbol, err);
	if (st)
		return st;
	const struct mx_grpc_table *t = symbol;
	if (t->struct_size < sizeof(*t))
		return mx_fail(err, MX_E_UNSUPPORTED, "front-grpc.so is not one of this version");
	*out = t;
	return MX_OK;
}
