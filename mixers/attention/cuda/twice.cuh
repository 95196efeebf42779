/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For kernels that are compiled twice, since code that is never run costs time too: for ranks with
 * pages of their own, and, with ATTN_SHARED, for ranks that share pages (*_shared.cu). Comes before
 * every other header, some of which look at MX_ALONE.
 *
 * OF(f) is the name of a function here. SHARED_INSTEAD(call) is the first statement of a function
 * of a launch `l`: where l->shared, it returns what the other compilation's function does.
 */
#ifndef MX_MIXERS_ATTENTION_CUDA_TWICE_CUH
#define MX_MIXERS_ATTENTION_CUDA_TWICE_CUH

#ifdef ATTN_SHARED
#define OF(name)            name##_shared
#define SHARED_INSTEAD(...) (void)0
#else
#define MX_ALONE
#define OF(name) name
#define SHARED_INSTEAD(...)                                                                        \
	do {                                                                                           \
		if (l->shared)                                                                             \
			return __VA_ARGS__;                                                                    \
	} while (0)
#endif

#endif
