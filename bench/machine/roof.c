/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the read bandwidth of memory and the rate of each kind of multiply-add instruction. */
#include "config.h"

#include "bench/machine/roof.h"

#include <stdint.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "device/cpu/kernels.h"

#ifdef MX_X86_64
#include <cpuid.h>
#include <immintrin.h>
#endif

const char *roof_name(enum roof_kind k)
{
	static const char *const names[] = {"f32 FMA", "bf16 VDPBF16PS", "f16 FMA", "int8 VPDPBUSD",
	                                    "bf16 TDPBF16PS"};
	return names[k];
}

/* ---- arithmetic ---- */

#define ROUNDS 200000

#ifdef MX_X86_64
/* Twelve chains hide a latency of up to six cycles at two instructions a cycle. */
#define TWELVE(op, reg)                                                                            \
	op " %%" reg "12, %%" reg "13, %%" reg "0\n\t" op " %%" reg "12, %%" reg "13, %%" reg          \
	   "1\n\t" op " %%" reg "12, %%" reg "13, %%" reg "2\n\t" op " %%" reg "12, %%" reg            \
	   "13, %%" reg "3\n\t" op " %%" reg "12, %%" reg "13, %%" reg "4\n\t" op " %%" reg            \
	   "12, %%" reg "13, %%" reg "5\n\t" op " %%" reg "12, %%" reg "13, %%" reg "6\n\t" op         \
	   " %%" reg "12, %%" reg "13, %%" reg "7\n\t" op " %%" reg "12, %%" reg "13, %%" reg          \
	   "8\n\t" op " %%" reg "12, %%" reg "13, %%" reg "9\n\t" op " %%" reg "12, %%" reg            \
	   "13, %%" reg "10\n\t" op " %%" reg "12, %%" reg "13, %%" reg "11\n\t"

