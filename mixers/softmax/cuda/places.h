/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Places: which keys of a sequence a rank has that shares pages with others, and where. For C and
 * CUDA C++.
 *
 * The ranks of a group have MX_TURN positions each by turns. A key's place is its number among the
 * keys of its rank: its position, unless ranks share pages. Places are in the order of positions,
 * and those from one multiple of MX_TURN to the next are neighbours.
 */
#ifndef MX_MIXERS_SOFTMAX_CUDA_PLACES_H
#define MX_MIXERS_SOFTMAX_CUDA_PLACES_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __CUDACC__
#define MX_PLACES_INLINE static __host__ __device__ __forceinline__
#else
#define MX_PLACES_INLINE static inline
#endif

#define MX_TURN 32

/* A file that defines MX_ALONE has kernels for ranks that share no pages, and no code for others:
 * what is never run costs time too, where each kernel's code is read anew. */
#ifdef MX_ALONE
#define MX_SHARES(p) false
#else
#define MX_SHARES(p) ((p)->contexts > 1)
#endif

struct mx_places {
	uint32_t contexts,
		context;        /* ranks that share pages, and the number of this one; 1, 0 = none */
	uint32_t far, near; /* position = place + place / MX_TURN * far + near */
};

MX_PLACES_INLINE struct mx_places mx_places_of_rank(uint32_t contexts, uint32_t context)
{
	struct mx_places p;
	p.contexts = contexts;
	p.context = context;
	p.far = (contexts - 1) * MX_TURN;
	p.near = context * MX_TURN;
	return p;
}

/* Returns the place of the first key that the rank has from position pos on. */
MX_PLACES_INLINE uint32_t mx_place_of(const struct mx_places *p, uint32_t pos)
{
	if (!MX_SHARES(p))
		return pos;
	const uint32_t turn = pos / MX_TURN, round = turn / p->contexts;
	const uint32_t whose = turn - round * p->contexts;
	return round * MX_TURN + (whose == p->context  ? pos % MX_TURN
	                          : whose > p->context ? MX_TURN
	                                               : 0);
}

/* True if the rank has the key at pos. */
MX_PLACES_INLINE bool mx_has_place(const struct mx_places *p, uint32_t pos)
{
	return !MX_SHARES(p) || pos / MX_TURN % p->contexts == p->context;
}

/* Returns the position of the key at a place. */
MX_PLACES_INLINE uint32_t mx_position_of(const struct mx_places *p, uint32_t place)
{
#ifdef MX_ALONE
	(void)p;
	return place;
#else
	return place + place / MX_TURN * p->far + p->near;
#endif
}

/* Returns an upper bound for the keys that the rank has of so many positions. */
MX_PLACES_INLINE uint32_t mx_most_places(const struct mx_places *p, uint32_t positions)
{
	return p->contexts <= 1 ? positions : (positions / (p->contexts * MX_TURN) + 1) * MX_TURN;
}

/* Returns where the partial of a row and a head goes, in floats, in what the rank tells the others:
 * [contexts][n_rows][heads / contexts][dim + 4], struct mx_partials of device/comm.h. */
MX_PLACES_INLINE size_t mx_partial_at(const struct mx_places *p, uint32_t n_rows, uint32_t heads,
                                      uint32_t dim, uint32_t row, uint32_t head)
{
	const uint32_t own = heads / p->contexts, to = head / own;
	return (((size_t)to * n_rows + row) * own + (head - to * own)) * (dim + 4);
}

#endif
