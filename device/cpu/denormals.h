/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers too small for a normal float become 0 between the two calls: products
 * of decays and tails of transforms pass through them, and they are slow.
 */
#ifndef MX_DEVICE_CPU_DENORMALS_H
#define MX_DEVICE_CPU_DENORMALS_H

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

/* Returns what denormals_restore takes. */
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
