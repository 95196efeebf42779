/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Internals of the chat template interpreter: tokens, syntax tree, values.
 *
 * A `struct jj` parses one template or renders it once. Everything it allocates
 * is in its arena and is freed with it. A failure leaves by longjmp to the one
 * setjmp of the entry point (chat_template.c), so no function here returns an
 * error and none may hold memory outside the arena. A `struct jj` is not thread
 * safe; the parsed program is immutable and may be shared.
 *
 * The semantics are those of Jinja 3.1 on Python 3 as Hugging Face transformers
 * sets it up: an immutable sandbox, trim_blocks and lstrip_blocks.
 *
 * A file calls only those before it in this list (exec.c is reached from below
 * through struct jj_runtime):
 *
 *   machine  str  value  repr  undef  args  attr  format  lex  ops
 *   tojson  tests  methods  methods_seq  filters_seq  filters
 *   parse  parse_stmt
 *   call  eval  exec
 */
#ifndef MX_MODEL_JINJA_H
#define MX_MODEL_JINJA_H

#include <jansson.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/status.h"

enum {
	JJ_MAX_SOURCE = 4 << 20, /* bytes of template text; the longest known is under 100 KiB */
	JJ_MAX_NEST = 160,       /* nesting of the source: bounds the parser's stack */
	JJ_MAX_DEPTH = 600,      /* nesting of evaluation, macros included: bounds the C stack */
	JJ_MAX_VALUE = 512,      /* nesting of lists and dicts that are walked */
	JJ_MAX_RANGE = 100000,   /* items of range(), the limit of Jinja's sandbox */
	JJ_MAX_TOKENS = 1 << 20,
	JJ_STEP = 64,           /* cost of one evaluated node, see jj.cost */
	JJ_MAX_TEXT = 64 << 20, /* bytes of one string */
};

/* ---- values ------------------------------------------------------------------------------ */

enum jj_type {
	JJ_MISSING, /* no value; a template never sees it */
	JJ_UNDEF,
	JJ_NONE,
	JJ_BOOL,
	JJ_INT,
	JJ_FLOAT,
	JJ_STR,
	JJ_LIST,
	JJ_TUPLE,
	JJ_DICT,
	JJ_RANGE,
	JJ_VIEW, /* dict.keys(), .values(), .items() */
	JJ_ITER, /* a generator: can be iterated once */
	JJ_NAMESPACE,
	JJ_MACRO,
	JJ_LOOP,
	JJ_METHOD, /* bound method of a built-in type */
	JJ_GLOBAL, /* global function */
	JJ_CYCLER,
	JJ_JOINER,
};

/* Backing memory of strings built by concatenation. A string that ends at the end of its backing is
 * appended to in place, so that building a text piece by piece takes linear time. */
struct jj_back {
	char *base;
	size_t used, cap;
};

/* Immutable UTF-8 text. Lengths and indexes that templates see count code points. */
struct jj_str {
	const char *p;
	size_t len;           /* bytes */
	size_t count;         /* code points; SIZE_MAX until jj_str_count computes it */
	struct jj_back *back; /* or NULL */
	bool markup;          /* made by |safe or |escape: `+` escapes the other operand */
};

struct jj_value {
	enum jj_type type;
	union {
		bool b;
		int64_t i;
		double f;
		struct jj_str *s;
		struct jj_list *l; /* list, tuple */
		struct jj_dict *d; /* dict, namespace */
		struct jj_range *r;
		struct jj_view *view;
		struct jj_iter *it;
		struct jj_undef *u;
		struct jj_macro *m;
		struct jj_loop *loop;
		struct jj_method *method;
		const struct jj_builtin *fn;
		struct jj_cycler *cycler;
	};
};

struct jj_list {
	struct jj_value *v;
	size_t n, cap;
};

struct jj_entry {
	struct jj_value key, value;
	uint64_t hash;
};

/* Insertion-ordered. From 9 entries on `index` is a hash table with open addressing; its elements
 * are entry number + 1. */
