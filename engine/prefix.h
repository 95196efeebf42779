/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The prefix cache as sequences see it: what they take from it when they attach
 * and leave in it as they are computed.
 *
 * State in pages is shared by the full page (pages.h). State in slots can only
 * be resumed where a copy was made (snapshots.h): a snapshot is the slot after
 * p tokens, and the page that holds token p-1, since that page is shared only
 * when it is full. With the full pages before it, which must still be known, a
 * sequence goes on at p, to the token. One whose prompt has just p tokens goes
 * on at p-1: the last token of a prompt is always computed, for its logits.
 *
 * Snapshots are taken where somebody may come back to:
 *   at the end of the prompt      the same prompt again, or another answer to it
 *   at the end of the sequence    the next turn of a chat; and after a preemption
 *   at multiples of snapshot_every   a document with another question behind it
 *   where a prompt parts from those before it   the system message that chats begin with: the
 *       second of them saves its state, the third resumes there
 *
 * Engine thread only.
 */
#ifndef MX_ENGINE_PREFIX_H
#define MX_ENGINE_PREFIX_H

#include "engine/core.h"

/* Looks the sequence up, takes what there is and sets s->computed. It has its slot and no pages. A
 * sequence that must compute all its tokens is not looked up, nor one that wants no prefix cache.
 * MX_E_NOMEM: no page for the end of what was found; no pages are held. */
mx_status mx_prefix_attach(struct mx_core *c, struct mx_seq *s);

/* As mx_engine_ops.chunk. */
uint32_t mx_prefix_chunk(const struct mx_core *c, const struct mx_seq *s, uint32_t n);

/* s->computed tokens have their state: full pages become known, and at a point the sequence is due
 * for saving. */
void mx_prefix_commit(struct mx_core *c, struct mx_seq *s);

/* Saves what is due. */
void mx_prefix_save_snapshots(struct mx_core *c);

/* Saves the state, unless a step has left it undefined, and gives the pages back. */
void mx_prefix_release(struct mx_core *c, struct mx_seq *s);

/* Forgets everything that no sequence holds. */
void mx_prefix_drop(struct mx_core *c);

/* Fills the prefix cache's part. Any thread. */
void mx_prefix_usage(const struct mx_core *c, struct mx_engine_usage *out);

#endif
