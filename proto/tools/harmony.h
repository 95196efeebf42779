/* SPDX-License-Identifier: Apache-2.0 */
/* gpt-oss' harmony: an answer is messages with a channel each: analysis (reasoning), commentary (to
 * a tool: a call) and final. */
#ifndef MX_PROTO_TOOLS_HARMONY_H
#define MX_PROTO_TOOLS_HARMONY_H

#include "proto/tools/impl.h"

extern const struct mx_call_reader mx_harmony_reader;

#endif
