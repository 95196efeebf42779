/* SPDX-License-Identifier: Apache-2.0 */
/* The descriptions of all services: a packed google.protobuf.FileDescriptorSet. */
#ifndef MX_DAEMON_GRPC_DESCRIPTORS_H
#define MX_DAEMON_GRPC_DESCRIPTORS_H

extern const unsigned char mx_grpc_descriptors[]; /* [mx_grpc_descriptors_len] */
extern const unsigned long mx_grpc_descriptors_len;

#endif
