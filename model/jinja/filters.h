/* SPDX-License-Identifier: Apache-2.0 */
/* Declares the filters over sequences (filters_seq.c) for the table of filters in filters.c. */
#ifndef MX_MODEL_JINJA_FILTERS_H
#define MX_MODEL_JINJA_FILTERS_H

#include "model/jinja/jinja.h"

#define JJ_FILTER(name) struct jj_value name(struct jj *j, struct jj_value v, struct jj_args *a)
JJ_FILTER(jj_f_attr);
JJ_FILTER(jj_f_batch);
JJ_FILTER(jj_f_dictsort);
JJ_FILTER(jj_f_first);
JJ_FILTER(jj_f_groupby);
JJ_FILTER(jj_f_items);
JJ_FILTER(jj_f_join);
JJ_FILTER(jj_f_last);
JJ_FILTER(jj_f_list);
JJ_FILTER(jj_f_map);
JJ_FILTER(jj_f_max);
JJ_FILTER(jj_f_min);
JJ_FILTER(jj_f_reject);
JJ_FILTER(jj_f_rejectattr);
JJ_FILTER(jj_f_reverse);
JJ_FILTER(jj_f_select);
JJ_FILTER(jj_f_selectattr);
JJ_FILTER(jj_f_slice);
JJ_FILTER(jj_f_sort);
JJ_FILTER(jj_f_sum);
JJ_FILTER(jj_f_unique);

#endif
