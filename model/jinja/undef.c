/* SPDX-License-Identifier: Apache-2.0 */
/* Makes undefined values, and raises the errors of using them. */
#include "model/jinja/jinja.h"

struct jj_value jj_undef_text(struct jj *j, const char *text)
{
	struct jj_undef *u = jj_alloc(j, 1, sizeof *u);
	u->text = text;
	return (struct jj_value){.type = JJ_UNDEF, .u = u};
}

struct jj_value jj_undef_attr(struct jj *j, struct jj_value object, struct jj_value name)
{
	struct jj_undef *u = jj_alloc(j, 1, sizeof *u);
	if (object.type == JJ_UNDEF)
		jj_raise_undef(j, object);
	if (object.type == JJ_NONE) {
		u->object = "None";
	} else {
		struct jj_sb sb = {0};
		jj_sb_puts(j, &sb, jj_type_name(object));
		jj_sb_put(j, &sb, " object", 8);
		u->object = jj_sb_done(j, &sb).s->p;
	}
	u->name = name;
	return (struct jj_value){.type = JJ_UNDEF, .u = u};
}

_Noreturn void jj_raise_undef(struct jj *j, struct jj_value v)
{
	const struct jj_undef *u = v.u;
	if (u->text)
		jj_raise(j, MX_E_INVALID, "%s", u->text);
	struct jj_sb sb = {0};
	jj_repr(j, &sb, u->name);
	struct jj_str *name = jj_sb_done(j, &sb).s;
	int n = name->len < 200 ? (int)name->len : 200;
	if (!u->object)
		jj_raise(j, MX_E_INVALID, "%.*s is undefined", n, name->p);
	if (u->name.type == JJ_STR)
		jj_raise(j, MX_E_INVALID, "'%s' has no attribute %.*s", u->object, n, name->p);
	jj_raise(j, MX_E_INVALID, "%s has no element %.*s", u->object, n, name->p);
}
