/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernels of comm.h share: flags in the memory of peers, meetings, elements and packets.
 *
 * A peer's memory is read past the first-level cache (volatile loads), which may hold what was
 * there before.
 */
#ifndef MX_DEVICE_CUDA_COMM_CUH
#define MX_DEVICE_CUDA_COMM_CUH

#include <cuda_bf16.h>

#include "device/cuda/comm.h"
#include "device/cuda/launch.cuh"

#define MX_COMM_PATIENCE_NS (MX_COMM_PATIENCE_MS * 1000000ull)

/* ---- flags ---- */

static __device__ __forceinline__ uint32_t load_acquire(const uint32_t *p)
{
	uint32_t v;
	asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
	return v;
}

static __device__ __forceinline__ void store_release(uint32_t *p, uint32_t v)
{
	asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

static __device__ __forceinline__ uint64_t now_ns(void)
{
	uint64_t t;
	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
	return t;
}

/* The time of a collective is that of its first thread, from when the step's data may be read.
 * Returns the time spent before it, less now. */
static __device__ __forceinline__ uint64_t start_clock(const struct mx_comm_rank &r)
{
	return blockIdx.x || threadIdx.x ? 0 : r.memory[r.rank]->spent_ns - now_ns();
}

static __device__ __forceinline__ void stop_clock(const struct mx_comm_rank &r, uint64_t clock)
{
	if (!blockIdx.x && !threadIdx.x)
		r.memory[r.rank]->spent_ns = clock + now_ns();
}

/* The end of a kernel that counts its packets: in *uses, the thread block's own. All threads have
 * read it before. The kernel behind may begin from here on where ranks share a GPU (comm.h). */
static __device__ __forceinline__ void
end_pushes(const struct mx_comm_rank &r, volatile uint32_t *uses, uint32_t number, uint64_t clock)
{
	if (!threadIdx.x)
		*uses = number;
	stop_clock(r, clock);
	if (r.shared)
		mx_pdl_launch();
}

/* True while a thread may go on waiting for a peer: the communication has not ended, which it does
 * here if the wait takes too long. *begin: 0 at the first call of a wait. */
static __device__ __forceinline__ bool may_wait(const struct mx_comm_rank &r, uint64_t *begin)
{
	if (load_acquire(r.ended))
		return false;
	const uint64_t now = now_ns();
	*begin = *begin ? *begin : now;
	if (now - *begin < MX_COMM_PATIENCE_NS)
		return true;
	store_release(r.ended, 1);
	return false;
}

/* Waits until *flag has reached the epoch. False if the communication has ended. */
static __device__ __forceinline__ bool wait_for(const struct mx_comm_rank &r, const uint32_t *flag,
                                                uint32_t epoch)
{
	uint64_t begin = 0;
	for (uint32_t i = 1; (int32_t)(load_acquire(flag) - epoch) < 0; i++)
		if (i % 128 == 0 && !may_wait(r, &begin))
			return false;
	return true;
}

/* ---- meetings ---- */

/* All ranks' blocks of this number meet: what a block wrote before, its peers can read behind. All
 * threads call it. False if the communication has ended. */
static __device__ __forceinline__ bool meet(const struct mx_comm_rank &r, uint32_t epoch)
{
	const uint32_t b = blockIdx.x, peer = threadIdx.x;
	bool met = true;
	__syncthreads();
	if (peer < r.ranks) {
		__threadfence_system();
		store_release(&r.memory[peer]->met[r.rank][b], epoch);
		met = wait_for(r, &r.memory[r.rank]->met[peer][b], epoch);
	}
	return __syncthreads_and(met);
}

/* The beginning of every kernel, behind which the step's data may be read; returns the block's last
 * epoch. */
static __device__ __forceinline__ uint32_t begin(const struct mx_comm_rank &r, uint64_t *out_clock)
{
	if (!r.shared)
		mx_pdl_launch();
	mx_pdl_wait();
	*out_clock = start_clock(r);
	return r.memory[r.rank]->epochs[blockIdx.x];
}

/* The end. A kernel behind may fill a GPU while it waits for this one: where a peer needs the same
 * GPU to get here, it begins only now. All threads have read the last epoch before. */
static __device__ __forceinline__ void end(const struct mx_comm_rank &r, uint32_t epoch,
                                           uint64_t clock)
{
	stop_clock(r, clock);
	if (!threadIdx.x)
		r.memory[r.rank]->epochs[blockIdx.x] = epoch;
	if (r.shared)
		mx_pdl_launch();
}

/* ---- elements, 16 bytes at a time ---- */

static __device__ __forceinline__ uint4 load_peer(const void *p)
{
	uint4 v;
	asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
	             : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
	             : "l"(p)
	             : "memory");
	return v;
}