struct jj_dict {
	struct jj_entry *e;
	size_t n, cap;
	uint32_t *index;
	size_t n_index;
};

struct jj_range {
	int64_t start, stop, step, n;
};

enum jj_view_kind { JJ_KEYS, JJ_VALUES, JJ_ITEMS };
struct jj_view {
	struct jj_dict *d;
	enum jj_view_kind kind;
};

struct jj_iter {
	struct jj_list *l;
	size_t pos;
	const char *kind; /* Python's name of the type */
};

/* Why a value is undefined, for the error message of its use. */
struct jj_undef {
	const char *text;     /* the whole message; NULL = it is made from the two below */
	const char *object;   /* "dict object", or NULL for a plain variable */
	struct jj_value name; /* attribute, element or variable */
};

struct jj_cycler { /* also the state of a joiner */
	struct jj_list *items;
	size_t pos;
	struct jj_value sep;
};

/* ---- syntax tree ------------------------------------------------------------------------- */

enum jj_kind {
	/* expressions */
	N_CONST,   /* val */
	N_NAME,    /* name */
	N_LIST,    /* list */
	N_TUPLE,   /* list */
	N_DICT,    /* list: key, value, key, value ... */
	N_ATTR,    /* a . val */
	N_ITEM,    /* a [ b ] */
	N_SLICE,   /* a [ b : c : d ] */
	N_CALL,    /* a ( call ) */
	N_FILTER,  /* a | fn ( call ); a NULL in a filter block */
	N_TEST,    /* a is fn ( call ), flag = negated */
	N_UNARY,   /* op a */
	N_BINARY,  /* a op b */
	N_CONCAT,  /* list */
	N_COMPARE, /* list[0] ops[0] list[1] ops[1] list[2] ... */
	N_AND,
	N_OR,
	N_NOT,
	N_COND, /* a if b else c (c may be NULL) */
	/* targets */
	N_NSREF, /* name . val */
	/* statements */
	N_DATA,        /* val */
	N_OUTPUT,      /* a */
	N_IF,          /* list: condition, body, condition, body ...; a = else body or NULL */
	N_FOR,         /* a target, b iterable, c test, d body, e else body; flag = recursive */
	N_SET,         /* a target, b value */
	N_SETBLOCK,    /* a target, b filter chain or NULL, d body */
	N_MACRO,       /* macro */
	N_CALLBLOCK,   /* a N_CALL, macro = the caller */
	N_FILTERBLOCK, /* b filter chain, d body */
	N_WITH,        /* list: target, value ...; d body */
	N_SCOPE,       /* d body ({% generation %}) */
	N_BREAK,
	N_CONTINUE,
	N_BODY, /* list of statements */
};

struct jj_kwarg {
	struct jj_str *name;
	struct jj_node *value;
};

struct jj_call {
	struct jj_node **pos;
	size_t n_pos;
	struct jj_kwarg *kw;
	size_t n_kw;
	struct jj_node *star, *dstar;
};

struct jj_macro_def {
	struct jj_str *name;       /* NULL for a caller */
	uint32_t *params;          /* name ids */
	struct jj_node **defaults; /* of the last n_defaults params */
	size_t n_params, n_defaults;
	bool uses_caller, uses_varargs, uses_kwargs;
	struct jj_node *body;
};

struct jj_node {
	uint8_t kind, op;
	bool flag;
	uint32_t line, column;
	uint32_t name; /* name id */
	struct jj_node *a, *b, *c, *d, *e;
	struct jj_node **list;
	uint8_t *ops;
	size_t n;
	struct jj_call *call;
	struct jj_macro_def *macro;
	const struct jj_builtin *fn;
	struct jj_value val;
};

struct jj_program {
	struct jj_node *body;
	struct jj_str **names; /* by name id */
	size_t n_names;
	struct jj_dict *reads; /* its keys: names whose values the template reads */
	struct jj_dict *words; /* its keys: attributes and whole strings of the template */
	uint32_t id_loop, id_caller, id_varargs, id_kwargs;
	bool loops_content; /* a loop is over something named `content` */
};

