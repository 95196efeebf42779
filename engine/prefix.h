/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The prefix cache: how a sequence looks up a prefix when it is attached, and saves its state as it
 * is computed.
 *
 * State in pages is shared by full pages (pages.h). State in slots can be resumed only where it was
 * saved (snapshots.h). A snapshot after p tokens holds the slot, and the page of token p-1, because
 * that page is shared only when it is full. If the full pages before are still known, a sequence
 * resumes at p exactly. A prompt of just p tokens resumes at p-1: its last token is always
 * computed, for its logits.
 *
 * Snapshots are saved where a later sequence is likely to resume:
 *   at the end of the prompt         the same prompt again
 *   at the end of the sequence       the next turn of a chat; the sequence after a preemption
 *   at multiples of snapshot_every   a long document with another question after it
 *   where a prompt parts from earlier ones   other chats with the same system message: the second
 *                                            saves the state after it, the third resumes there
 *
 * Engine thread only.
 */
#ifndef MX_ENGINE_PREFIX_H
#define MX_ENGINE_PREFIX_H

#include "engine/core.h"

/* Looks up the longest known prefix of the sequence, takes its state, and sets s->computed. The
 * sequence has its slot, but no pages. There is no look-up if all tokens must be computed (prompt
 * log-probabilities), or if the sequence does not use the prefix cache. MX_E_NOMEM if the prefix
 * ends within a page and no page is free; the sequence then holds no pages. */
mx_status mx_prefix_attach(struct mx_core *c, struct mx_seq *s);

/* Called when a step with s begins: counts the look-up that s was attached with, if it is the
 * sequence's first step. So a sequence counts once, with what it was spared: neither an attach that
 * was given up for lack of pages counts, nor one after a preemption. */
void mx_prefix_count(struct mx_core *c, struct mx_seq *s);

/* Implements chunk of struct mx_engine_ops. */
uint32_t mx_prefix_chunk(const struct mx_core *c, const struct mx_seq *s, uint32_t n);

/* Called when s->computed has grown: adds full pages to the prefix cache, and marks the sequence
 * for mx_prefix_save_snapshots if its state is to be saved here. */
void mx_prefix_commit(struct mx_core *c, struct mx_seq *s);

/* Saves the states of the marked sequences, c->to_save. */
void mx_prefix_save_snapshots(struct mx_core *c);

/* Saves the state, unless a failed step has left it undefined, and gives the pages back. */
void mx_prefix_release(struct mx_core *c, struct mx_seq *s);

/* Drops all snapshots, and all pages that no sequence holds. */
void mx_prefix_drop(struct mx_core *c);

/* Fills the fields about look-ups and snapshots. Any thread. */
void mx_prefix_usage(const struct mx_core *c, struct mx_engine_usage *out);

#endif
