/* SPDX-License-Identifier: Apache-2.0 */
/* mixd's own convolution as a server runs it: sequences in pages and slots, each at its own
 * position. conv_spread and conv_at_once are the same with all sequences at one position. */
#ifndef MX_BENCH_HYENA_PAGED_H
#define MX_BENCH_HYENA_PAGED_H

#include "bench/mixers/hyena/conv.h"

/* Lets the next steps run n sequences: row i is sequence which[i], at position from[i] + t in
 * step t. rewind goes back to all sequences, from 0. */
void paged_choose(struct conv *c, uint32_t n, const uint32_t *which, const uint32_t *from);

/* Computes positions 0 .. n - 1 of a sequence as a prompt of noise, in all layers. */
void paged_prompt(struct conv *c, uint32_t sequence, uint32_t n);

/* paged_save writes the snapshot of all layers of a sequence at position `pos`; paged_load
 * resumes it there, whatever was computed since. paged_snapshot_bytes returns its size. */
size_t paged_snapshot_bytes(const struct conv *c);
void paged_save(struct conv *c, uint32_t sequence, uint32_t pos, void *out);
void paged_load(struct conv *c, uint32_t sequence, uint32_t pos, const void *in);

/* Computes the operations of the tiles that are due after each step of a sequence: out[len]. */
void paged_work(const struct conv *c, double *out);

#endif
