/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the instruction-set level: what the processor supports, what the operating system saves
 * on a context switch (XCR0), and what MIXD_ISA allows. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "device/cpu/kernels.h"

#ifdef MX_X86_64
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

/* arch/x86/include/uapi/asm/prctl.h; the state component of AMX tile data is number 18. */
#define MX_ARCH_REQ_XCOMP_PERM 0x1023
#define MX_XFEATURE_XTILEDATA  18

/* CPUID 7.0 EDX; not every compiler's cpuid.h has their names. */
#define EDX_AMX_BF16 (1u << 22)
#define EDX_AMX_TILE (1u << 24)

#define XCR0_AVX    0x6u     /* SSE, AVX */
#define XCR0_AVX512 0xe6u    /* and opmask, upper halves, upper registers */
#define XCR0_AMX    0x60000u /* tile configuration and data */

static uint64_t xcr0(void)
{
	uint32_t a, d;
	__asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
	return (uint64_t)d << 32 | a;
}

static bool is_intel(void)
{
	unsigned a, b, c, d;
	return __get_cpuid(0, &a, &b, &c, &d) && b == signature_INTEL_ebx;
}

enum mx_isa mx_cpu_isa_max(void)
{
	unsigned a, b, c, d, b7, c7, d7, a71 = 0;
	if (!__get_cpuid(1, &a, &b, &c, &d))
		return MX_ISA_PORTABLE;
	const unsigned need1 = bit_FMA | bit_AVX | bit_F16C | bit_OSXSAVE;
	if ((c & need1) != need1 || !__get_cpuid_count(7, 0, &a, &b7, &c7, &d7))
		return MX_ISA_PORTABLE;
	if (a >= 1)
		__get_cpuid_count(7, 1, &a71, &b, &c, &d);
	uint64_t saved = xcr0();
	if (!(b7 & bit_AVX2) || !(b7 & bit_BMI2) || (saved & XCR0_AVX) != XCR0_AVX)
		return MX_ISA_PORTABLE;
	const unsigned need512 = bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ;
	if ((b7 & need512) != need512 || (saved & XCR0_AVX512) != XCR0_AVX512)
		return MX_ISA_AVX2;
	if (!(a71 & bit_AVX512BF16))
		return MX_ISA_AVX512;
	if (d7 & EDX_AMX_TILE && d7 & EDX_AMX_BF16 && (saved & XCR0_AMX) == XCR0_AMX &&
	    syscall(SYS_arch_prctl, MX_ARCH_REQ_XCOMP_PERM, MX_XFEATURE_XTILEDATA) == 0)
		return MX_ISA_AMX_BF16;
	/* Intel's VDPBF16PS does half the work of f32 FMA in its time (bench/NOTES.md). */
	return is_intel() ? MX_ISA_AVX512 : MX_ISA_AVX512_BF16;
}

bool mx_cpu_has_vnni(void)
{
	unsigned a, b, c, d;
	return mx_cpu_isa_max() >= MX_ISA_AVX512 && __get_cpuid_count(7, 0, &a, &b, &c, &d) &&
	       c & bit_AVX512VNNI;
}
#else
bool mx_cpu_has_vnni(void)
{
	return false;
}

enum mx_isa mx_cpu_isa_max(void)
{
	return MX_ISA_PORTABLE;
}
#endif

enum mx_isa mx_cpu_isa(void)
{
	enum mx_isa best = mx_cpu_isa_max();
	const char *name = getenv("MIXD_ISA");
	if (name && *name && mx_isa_parse(name) < best)
		return mx_isa_parse(name);
	return best;
}
