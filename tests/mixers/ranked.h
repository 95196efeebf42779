/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mixer that several ranks compute, as one mixer: so the generic mixer test tries ranks too. Its
 * pages, slots and snapshots hold those of all ranks, one behind the other. It is given whole
 * tensors and cuts them as the engine does; forward runs each rank in a thread of its own, on a
 * device of its own, and adds up what they give in the order of the ranks.
 */
#ifndef MX_TESTS_MIXERS_RANKED_H
#define MX_TESTS_MIXERS_RANKED_H

#include "mixers/mixer.h"

#define RANKED_MAX 4

/* Returns a mixer of tensor * context ranks of `inner`, a CPU mixer with MX_MIXER_RANKS; a mixer
 * without MX_MIXER_CONTEXT is split over all of them. There is one at a time: the next call changes
 * it. `isa` is that of the ranks' devices, which have one thread each. */
const struct mx_mixer_ops *ranked(const struct mx_mixer_ops *inner, uint32_t tensor,
                                  uint32_t context, enum mx_isa isa);

#endif
