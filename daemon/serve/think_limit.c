/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/think_limit.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "daemon/serve/tool_arguments.h"
#include "device/sampling.h"

enum place { BEFORE, INSIDE, BEHIND };

struct limit {
	struct mx_constraint base;
	const struct mx_think_rules *rules;
	struct mx_constraint *inner; /* NULL = none */
	enum place place;
	uint32_t used;            /* tokens of reasoning so far */
	size_t forced;            /* tokens of the mark that were asked for and came */
	char tail[MX_THINK_MARK]; /* the last bytes of the output, as many as a mark can have */
	size_t n_tail;
};

/* Adds a byte to the tail. True if the output now ends with the mark. */
static bool ends(struct limit *l, char byte, const char *mark)
{
	size_t n = strlen(mark);
	if (l->n_tail == sizeof(l->tail))
		memmove(l->tail, l->tail + 1, --l->n_tail);
	l->tail[l->n_tail++] = byte;
	return l->n_tail >= n && !memcmp(l->tail + l->n_tail - n, mark, n);
}

static void enter(struct limit *l, enum place place)
{
	l->place = place;
	l->n_tail = 0;
	l->forced = 0;
}

/* Takes a byte in front of reasoning. Where this begins at once or not at all, white space may
 * stand in front of the mark, and the tail is what has come of the mark. */
static void before(struct limit *l, char byte)
{
	const char *mark = l->rules->begin;
	bool begun = ends(l, byte, mark);
	if (begun) {
		enter(l, INSIDE);
	} else if (!l->rules->again) {
		bool space = l->n_tail == 1 && strchr(" \t\r\n", byte) && byte;
		if (space)
			l->n_tail = 0;
		else if (memcmp(l->tail, mark, l->n_tail))
			enter(l, BEHIND);
	}
}

static void read_token(struct limit *l, int32_t token)
{
	size_t n;
	const uint8_t *s = mx_grammar_vocab_token(l->rules->vocab, token, &n);
	for (size_t i = 0; i < n; i++) {
		if (s[i] == (uint8_t)*MX_TOOL_MARK) /* it says that the token is a mark */
			continue;
		if (l->place == BEFORE)
			before(l, (char)s[i]);
		else if (l->place == INSIDE && ends(l, (char)s[i], l->rules->end))
			enter(l, l->rules->again ? BEFORE : BEHIND);
	}
}

static bool is_due(const struct limit *l)
{
	return l->place == INSIDE && l->used >= l->rules->budget && l->forced < l->rules->n_last;
}

static mx_status accept(struct mx_constraint *base, int32_t token, const char **cause)
{
	struct limit *l = (struct limit *)base;
	bool inside = l->place == INSIDE;
	if (is_due(l) && token == l->rules->last[l->forced])
		l->forced++;
	read_token(l, token);
	l->used += inside && l->place == INSIDE && !l->forced;
	return l->inner ? l->inner->ops->accept(l->inner, token, cause) : MX_OK;
}

static mx_status mask(struct mx_constraint *base, uint32_t *allowed, const char **cause)
{
	struct limit *l = (struct limit *)base;
	uint32_t vocab = (uint32_t)mx_grammar_vocab_size(l->rules->vocab);
	size_t words = mx_mask_words(vocab);
	mx_status st = MX_OK;
	if (l->inner) {
		st = l->inner->ops->mask(l->inner, allowed, cause);
	} else {
		memset(allowed, 0xff, words * sizeof(*allowed));
		if (vocab % 32)
			allowed[words - 1] = (1u << vocab % 32) - 1;
	}
	if (st != MX_OK || !is_due(l))
		return st;
	uint32_t next = (uint32_t)l->rules->last[l->forced], bit = 1u << next % 32;
	if (next < vocab && allowed[next / 32] & bit) {
		memset(allowed, 0, words * sizeof(*allowed));
		allowed[next / 32] = bit;
	}
	return MX_OK;
}

static const struct mx_constraint_ops ops = {accept, mask};

mx_status mx_think_limit_new(const struct mx_think_rules *rules, struct mx_constraint *inner,
                             struct mx_constraint **out)
{
	struct limit *l = mx_calloc(1, sizeof(*l));
	if (!l)
		return MX_E_NOMEM;
	*l = (struct limit){.base = {&ops}, .rules = rules, .inner = inner};
	l->place = rules->open ? INSIDE : BEFORE;
	*out = &l->base;
	return MX_OK;
}

void mx_think_limit_free(struct mx_constraint *c)
{
	free(c);
}
