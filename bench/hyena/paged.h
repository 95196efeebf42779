/* SPDX-License-Identifier: Apache-2.0 */
/* mixd's own convolution as a server drives it: sequences in pages and slots, each at its own
 * position. conv_spread is this with all of them at the same one. */
#ifndef MX_BENCH_HYENA_PAGED_H
#define MX_BENCH_HYENA_PAGED_H

#include "bench/hyena/conv.h"

/* The next steps are of sequences which[0 .. n - 1], at positions pos[0 .. n - 1]; begin's t counts
 * from there. rewind: all, from 0. */
void paged_choose(struct conv *c, uint32_t n, const uint32_t *which, const uint32_t *pos);

/* Computes positions 0 .. pos - 1 of a sequence as a prompt, from noise, in all layers. */
void paged_prompt(struct conv *c, uint32_t sequence, uint32_t pos);

#endif