/* ---- tokens ------------------------------------------------------------------------------ */

enum jj_tok {
	T_EOF,
	T_DATA,
	T_VAR_BEGIN,
	T_VAR_END,
	T_BLOCK_BEGIN,
	T_BLOCK_END,
	T_NAME,
	T_STRING,
	T_INT,
	T_FLOAT,
	/* operators; the order is that of jj_op_text */
	T_FLOORDIV,
	T_POW,
	T_EQ,
	T_NE,
	T_GE,
	T_LE,
	T_ADD,
	T_SUB,
	T_DIV,
	T_MUL,
	T_MOD,
	T_TILDE,
	T_LBRACKET,
	T_RBRACKET,
	T_LPAREN,
	T_RPAREN,
	T_LBRACE,
	T_RBRACE,
	T_GT,
	T_LT,
	T_ASSIGN,
	T_DOT,
	T_COLON,
	T_PIPE,
	T_COMMA,
	T_SEMICOLON,
	/* only as an operator of N_COMPARE */
	T_IN,
	T_NOTIN,
};

struct jj_token {
	enum jj_tok type;
	uint32_t line, column; /* 1-based; columns count bytes */
	struct jj_value val;   /* T_DATA, T_NAME, T_STRING, T_INT, T_FLOAT */
};

extern const char *const jj_op_text[];

/* ---- the machine ------------------------------------------------------------------------- */

/* A string under construction, in the arena. */
struct jj_sb {
	struct jj_back *back; /* NULL while empty */
	size_t start;         /* where the text begins in it */
};

/* A variable of a scope. */
struct jj_var {
	uint32_t name; /* name id */
	struct jj_value value;
};

struct jj_scope {
	struct jj_scope *parent; /* NULL for the root, whose variables are in jj.root */
	struct jj_var *v;
	size_t n, cap;
};

struct jj_loop {
	const struct jj_node *node; /* the N_FOR */
	struct jj_scope *outer;     /* scope that contains the loop */
	struct jj_list *items;
	size_t src;            /* index of the next item of `items` to test */
	struct jj_list *ready; /* items that passed the loop's `if`, maybe fetched early */
	size_t ready_pos;
	int64_t index0, depth0;
	bool lenless; /* the length is known only by walking to the end */
	struct jj_value prev, current;
	struct jj_list *changed;
};

struct jj_macro {
	const struct jj_macro_def *def;
	struct jj_scope *scope; /* scope in which it was defined */
};

struct jj_kv {
	struct jj_str *name;
	struct jj_value value;
};

struct jj_args {
	struct jj_value *pos;
	size_t n_pos;
	struct jj_kv *kw;
	size_t n_kw;
};

struct jj;
typedef struct jj_value (*jj_fn)(struct jj *j, struct jj_value self, struct jj_args *args);

/* A filter, test, method or global function. `params` is the parameter list that jj_bind reads;
 * NULL = the function takes the arguments unmatched. */
struct jj_builtin {
	const char *name;
	jj_fn fn;
	const char *params;
};

struct jj_method {
	struct jj_value self;
	const struct jj_builtin *fn;
};

/* What lower files need of higher ones while a template runs: macros and loops are code of the
 * template, and filters and methods are found by name. jj_run sets it, so that no file calls
 * upwards. */
struct jj_runtime {
	struct jj_value (*call_macro)(struct jj *j, struct jj_macro *m, struct jj_args *args);
	struct jj_value (*call_loop)(struct jj *j, struct jj_loop *l, struct jj_value items);
	/* JJ_MISSING if a loop has no such attribute. May test items ahead with the loop's `if`. */
	struct jj_value (*loop_attr)(struct jj *j, struct jj_loop *l, struct jj_str *name);
	const struct jj_builtin *filters;
	const struct jj_builtin *methods[JJ_JOINER + 1]; /* methods of each type, or NULL */
};

