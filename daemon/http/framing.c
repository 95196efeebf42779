/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/http/framing.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "daemon/http/pump.h"

#define MAX_ARGUMENTS 64 /* of a query */

#define NUMBER(c) ((c) >= '0' && (c) <= '9')
#define LETTER(c) (((c) | 0x20) >= 'a' && ((c) | 0x20) <= 'z')

bool mx_framing_by_library(void)
{
	return atoi(MHD_get_version()) >= 1;
}

static struct mx_pump_conn *entry_of(struct MHD_Connection *c)
{
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
	return info ? info->socket_context : NULL;
}

/* ---- the request line ---- */

static bool is_hex(char c)
{
	return NUMBER(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f');
}

/* Returns the end of a request target; NULL if it has spaces or control characters, or if its path
 * has a percent sign that stands for no byte or for NUL, where the decoded path would end. */
static const char *target_end(const char *target)
{
	bool path = true;
	const char *s = target;
	for (; *s; s++) {
		path = path && *s != '?';
		if ((unsigned char)*s <= ' ' || *s == 0x7f)
			return NULL;
		if (path && *s == '%' && (!is_hex(s[1]) || !is_hex(s[2]) || !memcmp(s + 1, "00", 2)))
			return NULL;
	}
	return s == target ? NULL : s;
}

/* Removes a query with more than MAX_ARGUMENTS, of each of which libmicrohttpd would keep a record
 * in the connection's memory: that may be exhausted, and then nobody gets an answer. The string is
 * libmicrohttpd's own buffer, which it cuts up itself right after this. */
static bool cut_query(const char *target)
{
	char *query = (char *)(uintptr_t)strchr(target, '?');
	unsigned n = 0;
	for (const char *s = query; s && *s; s++)
		n += *s == '&';
	if (n < MAX_ARGUMENTS)
		return false;
	query[1] = 0;
	return true;
}

void mx_framing_note_target(struct MHD_Connection *c, const char *target)
{
	struct mx_pump_conn *entry = entry_of(c);
	if (!entry)
		return;
	entry->target_end = target ? target_end(target) : NULL;
	entry->many_arguments = target && cut_query(target);
}

/* ---- the fields ---- */

/* RFC 9110, 5.6.2: the characters of field names and methods. */
static bool is_token(const char *s, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!LETTER(s[i]) && !NUMBER(s[i]) && (!s[i] || !strchr("!#$%&'*+-.^_`|~", s[i])))
			return false;
	return n > 0;
}

static bool is_value(const char *s, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (((unsigned char)s[i] < ' ' && s[i] != '\t') || s[i] == 0x7f)
			return false;
	return true;
}

static bool is_host(const char *s, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if ((unsigned char)s[i] <= ' ' || strchr("/\\?#@,", s[i]))
			return false;
	return true;
}

struct fields {
	const char *at; /* where the next line has to begin; NULL: the library has checked that */
	const char *why;
	unsigned n_host, n_length, n_coding;
	bool chunked; /* said by the last Transfer-Encoding */
};

static bool is_named(const char *key, size_t n, const char *name)
{
	return n == strlen(name) && !strncasecmp(key, name, n);
}

/* Checks that the line begins where the one before ended with CR LF, and that nothing but a colon
 * and white space is between name and value. */
static bool in_line(struct fields *f, const char *key, size_t n_key, const char *value,
                    size_t n_value)
{
	if (!f->at)
		return true;
	if (f->at != key || value <= key + n_key)
		return false;
	for (const char *s = key + n_key + 1; s < value; s++)
		if (*s != ' ' && *s != '\t')
			return false;
	f->at = value + n_value + 2;
	return true;
}

static enum MHD_Result check_field(void *arg, enum MHD_ValueKind kind, const char *key,
                                   size_t n_key, const char *value, size_t n_value)
{
	(void)kind;
	struct fields *f = arg;
	if (!value)
		value = "", n_value = 0;
	if (!is_token(key, n_key))
		f->why = "a header field's name has a character that is not allowed, such as a space";
	else if (!is_value(value, n_value))
		f->why = "a header field's value has a control character";
	else if (!in_line(f, key, n_key, value, n_value))
		f->why = "a header line does not end with CR LF, is folded, or has a NUL";
	if (is_named(key, n_key, "Host")) {
		f->n_host++;
		if (!is_host(value, n_value))
			f->why = "the Host field is not the name of a host";
	}
	f->n_length += is_named(key, n_key, "Content-Length");
	if (is_named(key, n_key, "Transfer-Encoding")) {
		f->n_coding++;
		f->chunked = is_named(value, n_value, "chunked");
	}
	return f->why ? MHD_NO : MHD_YES;
}

/* Where the first field has to begin; NULL if the request line is not "METHOD target VERSION" with
 * single spaces, so that libmicrohttpd's strings stand in a row. */
static const char *behind_request_line(const struct mx_pump_conn *entry, const char *method,
                                       const char *url, const char *version)
{
	if (url != method + strlen(method) + 1 || entry->target_end + 1 != version)
		return NULL;
	return version + strlen(version) + 2;
}

static struct mx_framing refuse(unsigned status, const char *why)
{
	return (struct mx_framing){.status = status, .why = why};
}

struct mx_framing mx_framing_check(struct MHD_Connection *c, const char *method, const char *url,
                                   const char *version)
{
	const struct mx_pump_conn *entry = entry_of(c);
	struct fields f = {NULL};
	if (!entry || !entry->target_end)
		return refuse(400, "the request target has a character or an escape that is not allowed");
	if (entry->many_arguments)
		return refuse(400, "the query has more than 64 arguments");
	if (!is_token(method, strlen(method)))
		return refuse(400, "the method has a character that is not allowed");
	if (!mx_framing_by_library() && !(f.at = behind_request_line(entry, method, url, version)))
		return refuse(400, "the request line is not METHOD target VERSION with single spaces");
	MHD_get_connection_values_n(c, MHD_HEADER_KIND, check_field, &f);
	if (f.why)
		return refuse(400, f.why);
	const union MHD_ConnectionInfo *size =
		MHD_get_connection_info(c, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
	if (f.at && (!size || f.at + 2 != method + size->header_size))
		return refuse(400, "a header line does not end with CR LF, is folded, or has a NUL");
	bool old = !strcmp(version, "HTTP/1.0");
	if (f.n_host > 1 || (!f.n_host && !old))
		return refuse(400, "there must be one Host field");
	if (f.n_length + f.n_coding > 1)
		return refuse(400, "there must be one Content-Length or Transfer-Encoding, not several");
	if (f.n_coding && old)
		return refuse(400, "HTTP/1.0 has no Transfer-Encoding");
	if (f.n_coding && !f.chunked)
		return refuse(501, "the only Transfer-Encoding that is understood is chunked");
	return (struct mx_framing){.chunked = f.n_coding > 0};
}