static __device__ __forceinline__ bool is_aligned(const void *p, size_t to)
{
	return (uintptr_t)p % to == 0;
}

template <typename T> struct vec {
	static const size_t N = 16 / sizeof(T);
	union {
		uint4 all;
		T one[N];
	};
};

/* Reads elements [at, at + N) of x[n], zeros behind the end. */
template <typename T>
static __device__ __forceinline__ vec<T> load(const T *x, size_t at, size_t n, bool whole)
{
	vec<T> v;
	if (whole && at + v.N <= n) {
		v.all = load_peer(x + at);
		return v;
	}
	v.all = make_uint4(0, 0, 0, 0);
	for (size_t k = 0; k < v.N && at + k < n; k++)
		v.one[k] = ((const volatile T *)x)[at + k];
	return v;
}

template <>
__device__ __forceinline__ vec<__nv_bfloat16> load(const __nv_bfloat16 *x, size_t at, size_t n,
                                                   bool whole)
{
	vec<__nv_bfloat16> v;
	if (whole && at + v.N <= n) {
		v.all = load_peer(x + at);
		return v;
	}
	v.all = make_uint4(0, 0, 0, 0);
	for (size_t k = 0; k < v.N && at + k < n; k++)
		v.one[k] = __ushort_as_bfloat16(((const volatile unsigned short *)x)[at + k]);
	return v;
}

template <typename T>
static __device__ __forceinline__ void store(T *x, size_t at, size_t n, bool whole, const vec<T> &v)
{
	if (whole && at + v.N <= n) {
		*(uint4 *)(x + at) = v.all;
		return;
	}
	for (size_t k = 0; k < v.N && at + k < n; k++)
		x[at + k] = v.one[k];
}

/* ---- packets (comm_push.cu) ---- */

/* 16 bytes of elements with their numbers. */
struct alignas(16) packets {
	uint4 half[2];
};
static_assert(sizeof(struct packets) == MX_COMM_PUSH_BYTES, "a slot is of these");

/* Returns the number behind `n`; 0 is what memory holds at first. The lowest bit alternates. */
static __device__ __forceinline__ uint32_t next_number(uint32_t n)
{
	return n + 1 ? n + 1 : 2;
}

/* Returns the slot of this block in the memory of `owner`, for elements of `sender`. */
static __device__ __forceinline__ packets *slot_of(const struct mx_comm_rank &r, uint32_t owner,
                                                   uint32_t sender, uint32_t number)
{
	const size_t slot = ((size_t)sender * r.push_blocks + blockIdx.x) * 2 + (number & 1);
	return (packets *)r.push[owner] + slot * MX_COMM_PUSH_VECTORS;
}

static __device__ __forceinline__ void put(packets *to, const uint4 &v, uint32_t number)
{
	asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(&to->half[0]), "r"(v.x),
	             "r"(number), "r"(v.y)
	             : "memory");
	asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(&to->half[1]), "r"(v.z),
	             "r"(number), "r"(v.w)
	             : "memory");
}

#endif
