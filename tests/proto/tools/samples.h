/* SPDX-License-Identifier: Apache-2.0 */
/* Answers in each format and what parsers make of them. */
#ifndef MX_TESTS_TOOLS_SAMPLES_H
#define MX_TESTS_TOOLS_SAMPLES_H

#include <stdbool.h>
#include <stddef.h>

struct mx_sample {
	const char *calls;     /* name of the format, NULL = none */
	const char *reasoning; /* the same */
	bool open;             /* the prompt has begun the reasoning */
	const char *text;
	/* Its events, joined: C(content) R(reasoning) B(id,name) A(arguments) E (end) X(text of a
	 * broken call) T (end of one that was cut off). An id that the parser made is a star. */
	const char *events;
};
extern const struct mx_sample mx_samples[];
extern const size_t mx_n_samples;
/* The tools of the samples, as JSON. */
extern const char mx_sample_tools[];

#endif
