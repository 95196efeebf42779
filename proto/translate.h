/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes requests of other APIs requests for chat completions.
 *
 * A parser of another API checks what is its own (names, types, what exists in that
 * API only) and builds the JSON object that a client of /v1/chat/completions would
 * have sent; mx_api_parse_json does the rest. Strings and schemas of the body are
 * shared, not copied. So there is one meaning of sampling, tools and formats.
 *
 * All functions remember that memory ran out (`failed`); mx_translation_end tells.
 */
#ifndef MX_PROTO_TRANSLATE_H
#define MX_PROTO_TRANSLATE_H

#include "proto/request.h"

/* How many times as much as the body itself (mx_parse_cost) a body and what is made of it take. */
#define MX_TRANSLATION_COST 2

/* A name in the translated request, and where the client's own API has it. '#' stands for digits,
 * which both have: "tools[#].function". */
struct mx_rename {
	const char *from, *to;
};

struct mx_translation {
	json_t *chat;      /* the request for chat completions */
	json_t *messages;  /* its messages, borrowed */
	json_t *places;    /* `at` of each message when it was appended */
	const char *at;    /* the part of the body that is translated, for errors about its message */
	json_t *assistant; /* the last message if it is the assistant's and may go on, borrowed */
	bool failed;
};

/* Begins with an empty request. */
void mx_translation_begin(struct mx_translation *t);
/* Frees the request. */
void mx_translation_drop(struct mx_translation *t);

/* Returns the request, which is the caller's from then on. The rest is still to be dropped. */
json_t *mx_translation_take(struct mx_translation *t);

/* Sets a member of the request, which takes `v` over. NULL: memory ran out. */
void mx_translation_set(struct mx_translation *t, const char *name, json_t *v);
/* Sets a member to a member of the body, if that is there and not null. */
void mx_translation_share(struct mx_translation *t, const char *name, const json_t *body,
                          const char *theirs);

/* Appends a message without content; borrowed. Returns NULL if memory ran out, which all functions
 * take for a message. */
json_t *mx_translation_message(struct mx_translation *t, const char *role);
/* Adds a text, a JSON string, to the content of a message, behind what it has. */
void mx_translation_text(struct mx_translation *t, json_t *message, json_t *text);
/* Adds a text to the system message at the beginning, which is made if need be. False if other
 * messages are there already. */
bool mx_translation_system(struct mx_translation *t, json_t *text);
/* Adds reasoning to the assistant's message; chats call it reasoning_content. A message may be left
 * without content. */
void mx_translation_reasoning(struct mx_translation *t, json_t *text);
/* Adds a call of a tool to the assistant's message. All three are shared. */
void mx_translation_call(struct mx_translation *t, json_t *id, json_t *name, json_t *arguments);
/* Appends the message with a tool's result; returns it without content. */
json_t *mx_translation_result(struct mx_translation *t, json_t *id);
/* Returns a tool in the form of chat completions; NULL: memory ran out. NULL arguments are left
 * out. */
json_t *mx_translation_tool(json_t *name, json_t *description, json_t *parameters, json_t *strict);
/* Returns the tool_choice that names a function. */
json_t *mx_translation_named(json_t *name);

/* Parses the translated request. Takes it over, on failure too. Errors have the client's names, of
 * which `names` [n] is the list. */
mx_status mx_translation_end(struct mx_translation *t, const struct mx_rename *names, size_t n,
                             struct mx_api_unknown *unknown, struct mx_api_request *out,
                             struct mx_api_error *err);
/* Puts the client's names into an error of the translated request, and of its generation. */
void mx_rename_error(struct mx_api_error *err, const struct mx_rename *names, size_t n);

/* Bytes of the place of a value in a body: "messages[123].content[45].content[6]". */
#define MX_PLACE 96
/* Writes such a place; a longer one is cut off. */
void mx_place(char out[MX_PLACE], const char *fmt, ...) MX_PRINTF(2, 3);
/* Fails for a value of the wrong type at a place of the body: "'input[3].role' must be ...". */
mx_status mx_wrong_type_at(struct mx_api_error *err, const char *at, const char *name,
                           const char *expected, const json_t *found);

#endif