struct jj {
	struct mx_arena arena;
	jmp_buf fail;
	mx_status status;
	struct mx_err *err; /* may be NULL */
	/* parsing */
	struct jj_token *tok;
	size_t n_tok, cap_tok, at_tok;
	struct jj_dict *name_ids;
	struct jj_program *prog;
	unsigned nest, in_loop;
	const struct jj_node *unknown; /* unknown filter or test, outside of conditions */
	bool in_target;                /* names are assigned to, not read */
	bool saw_caller, saw_varargs, saw_kwargs;
	/* rendering */
	const struct jj_runtime *runtime;
	const struct jj_node *at; /* the node being evaluated */
	uint64_t cost, max_cost;  /* in units of 1/64 step: a node costs JJ_STEP, a byte touched 1 */
	unsigned depth;
	struct jj_value *root; /* by name id */
	struct jj_scope *scope;
	struct mx_buf *out;
	size_t out_end;    /* limit of the bytes of *out */
	struct jj_sb *cap; /* if not NULL, output goes here instead of *out */
	int64_t now;
};

/* ---- failing and allocating (machine.c) -------------------------------------------- */

/* Leave by longjmp with a status and a message, at the node that is evaluated or at a place. */
_Noreturn void jj_raise(struct jj *j, mx_status st, const char *fmt, ...) MX_PRINTF(3, 4);
_Noreturn void jj_raise_at(struct jj *j, mx_status st, uint32_t line, uint32_t column,
                           const char *fmt, ...) MX_PRINTF(5, 6);
void *jj_alloc(struct jj *j, size_t n, size_t size); /* zeroed */
/* Returns `old` [n], or a larger copy, with room for one more element. */
void *jj_grow(struct jj *j, void *old, size_t n, size_t *cap, size_t size);
/* Adds to the cost of the run; raises MX_E_LIMIT above the limit. */
void jj_charge(struct jj *j, size_t bytes);
/* Enters one level of a recursion over values or code, which is bounded. The caller decrements
 * j->depth when it leaves. */
void jj_enter(struct jj *j);
/* Makes an empty list with room for cap values. */
struct jj_list *jj_list_new(struct jj *j, size_t cap);
/* Appends a value. */
void jj_push(struct jj *j, struct jj_list *l, struct jj_value v);

/* ---- strings (str.c) --------------------------------------------------------------- */

struct jj_str *jj_str_view(struct jj *j, const char *p, size_t n); /* p must outlive the arena */
struct jj_value jj_text(struct jj *j, const char *p, size_t n);    /* jj_str_view as a value */
struct jj_value jj_copy(struct jj *j, const char *p, size_t n);    /* a string of its own */
/* Makes a string of the program safe to share between renders: no later call changes it. */
void jj_freeze(struct jj *j, struct jj_str *s);
struct jj_value jj_cstr(struct jj *j, const char *literal); /* a view of text that outlives j */
/* Building a string: append n bytes, a string, a code point, n times a code point. They raise
 * MX_E_LIMIT above JJ_MAX_TEXT. */
void jj_sb_put(struct jj *j, struct jj_sb *sb, const char *p, size_t n);
void jj_sb_puts(struct jj *j, struct jj_sb *sb, const char *s);
void jj_sb_putcp(struct jj *j, struct jj_sb *sb, int32_t cp);
void jj_sb_fill(struct jj *j, struct jj_sb *sb, int64_t n, int32_t cp);
size_t jj_sb_len(const struct jj_sb *sb);
/* Returns the string so far; it shares the builder's memory, and later appends do not change it. */
struct jj_value jj_sb_done(struct jj *j, struct jj_sb *sb);
/* a + b: appended to a's memory where nothing follows a there, so that adding to a string in a loop
 * takes linear time. */
struct jj_value jj_concat(struct jj *j, const struct jj_str *a, const struct jj_str *b);
size_t jj_str_count(struct jj *j, struct jj_str *s); /* code points */
/* Returns the code point at *pos (which must be inside) and moves *pos past it. */
int32_t jj_next_cp(const struct jj_str *s, size_t *pos);
size_t jj_str_offset(struct jj *j, struct jj_str *s,
                     size_t index); /* byte offset of a code point */
