/* SPDX-License-Identifier: Apache-2.0 */
/* Grows the arrays of one call within the memory that the call may take. */
#include "model/tokenizer/internal.h"

void *mx_tok_grow(struct mx_tok_room *room, void *p, size_t old_n, size_t n, size_t size)
{
	size_t more = (n - old_n) * size;
	if (more > room->left) {
		room->over = true;
		return NULL;
	}
	void *q = mx_realloc(p, n, size);
	if (q)
		room->left -= more;
	return q;
}

size_t mx_tok_next_cap(size_t cap)
{
	return cap < 64 ? 64 : cap < 65536 ? cap * 2 : cap + cap / 2;
}
