/* SPDX-License-Identifier: Apache-2.0 */
/* Formats of JSON Schema as regular expressions. */
#include <string.h>

#include "grammar/json_schema_regex.h"
#include "grammar/json_schema_scalar.h"

/* RFC 3339; years from 0001 and no leap seconds, which few readers take. */
#define DAY                                                                                        \
	"(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-" \
	"9]|"                                                                                          \
	"30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468]["    \
	"048]|"                                                                                        \
	"[13579][26])00)-02-29)"
#define CLOCK                                                                                      \
	"(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]+)?(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):" \
	"[0-5][0-9]))"
/* RFC 3339, appendix A */
#define CLOCK_SPAN "(?:T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S))"
#define DAY_SPAN   "(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
/* RFC 1123 */
#define LABEL "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
#define SHORT "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,18}[a-zA-Z0-9])?"
#define OCTET "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define IPV4  "(?:" OCTET "\\." OCTET "\\." OCTET "\\." OCTET ")"
#define H16   "[0-9a-fA-F]{1,4}"
#define LS32  "(?:" H16 ":" H16 "|" IPV4 ")"
/* RFC 3986, section 3.2.2 */
#define IPV6                                                                                       \
	"(?:(?:" H16 ":){6}" LS32 "|::(?:" H16 ":){5}" LS32 "|(?:" H16 ")?::(?:" H16 ":){4}" LS32      \
	"|(?:(?:" H16 ":){0,1}" H16 ")?::(?:" H16 ":){3}" LS32 "|(?:(?:" H16 ":){0,2}" H16             \
	")?::(?:" H16 ":){2}" LS32 "|(?:(?:" H16 ":){0,3}" H16 ")?::" H16 ":" LS32 "|(?:(?:" H16       \
	":){0,4}" H16 ")?::" LS32 "|(?:(?:" H16 ":){0,5}" H16 ")?::" H16 "|(?:(?:" H16 ":){0,6}" H16   \
	")?::)"
/* RFC 5321: local part as dot-string or quoted-string; domain or address literal */
#define ATOM "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+"
#define EMAIL                                                                                      \
	"(?:" ATOM "(?:\\." ATOM ")*|\"(?:[ !#-\\[\\]-~]|\\\\[ -~])*\")@(?:" LABEL "(?:\\." LABEL      \
	")*|\\[" IPV4 "\\]|\\[IPv6:" IPV6 "\\])"
/* RFC 3986; `more` are further unreserved characters (RFC 3987) and `private` those of queries */
#define PCT            "%[0-9a-fA-F]{2}"
#define PCHAR(more)    "(?:[a-zA-Z0-9._~!$&'()*+,;=:@" more "-]|" PCT ")"
#define SEGMENTS(more) "(?:/" PCHAR(more) "*)*"
#define AUTHORITY(more)                                                                            \
	"(?:(?:[a-zA-Z0-9._~!$&'()*+,;=:" more "-]|" PCT ")*@)?(?:\\[(?:" IPV6                         \
	"|[vV][0-9a-fA-F]+\\.[a-zA-Z0-9._~!$&'()*+,;=:-]+)\\]|(?:[a-zA-Z0-9._~!$&'()*+,;=" more        \
	"-]|" PCT ")*)(?::[0-9]*)?"
#define TAIL(more, private)                                                                        \
	"(?:\\?(?:" PCHAR(more private) "|[/?])*)?(?:#(?:" PCHAR(more) "|[/?])*)?"
#define URI(more, private)                                                                         \
	"[a-zA-Z][a-zA-Z0-9+.-]*:(?://" AUTHORITY(more) SEGMENTS(more) "|/(?:" PCHAR(                  \
		more) "+" SEGMENTS(more) ")?|" PCHAR(more) "+" SEGMENTS(more) "|)" TAIL(more, private)
#define RELATIVE(more, private)                                                                    \
	"(?://" AUTHORITY(more) SEGMENTS(more) "|/(?:" PCHAR(more) "+" SEGMENTS(                       \
		more) ")?|"                                                                                \
			  "(?:[a-zA-Z0-9._~!$&'()*+,;=@" more "-]|" PCT                                        \
			  ")+" SEGMENTS(more) "|)" TAIL(more, private)
#define UCS                                                                                        \
	"\\u{a0}-\\u{d7ff}\\u{f900}-\\u{fdcf}\\u{fdf0}-\\u{ffef}\\u{10000}-\\u{1fffd}\\u{20000}-"      \
	"\\u{2fffd}\\u{30000}-\\u{3fffd}\\u{e1000}-\\u{efffd}"
#define PRIVATE "\\u{e000}-\\u{f8ff}\\u{f0000}-\\u{ffffd}\\u{100000}-\\u{10fffd}"
#define POINTER "(?:/(?:[^/~]|~[01])*)*"

static const struct {
	const char *name, *pattern; /* NULL: cannot be enforced */
	const char *except;         /* strings with this pattern are left out; or NULL */
} formats[] = {
	{"date", "^" DAY "$", "^0000"},
	{"date-time", "^" DAY "[Tt]" CLOCK "$", "^0000"},
	{"time", "^" CLOCK "$", NULL},
	{"duration", "^P(?:[0-9]+W|" DAY_SPAN CLOCK_SPAN "?|" CLOCK_SPAN ")$", NULL},
	{"email", "^" EMAIL "$", NULL},
	/* 253 characters at most: three long labels, or twelve short ones. Exact would take 16000
     * states.
     * "--" in the third and fourth place announces punycode, whose rules are not regular. */
	{"hostname", "^(?:" LABEL "(?:\\." LABEL "){0,2}|" SHORT "(?:\\." SHORT "){0,11})$",
     "(?:^|\\.)..--"},
	{"ipv4", "^" IPV4 "$", NULL},
	{"ipv6", "^" IPV6 "$", NULL},
	{"uuid", "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$", NULL},
	{"uri", "^" URI("", "") "$", NULL},
	{"uri-reference", "^(?:" URI("", "") "|" RELATIVE("", "") ")$", NULL},
	{"iri", "^" URI(UCS, PRIVATE) "$", NULL},
	{"iri-reference", "^(?:" URI(UCS, PRIVATE) "|" RELATIVE(UCS, PRIVATE) ")$", NULL},
	{"json-pointer", "^" POINTER "$", NULL},
	{"relative-json-pointer", "^(?:0|[1-9][0-9]*)(?:#|" POINTER ")$", NULL},
	{"idn-email", NULL, NULL},
	{"idn-hostname", NULL, NULL},
	{"uri-template", NULL, NULL},
	{"regex", NULL, NULL},
};

_Static_assert(sizeof formats / sizeof formats[0] <= 24, "js_base.formats is too small");

static const struct js_dfa *regex(struct js_base *b, const char *pattern)
{
	return js_dfa_regex(b, pattern, strlen(pattern));
}

const struct js_dfa *js_format(struct js_base *b, const char *name, bool *refused)
{
	*refused = false;
	for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
		if (strcmp(formats[i].name, name) != 0)
			continue;
		*refused = !formats[i].pattern;
		if (*refused)
			return NULL;
		if (b->formats[i])
			return b->formats[i];
		const struct js_dfa *d = regex(b, formats[i].pattern);
		if (formats[i].except)
			d = js_dfa_minus(b, d, regex(b, formats[i].except));
		return b->formats[i] = d;
	}
	return NULL;
}