struct jj_value jj_substr(struct jj *j, const struct jj_str *s, size_t from, size_t to); /* bytes */
/* Byte by byte, which is the order of code points. */
bool jj_str_eq(const struct jj_str *a, const struct jj_str *b);
bool jj_str_is(const struct jj_str *s, const char *literal);
int jj_str_cmp(const struct jj_str *a, const struct jj_str *b);
/* Return the byte offset of the first (or last) `needle` in s[from, to), or SIZE_MAX. */
size_t jj_str_find(struct jj *j, const struct jj_str *s, size_t from, size_t to,
                   const struct jj_str *needle);
size_t jj_str_rfind(struct jj *j, const struct jj_str *s, size_t from, size_t to,
                    const struct jj_str *needle);
bool jj_cp_space(int32_t cp);
/* Strips white space, or the code points of `chars`, on the left (1), right (2) or both (3). */
struct jj_value jj_strip(struct jj *j, const struct jj_str *s, const struct jj_str *chars,
                         unsigned sides);
/* str.replace: at most count times, -1 = all. */
struct jj_value jj_replace(struct jj *j, const struct jj_str *s, const struct jj_str *old,
                           const struct jj_str *rep, int64_t count);
/* str.lower, upper and capitalize, of all of Unicode. */
struct jj_value jj_lower(struct jj *j, const struct jj_str *s);
struct jj_value jj_upper(struct jj *j, const struct jj_str *s);
struct jj_value jj_capitalize(struct jj *j, const struct jj_str *s);
/* str.islower and isupper: true if s has a cased letter, and all its cased letters have this case.
 */
bool jj_all_case(struct jj *j, const struct jj_str *s, bool upper);
/* str.splitlines. */
struct jj_list *jj_splitlines(struct jj *j, const struct jj_str *s, bool keep_ends);
struct jj_value jj_escape(struct jj *j,
                          const struct jj_str *s); /* HTML-escapes; the result is markup */

/* ---- values (value.c) -------------------------------------------------------------- */

static inline struct jj_value jj_none(void)
{
	return (struct jj_value){.type = JJ_NONE};
}
static inline struct jj_value jj_bool(bool b)
{
	return (struct jj_value){.type = JJ_BOOL, .b = b};
}
static inline struct jj_value jj_int(int64_t i)
{
	return (struct jj_value){.type = JJ_INT, .i = i};
}
static inline struct jj_value jj_float(double f)
{
	return (struct jj_value){.type = JJ_FLOAT, .f = f};
}
static inline struct jj_value jj_seq(enum jj_type type, struct jj_list *l)
{
	return (struct jj_value){.type = type, .l = l};
}
static inline bool jj_is_int(struct jj_value v) /* bool is an int in Python */
{
	return v.type == JJ_INT || v.type == JJ_BOOL;
}
static inline int64_t jj_as_int(struct jj_value v)
{
	return v.type == JJ_BOOL ? v.b : v.i;
}
static inline bool jj_is_seq(struct jj_value v)
{
	return v.type == JJ_LIST || v.type == JJ_TUPLE;
}
static inline bool jj_is_num(struct jj_value v)
{
	return jj_is_int(v) || v.type == JJ_FLOAT;
}
static inline double jj_as_float(struct jj_value v)
{
	return v.type == JJ_FLOAT ? v.f : (double)jj_as_int(v);
}

const char *jj_type_name(struct jj_value v); /* the name of the type in Python */
struct jj_value jj_pair(struct jj *j, struct jj_value a, struct jj_value b); /* tuple */
/* Dicts keep the order in which keys were set first. jj_dict_set replaces the value of an equal
 * key, and raises for one that cannot be hashed. */
