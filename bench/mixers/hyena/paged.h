/* SPDX-License-Identifier: Apache-2.0 */
/* mixd's own convolution as a server drives it: sequences in pages and slots, each at a position of
 * its own. conv_spread and conv_at_once are this with all of them at the same one. */
#ifndef MX_BENCH_HYENA_PAGED_H
#define MX_BENCH_HYENA_PAGED_H

#include "bench/mixers/hyena/conv.h"

/* The next steps are of n sequences: row i is sequence which[i], and its position at step t is
 * from[i] + t. rewind: all of them, from 0. */
void paged_choose(struct conv *c, uint32_t n, const uint32_t *which, const uint32_t *from);

/* Computes positions 0 .. n - 1 of a sequence as a prompt, from noise, in all layers. */
void paged_prompt(struct conv *c, uint32_t sequence, uint32_t n);

/* Bytes of what save writes of all layers of a sequence that stands at `pos`; load takes it back
 * there, whatever was computed since. */
size_t paged_snapshot_bytes(const struct conv *c);
void paged_save(struct conv *c, uint32_t sequence, uint32_t pos, void *out);
void paged_load(struct conv *c, uint32_t sequence, uint32_t pos, const void *in);

/* Operations of the tiles due after each step of a sequence: out[len]. */
void paged_work(const struct conv *c, double *out);

#endif
