/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the mixers and the device are told of a step: from core.items to spans, token ids, positions
 * and tables. Nothing is computed or copied to the device here.
 */
#ifndef MX_ENGINE_STEP_LAYOUT_H
#define MX_ENGINE_STEP_LAYOUT_H

#include "engine/model_engine.h"

/* Lays out scratch.spans, one for each item, and at `to` the ids and positions of their rows, in
 * the order of the items. Returns the number of rows; *out_longest = tokens of the longest span. */
uint32_t mx_lay_out_rows(struct mx_model_engine *e, const struct mx_tables *to,
                         uint32_t *out_longest);

/* Lays out in scratch.spans a span without tokens for each item whose sequence was loaded from a
 * snapshot and has not run since, if a mixer has work in resume. Returns their number. These
 * sequences count as resumed from now on. */
uint32_t mx_lay_out_resumed(struct mx_model_engine *e);

/* Copies scratch.spans [n_spans], their pages, and the span of each row to the tables. Returns the
 * number of pages. */
uint32_t mx_lay_out_spans(const struct mx_model_engine *e, uint32_t n_spans,
                          const struct mx_tables *to);

/* Fills up rows and spans [from, rows) of a recorded step with padding: spans of no tokens. */
void mx_lay_out_padding(const struct mx_tables *to, uint32_t from, uint32_t rows);

/* Returns the part of tables in the device's memory that mixers see. */
struct mx_device_tables mx_device_tables_of(const struct mx_tables *t);

#endif
