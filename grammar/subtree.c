/* SPDX-License-Identifier: Apache-2.0 */
#include "grammar/subtree.h"

#include <stdbool.h>

#include "grammar/bytes.h"

/* UTF-8 (Unicode 15, table 3-7): between characters, then by what must come next. */
enum { START, ONE, TWO, THREE, AFTER_E0, AFTER_ED, AFTER_F0, AFTER_F4, N_STATES, DEAD };

static int next(int state, uint8_t b)
{
	bool tail = b >= 0x80 && b <= 0xbf;
	switch (state) {
	case START:
		if (b < 0x80)
			return START;
		if (b >= 0xc2 && b <= 0xdf)
			return ONE;
		if (b >= 0xe0 && b <= 0xef)
			return b == 0xe0 ? AFTER_E0 : b == 0xed ? AFTER_ED : TWO;
		if (b >= 0xf0 && b <= 0xf4)
			return b == 0xf0 ? AFTER_F0 : b == 0xf4 ? AFTER_F4 : THREE;
		return DEAD;
	case ONE: return tail ? START : DEAD;
	case TWO: return tail ? ONE : DEAD;
	case THREE: return tail ? TWO : DEAD;
	case AFTER_E0: return tail && b >= 0xa0 ? ONE : DEAD;
	case AFTER_ED: return tail && b <= 0x9f ? ONE : DEAD;
	case AFTER_F0: return tail && b >= 0x90 ? TWO : DEAD;
	default: return tail && b <= 0x8f ? TWO : DEAD;
	}
}

void mx_subtrees(const struct mx_trie *t, struct mx_subtree *out)
{
	for (uint32_t i = t->n_nodes; i-- > 0;) {
		struct mx_subtree here = {0, (1 << N_STATES) - 1};
		for (uint32_t k = i + 1; k < t->nodes[i].end; k = t->nodes[k].end) {
			uint8_t byte = t->nodes[k].byte;
			here.bytes |= mx_byte_bit(byte) | out[k].bytes;
			for (int s = 0; s < N_STATES; s++) {
				int to = next(s, byte);
				if (to == DEAD || !(out[k].utf8 >> to & 1))
					here.utf8 &= (uint16_t) ~(1 << s);
			}
		}
		out[i] = here;
	}
}
