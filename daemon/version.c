/* SPDX-License-Identifier: Apache-2.0 */
/* See version.h. */
#include "daemon/version.h"

#include <config.h> /* not ours: the build's */

#include "mixers/mixer.h"

#ifdef MX_X86_64
#define X86_64 "+x86-64"
#else
#define X86_64 "-x86-64"
#endif
#ifdef HAVE_CUDA
#define CUDA "+cuda (compute capability " CUDA_ARCHS ")"
#else
#define CUDA "-cuda"
#endif
#ifdef HAVE_GRPC
#define GRPC "+grpc"
#else
#define GRPC "-grpc"
#endif
#ifdef HAVE_GNUTLS
#define TLS "+tls +keys"
#else
#define TLS "-tls -keys"
#endif
#ifdef HAVE_ZMQ
#define ZMQ "+zmq"
#else
#define ZMQ "-zmq"
#endif
#ifdef HAVE_SYSTEMD
#define SYSTEMD "+systemd"
#else
#define SYSTEMD "-systemd"
#endif

#ifdef __clang__
#define COMPILER "clang"
#else
#define COMPILER "gcc"
#endif

void mx_version_print(FILE *out)
{
	fputs("mixd " PACKAGE_VERSION "\n", out);
	fputs("built with " X86_64 " " TLS " " GRPC " " ZMQ " " SYSTEMD " " CUDA "\n", out);
	fprintf(out, "mixer contract %u, compiler " COMPILER " %s%s\n", (unsigned)MX_MIXER_ABI,
	        __VERSION__, SANITIZERS);
	fputs("modules in " MIXD_MODULE_DIR ", " MIXD_DEVICE_DIR ", " MIXD_FRONT_DIR "\n", out);
}
