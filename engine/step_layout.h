/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The input of a step for mixers and device: converts core.items to spans, token ids, positions and
 * tables. Computes nothing, and copies nothing to the device.
 */
#ifndef MX_ENGINE_STEP_LAYOUT_H
#define MX_ENGINE_STEP_LAYOUT_H

#include "engine/model_engine.h"

/* Returns a span of the sequence's next n tokens, the first of which is row `row`. */
struct mx_span mx_span_of(const struct mx_seq *q, uint32_t row, uint32_t n);

/* Fills scratch.spans, one for each item, and the ids and positions of their rows in `to`, in the
 * order of the items. Returns the number of rows; *out_longest = tokens of the longest span. */
uint32_t mx_lay_out_rows(struct mx_model_engine *e, const struct mx_tables *to,
                         uint32_t *out_longest);

/* Fills scratch.spans with a span of no tokens for each item whose sequence was loaded from a
 * snapshot and has not run since, if a mixer has work in resume. Returns the number of spans.
 * Clears `resumes` of all items' sequences. */
uint32_t mx_lay_out_resumed(struct mx_model_engine *e);

/* Copies scratch.spans [n_spans] and the span of each row to the tables. Their pages are those of
 * their slots in the page table. */
void mx_lay_out_spans(const struct mx_model_engine *e, uint32_t n_spans,
                      const struct mx_tables *to);

/* Fills what a recorded step of `rows` rows and `spans` spans has beyond n_rows and n_spans with
 * padding: spans of no tokens, one more than recorded, to which the rows belong. */
void mx_lay_out_padding(const struct mx_tables *to, uint32_t n_rows, uint32_t n_spans,
                        uint32_t rows, uint32_t spans);

/* Returns the tables that mixers see; t is in the device's memory. */
struct mx_device_tables mx_device_tables_of(const struct mx_model_engine *e,
                                            const struct mx_tables *t);

#endif
