/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between the two calls, subnormal numbers are flushed to 0. They occur in products
 * of decays and in tails of transforms, and arithmetic on them is slow.
 */
#ifndef MX_DEVICE_CPU_DENORMALS_H
#define MX_DEVICE_CPU_DENORMALS_H

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

/* Returns the previous state, for denormals_restore. */
static inline unsigned denormals_off(void)
{
#if defined(__SSE__)
	unsigned state = _mm_getcsr();
	_mm_setcsr(state | 0x8040); /* flush to zero, denormals are zero */
	return state;
#else
	return 0;
#endif
}

static inline void denormals_restore(unsigned state)
{
#if defined(__SSE__)
	_mm_setcsr(state);
#else
	(void)state;
#endif
}

#endif