/* 0x3f803f80 is about 1 as f32, 1 and 1 as bf16, and a normal number as f16 */
#define CHAIN(name, op, reg)                                                                       \
	static void name(void)                                                                         \
	{                                                                                              \
		long n = ROUNDS;                                                                           \
		uint32_t one = 0x3f803f80;                                                                 \
		__asm__ volatile("vmovd %1, %%xmm12\n\t"                                                   \
		                 "vbroadcastss %%xmm12, %%" reg "12\n\t"                                   \
		                 "vbroadcastss %%xmm12, %%" reg "13\n\t"                                   \
		                 "1:\n\t" TWELVE(op, reg) "dec %0\n\t"                                     \
		                                          "jnz 1b\n\t"                                     \
		                                          "vzeroupper"                                     \
		                 : "+r"(n)                                                                 \
		                 : "r"(one)                                                                \
		                 : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",   \
		                   "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13");                    \
	}
CHAIN(chain_fma_256, "vfmadd231ps", "ymm")
CHAIN(chain_fma_512, "vfmadd231ps", "zmm")
CHAIN(chain_bf16, "vdpbf16ps", "zmm")
CHAIN(chain_f16, "vfmadd231ph", "zmm")
CHAIN(chain_i8, "vpdpbusd", "zmm")

__attribute__((target("amx-tile,amx-bf16"))) static void chain_tile(void)
{
	/* the operand of LDTILECFG; static, since GCC 12 assumes that it reads only 8 bytes */
	static const struct {
		uint8_t palette, start_row, reserved[14];
		uint16_t colsb[16];
		uint8_t rows[16];
	} config = {.palette = 1,
	            .colsb = {64, 64, 64, 64, 64, 64, 64, 64},
	            .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
	uint16_t ones[512];
	for (int i = 0; i < 512; i++)
		ones[i] = 0x3f80;
	_tile_loadconfig(&config);
	_tile_loadd(4, ones, 64);
	_tile_loadd(5, ones, 64);
	_tile_zero(0);
	_tile_zero(1);
	_tile_zero(2);
	_tile_zero(3);
	for (int i = 0; i < ROUNDS / 4; i++) {
		_tile_dpbf16ps(0, 4, 5);
		_tile_dpbf16ps(1, 4, 5);
		_tile_dpbf16ps(2, 4, 5);
		_tile_dpbf16ps(3, 4, 5);
	}
	_tile_release();
}

struct chain {
	void (*f)(void);
	double ops; /* operations of one call */
};

static struct chain chain_of(enum roof_kind k)
{
	enum mx_isa isa = mx_cpu_isa_max();
	unsigned a, b, c = 0, d = 0;
	__get_cpuid_count(7, 0, &a, &b, &c, &d);
	bool vnni = c & bit_AVX512VNNI, f16 = d & 1u << 23;
	const double n = 12.0 * ROUNDS;
	switch (k) {
	case ROOF_F32_FMA:
		if (isa >= MX_ISA_AVX512)
			return (struct chain){chain_fma_512, n * 32};
		if (isa >= MX_ISA_AVX2)
			return (struct chain){chain_fma_256, n * 16};
		break;
	case ROOF_BF16_DOT:
		if (isa >= MX_ISA_AVX512_BF16)
			return (struct chain){chain_bf16, n * 64};
		break;
	case ROOF_F16_FMA:
		if (isa >= MX_ISA_AVX512 && f16)
			return (struct chain){chain_f16, n * 64};
		break;
	case ROOF_I8_DOT:
		if (isa >= MX_ISA_AVX512 && vnni)
			return (struct chain){chain_i8, n * 128};
		break;
	case ROOF_BF16_TILE:
		if (isa >= MX_ISA_AMX_BF16)
			return (struct chain){chain_tile, ROUNDS * 16.0 * 16 * 32 * 2};
		break;
	default: break;
	}
	return (struct chain){0};
}
#else
struct chain {
	void (*f)(void);
	double ops;
};

static struct chain chain_of(enum roof_kind k)
{
	(void)k;
	return (struct chain){0};
}
#endif

bool roof_has(enum roof_kind k)
{
	return chain_of(k).f != NULL;
}

static void chain_task(void *arg, size_t task, unsigned worker)
{
	(void)task;
	(void)worker;
	((struct chain *)arg)->f();
}

double roof_arithmetic(struct mx_pool *p, enum roof_kind k)
{
	struct chain c = chain_of(k);
	size_t tasks = 4 * (size_t)mx_pool_size(p);
	double best = 0;
	for (int i = 0; c.f && i < 8; i++) {
		uint64_t start = mx_now_ns();
		mx_pool_run(p, tasks, chain_task, &c);
		double rate = c.ops * (double)tasks / (double)(mx_now_ns() - start);
		best = rate > best ? rate : best;
	}
	return best;
}

/* ---- memory ---- */

/* Sums the lines of a block, prefetching those `ahead` bytes further on. */
typedef uint64_t read_f(const unsigned char *p, size_t bytes, size_t ahead);

#define READ_BODY(type)                                                                            \
	type s[4] = {{0}, {0}, {0}, {0}};                                                              \
	for (size_t i = 0; i + 256 <= bytes; i += 256) {                                               \
		if (ahead)                                                                                 \
			for (size_t j = 0; j < 256; j += 64)                                                   \
				__builtin_prefetch(p + i + ahead + j, 0, 3);                                       \
		for (size_t j = 0; j < 256; j += sizeof(type))                                             \
			s[j / sizeof(type) % 4] += *(const type *)(const void *)(p + i + j);                   \
	}                                                                                              \
	s[0] += s[1] + s[2] + s[3];                                                                    \
	return s[0][0] + s[0][1];

typedef uint64_t v2 __attribute__((vector_size(16)));
static uint64_t read_16(const unsigned char *p, size_t bytes, size_t ahead)
{
	READ_BODY(v2)
}

#ifdef MX_X86_64
typedef uint64_t v4 __attribute__((vector_size(32)));
typedef uint64_t v8 __attribute__((vector_size(64)));
__attribute__((target("avx2"))) static uint64_t read_32(const unsigned char *p, size_t bytes,
                                                        size_t ahead)
{
	READ_BODY(v4)
}
__attribute__((target("avx512f"))) static uint64_t read_64(const unsigned char *p, size_t bytes,
                                                           size_t ahead)
{
	READ_BODY(v8)
}
#endif

struct read_call {
	read_f *f;
	const unsigned char *data;
	size_t part, ahead;
	_Atomic uint64_t sum; /* keeps the compiler from dropping the reads */
};

static void read_task(void *arg, size_t task, unsigned worker)
{
	struct read_call *c = arg;
	(void)worker;
	c->sum += c->f(c->data + task * c->part, c->part, c->ahead);
}

double roof_read(struct mx_pool *p, const void *data, size_t bytes)
{
	static const size_t ahead[] = {0, 1024, 4096, 16384};
	struct read_call c = {.f = read_16, .data = data};
#ifdef MX_X86_64
	if (mx_cpu_isa_max() >= MX_ISA_AVX2)
		c.f = read_32;
	if (mx_cpu_isa_max() >= MX_ISA_AVX512)
		c.f = read_64;
#endif
	/* parts of at most 1 MiB, distributed to free threads like an operator's tasks */
	size_t tasks = (bytes >> 20) + 1;
	c.part = bytes / tasks & ~(size_t)255;
	double best = 0;
	int passes = bytes < (size_t)1 << 29 ? 6 : 2;
	for (size_t a = 0; a < sizeof ahead / sizeof *ahead; a++) {
		c.ahead = ahead[a];
		for (int i = 0; i < passes; i++) {
			uint64_t start = mx_now_ns();
			mx_pool_run(p, tasks, read_task, &c);
			double rate = (double)(c.part * tasks) / (double)(mx_now_ns() - start);
			best = rate > best ? rate : best;
		}
	}
	return best;
}

struct fill_call {
	uint64_t *data;
	size_t part;
};

static void fill_task(void *arg, size_t task, unsigned worker)
{
	struct fill_call *c = arg;
	(void)worker;
	uint64_t s = 0x9e3779b97f4a7c15u * (task + 1);
	for (size_t i = task * c->part; i < (task + 1) * c->part; i++) {
		s ^= s << 13;
		s ^= s >> 7;
		s ^= s << 17;
		/* signs and fractions at random, exponents of 2^-8 to 2^-5 */
		c->data[i] = (s & 0x81ff81ff81ff81ffu) | 0x3c003c003c003c00u;
	}
}

void *roof_data(struct mx_pool *p, size_t bytes)
{
	bytes = mx_round_up(bytes, (size_t)1 << 20);
	struct fill_call c = {mx_map(bytes), ((size_t)1 << 20) / 8};
	if (c.data)
		mx_pool_run(p, bytes >> 20, fill_task, &c);
	return c.data;
}
