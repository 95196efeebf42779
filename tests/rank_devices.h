/* SPDX-License-Identifier: Apache-2.0 */
/* The devices of a test's ranks. */
#ifndef MX_TESTS_RANK_DEVICES_H
#define MX_TESTS_RANK_DEVICES_H

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* Sets names[n] to the devices of n ranks: those that MIXD_TEST_DEVICES lists ("cuda:0,cuda:1"),
 * one after the other and around again, or `device` for all without it. Returns how many devices
 * that are. The names are valid until the next call. */
static inline size_t rank_devices(const char *device, const char **names, size_t n)
{
	static char list[256];
	const char *given = getenv("MIXD_TEST_DEVICES"), *found[8];
	size_t n_found = 0;
	strncpy(list, given ? given : "", sizeof list - 1);
	for (char *save, *p = strtok_r(list, ",", &save); p && n_found < 8;
	     p = strtok_r(NULL, ",", &save))
		found[n_found++] = p;
	for (size_t i = 0; i < n; i++)
		names[i] = n_found ? found[i % n_found] : device;
	return n_found ? n_found : 1;
}

#endif