struct jj_dict *jj_dict_new(struct jj *j);
void jj_dict_set(struct jj *j, struct jj_dict *d, struct jj_value key, struct jj_value value);
/* Returns the value of a key, which later sets may move; NULL if absent. Raises for a key that
 * cannot be hashed. */
struct jj_value *jj_dict_get(struct jj *j, const struct jj_dict *d, struct jj_value key);
bool jj_hashable(struct jj *j, struct jj_value v);
/* bool(v), a == b, `item in container`, as Python has them. */
bool jj_truth(struct jj *j, struct jj_value v);
bool jj_equal(struct jj *j, struct jj_value a, struct jj_value b);
/* Returns len(v), or -1 if the value has no length. */
int64_t jj_len(struct jj *j, struct jj_value v);
bool jj_iterable(struct jj_value v);
/* Returns the items as a list, which must not be changed. Exhausts a generator. */
struct jj_list *jj_items(struct jj *j, struct jj_value v);
bool jj_contains(struct jj *j, struct jj_value container, struct jj_value item);
/* Makes an iterator over a list; kind: its type's name in messages. */
struct jj_value jj_iter_new(struct jj *j, struct jj_list *l, const char *kind);

/* ---- printing (repr.c) ------------------------------------------------------------ */

struct jj_str *jj_tostr(struct jj *j, struct jj_value v); /* str(v) */
/* Append repr(v), and write that of a number. */
void jj_repr(struct jj *j, struct jj_sb *sb, struct jj_value v);
void jj_repr_float(double f, char out[32]);

/* ---- undefined values (undef.c) --------------------------------------------------- */

/* Make an undefined value: with this message, or for a missing attribute or element of an object.
 */
struct jj_value jj_undef_text(struct jj *j, const char *text);
struct jj_value jj_undef_attr(struct jj *j, struct jj_value object, struct jj_value name);
/* Raises the error of using an undefined value. */
_Noreturn void jj_raise_undef(struct jj *j, struct jj_value v);

/* ---- operators (ops.c) ------------------------------------------------------------ */

/* Arithmetic, `~` and comparisons, by the operator's token; for operands that Python refuses they
 * raise its TypeError's message. */
struct jj_value jj_binary(struct jj *j, enum jj_tok op, struct jj_value a, struct jj_value b);
struct jj_value jj_unary(struct jj *j, enum jj_tok op, struct jj_value a);
/* Returns < 0, 0 or > 0. Raises TypeError's message with `op` for values that have no order. */
int jj_order(struct jj *j, struct jj_value a, struct jj_value b, const char *op);

/* ---- attributes, subscripts, slices (attr.c) -------------------------------------- */

/* v.name: a method, an attribute of the type, or the element of that key. v[key]: the other way
 * round. An undefined value if there is none. */
struct jj_value jj_getattr(struct jj *j, struct jj_value v, struct jj_str *name);
struct jj_value jj_getitem(struct jj *j, struct jj_value v, struct jj_value key);
/* v[from:to:step]; none for what is left out. */
struct jj_value jj_slice(struct jj *j, struct jj_value v, struct jj_value from, struct jj_value to,
                         struct jj_value step);

/* ---- formatting (format.c) --------------------------------------------------------- */

/* fmt % args, and the method str.format. */
struct jj_value jj_percent(struct jj *j, const struct jj_str *fmt, struct jj_value args);
struct jj_value jj_str_format(struct jj *j, struct jj_value self, struct jj_args *args);

/* ---- JSON (tojson.c) ---------------------------------------------------------------- */

/* Makes a value of JSON, whose strings must outlive j; depth: its own, 0 for the outermost. */
struct jj_value jj_from_json(struct jj *j, const json_t *v, unsigned depth);
/* The filter tojson, with json.dumps' arguments. */
struct jj_value jj_tojson(struct jj *j, struct jj_value self, struct jj_args *args);

/* ---- built-in functions and their arguments (args.c) ------------------------------ */

