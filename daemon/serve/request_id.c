/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/request_id.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"

#define TRACE_ID 32 /* hexadecimal digits of a trace id */

/* Returns the process's random number, never 0. */
static uint64_t process_key(void)
{
	static _Atomic uint64_t key;
	uint64_t k = atomic_load(&key);
	while (k == 0) {
		uint64_t fresh;
		if (getrandom(&fresh, sizeof(fresh), 0) != sizeof(fresh))
			fresh = mx_wall_ns();
		fresh |= 1;
		if (atomic_compare_exchange_strong(&key, &k, fresh))
			k = fresh;
	}
	return k;
}

static bool is_printable(const char *s)
{
	size_t n = strlen(s);
	for (size_t i = 0; i < n; i++)
		if (s[i] <= ' ' || s[i] >= 0x7f)
			return false;
	return n > 0 && n <= MX_REQUEST_ID_LEN;
}

/* Returns the trace id in "VV-<32 digits>-<16 digits>-FF", NULL if it is not there or all zero
 * (W3C Trace Context, 3.2.2). A later version may have more behind. */
static const char *trace_id(const char *s)
{
	static const char form[] = "xx-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx-xxxxxxxxxxxxxxxx-xx";
	bool zero = true;
	for (size_t i = 0; form[i]; i++) {
		bool digit = (s[i] >= '0' && s[i] <= '9') || (s[i] >= 'a' && s[i] <= 'f');
		if (form[i] == 'x' ? !digit : s[i] != '-')
			return NULL;
		zero = zero && (i < 3 || i >= 3 + TRACE_ID || s[i] == '0');
	}
	return zero || !strncmp(s, "ff", 2) ? NULL : s + 3;
}

void mx_request_id(const char *given, const char *trace, char out[MX_REQUEST_ID_LEN + 1])
{
	static _Atomic uint64_t counter;
	if (given && is_printable(given)) {
		memcpy(out, given, strlen(given) + 1);
		return;
	}
	const char *id = trace ? trace_id(trace) : NULL;
	if (id) {
		memcpy(out, id, TRACE_ID);
		out[TRACE_ID] = 0;
		return;
	}
	/* splitmix64 from a random start: unique in this process, and hardly ever equal elsewhere */
	uint64_t k = process_key();
	uint64_t z = k + atomic_fetch_add(&counter, 1) * 0x9e3779b97f4a7c15u;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	z ^= z >> 31;
	snprintf(out, MX_REQUEST_ID_LEN + 1, "%016" PRIx64 "%08x", z, (unsigned)(k >> 32));
}