/* Matches args with `params`, a list of names such as "old new | count", and writes one value for
 * each name to `out`. Arguments after the bar are optional; absent ones give JJ_MISSING. A '*' at
 * the end allows more positional arguments, which stay in args. `who` names the function in
 * messages. */
void jj_bind(struct jj *j, const char *who, const char *params, struct jj_args *args,
             struct jj_value *out);
/* Calls a built-in function with its arguments bound. self: the value before the dot or the bar. */
struct jj_value jj_invoke(struct jj *j, const struct jj_builtin *fn, struct jj_value self,
                          struct jj_args *args);
/* Return the integer or string; raise with `what`, the argument's name, if v is none. */
int64_t jj_want_int(struct jj *j, struct jj_value v, const char *what);
struct jj_str *jj_want_str(struct jj *j, struct jj_value v, const char *what);

/* Returns the entry of a table by name, or NULL. Tables end with an empty entry. */
const struct jj_builtin *jj_find(const struct jj_builtin *table, const struct jj_str *name);
extern const struct jj_builtin jj_filters[];
extern const struct jj_builtin jj_tests[];
extern const struct jj_builtin jj_globals[];
extern const struct jj_builtin jj_str_methods[];
extern const struct jj_builtin jj_list_methods[];
extern const struct jj_builtin jj_dict_methods[];
extern const struct jj_builtin jj_loop_methods[];
extern const struct jj_builtin jj_cycler_methods[];

/* ---- front end and evaluation ------------------------------------------------------------ */

void jj_lex(struct jj *j, const char *src, size_t len); /* lex.c */
void jj_parse(struct jj *j);                            /* parse_stmt.c: fills j->prog */
/* Parsers of expressions, which take tokens from the current one on (parse.c). with_cond: `a if b
 * else c` may stand there. end_name: the word that ends the list, such as "in"; NULL = none. */
struct jj_node *jj_parse_expr(struct jj *j, bool with_cond);
struct jj_node *jj_parse_tuple(struct jj *j, bool with_cond, bool parens, const char *end_name);
struct jj_node *jj_parse_target(struct jj *j, bool with_ns, const char *end_name);
struct jj_node *jj_parse_filters(struct jj *j, struct jj_node *of, bool start_inline);
/* Makes a node at a token's place. */
struct jj_node *jj_node_new(struct jj *j, enum jj_kind kind, const struct jj_token *t);
/* Returns the token `ahead` of the current one, or the last one. jj_take returns the current one
 * and goes on to the next. */
struct jj_token *jj_peek(struct jj *j, size_t ahead);
struct jj_token *jj_take(struct jj *j);
/* True if the current token is of a type, or that word. jj_skip and jj_skip_name then go on to the
 * next. */
bool jj_at(struct jj *j, enum jj_tok type);
bool jj_at_name(struct jj *j, const char *name);
bool jj_skip(struct jj *j, enum jj_tok type);
bool jj_skip_name(struct jj *j, const char *name);
/* Takes a token of that type; raises if the current one is of another. */
struct jj_token *jj_expect(struct jj *j, enum jj_tok type);
/* Raises that the current token is not what is wanted. */
_Noreturn void jj_unexpected(struct jj *j, const char *wanted);
/* Returns the number of a name, a new one at its first use. */
uint32_t jj_name_id(struct jj *j, struct jj_value name);
/* Enters one level of nesting of the source; raises above JJ_MAX_NEST. The caller decrements
 * j->nest when it leaves. */
void jj_nest(struct jj *j, const struct jj_token *t);

/* Calls a function, macro or method (call.c). */
struct jj_value jj_call_value(struct jj *j, struct jj_value callee, struct jj_args *args);
/* Evaluates a node, the arguments of a call, and filters behind v (eval.c). */
struct jj_value jj_eval(struct jj *j, const struct jj_node *n);
void jj_eval_args(struct jj *j, const struct jj_call *c, struct jj_args *out);
struct jj_value jj_filter_chain(struct jj *j, const struct jj_node *n, struct jj_value v);
void jj_run(struct jj *j); /* exec.c: renders j->prog */

#endif
