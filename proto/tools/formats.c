/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of formats, and the marks by which a chat template is recognised.
 *
 * Sources: the templates that the families publish with their checkpoints, and the
 * documentation of vLLM's and SGLang's parsers, November 2026.
 */
#include "proto/tools/formats.h"

#include <string.h>

#include "proto/tools/harmony.h"
#include "proto/tools/pythonic.h"
#include "proto/tools/sections.h"
#include "proto/tools/tagged.h"
#include "proto/tools/xml.h"

static const struct mx_tagged_form hermes = {.end = "</tool_call>", .open = "\n", .close = "\n"};
static const struct mx_tagged_form tool_calls = {
	.end = "</tool_calls>", .open = "[", .close = "]", .between = ", "};
static const struct mx_tagged_form nemotron = {
	.end = "</TOOLCALL>", .open = "[", .close = "]", .between = ", "};
static const struct mx_tagged_form phi4_mini = {
	.end = "<|/tool_call|>", .open = "[", .close = "]", .between = ", "};
static const struct mx_tagged_form internlm = {
	.end = "<|action_end|>", .open = "\n", .arguments = "\", \"parameters\": "};
static const struct mx_tagged_form command = {.end = "<|END_ACTION|>",
                                              .open = "[\n    ",
                                              .close = "\n]",
                                              .between = ",\n    ",
                                              .head = "{\"tool_call_id\": \"0\", \"tool_name\": \"",
                                              .arguments = "\", \"parameters\": "};
static const struct mx_tagged_form granite = {.open = "[", .close = "]", .between = ", "};
static const struct mx_tagged_form mistral = {.open = "[", .close = "]", .between = ", "};
static const struct mx_tagged_form llama3 = {
	.separators = ";,", .between = "; ", .arguments = "\", \"parameters\": "};

static const struct mx_sections_form deepseek_v3 = {.call = "<｜tool▁call▁begin｜>",
                                                    .prefix = "function<｜tool▁sep｜>",
                                                    .header_end = "```json",
                                                    .header_space = "\n",
                                                    .fence = "```",
                                                    .call_end = "<｜tool▁call▁end｜>",
                                                    .end = "<｜tool▁calls▁end｜>"};
static const struct mx_sections_form deepseek_v31 = {.call = "<｜tool▁call▁begin｜>",
                                                     .header_end = "<｜tool▁sep｜>",
                                                     .call_end = "<｜tool▁call▁end｜>",
                                                     .end = "<｜tool▁calls▁end｜>"};
static const struct mx_sections_form kimi_k2 = {.call = "<|tool_call_begin|>",
                                                .header_end = "<|tool_call_argument_begin|>",
                                                .call_end = "<|tool_call_end|>",
                                                .end = "<|tool_calls_section_end|>",
                                                .ids = true};

static const struct mx_xml_form qwen3_coder = {.end = "</tool_call>",
                                               .call = "<function=",
                                               .call_name_end = ">",
                                               .call_end = "</function>",
                                               .parameter = "<parameter=",
                                               .key_end = ">",
                                               .value_end = "</parameter>",
                                               .lines = true};
static const struct mx_xml_form seed_oss = {.end = "</seed:tool_call>",
                                            .call = "<function=",
                                            .call_name_end = ">",
                                            .call_end = "</function>",
                                            .parameter = "<parameter=",
                                            .key_end = ">",
                                            .value_end = "</parameter>",
                                            .lines = true};
static const struct mx_xml_form minimax_m2 = {.end = "</minimax:tool_call>",
                                              .call = "<invoke name=\"",
                                              .call_name_end = "\">",
                                              .call_end = "</invoke>",
                                              .parameter = "<parameter name=\"",
                                              .key_end = "\">",
                                              .value_end = "</parameter>",
                                              .lines = true};
static const struct mx_xml_form deepseek_v32 = {.end = "</｜DSML｜function_calls>",
                                                .call = "<｜DSML｜invoke name=\"",
                                                .call_name_end = "\">",
                                                .call_end = "</｜DSML｜invoke>",
                                                .parameter = "<｜DSML｜parameter name=\"",
                                                .key_end = "\" string=\"false\">",
                                                .string_end = "\" string=\"true\">",
                                                .value_end = "</｜DSML｜parameter>"};
static const struct mx_xml_form glm45 = {.end = "</tool_call>",
                                         .parameter = "<arg_key>",
                                         .key_end = "</arg_key>",
                                         .value = "<arg_value>",
                                         .value_end = "</arg_value>"};

static const struct mx_pythonic_form llama4 = {.end = "<|python_end|>"};
static const struct mx_pythonic_form olmo3 = {.end = "</function_calls>"};
static const struct mx_pythonic_form lfm2 = {.end = "<|tool_call_end|>"};
static const struct mx_pythonic_form gemma4 = {
	.end = "<tool_call|>", .prefix = "call:", .quote = "<|\"|>"};
static const struct mx_pythonic_form functiongemma = {
	.end = "<end_function_call>", .prefix = "call:", .quote = "<escape>"};

/* Entries of the table; what is not named is empty. */
#define FORMAT(n, r, f, ...) .name = n, .reader = &mx_##r##_reader, .form = f, __VA_ARGS__
#define BEGINS(...)          .begins = {__VA_ARGS__}
#define MARKS(...)           .marks = {__VA_ARGS__}

static const struct mx_tool_format formats[] = {
	/* JSON behind a mark */
	{FORMAT("hermes", tagged, &hermes, BEGINS("<tool_call>"), MARKS("</tool_call>"))},
	{FORMAT("tool_calls", tagged, &tool_calls, BEGINS("<tool_calls>"), MARKS("</tool_calls>"))},
	{FORMAT("nemotron", tagged, &nemotron, BEGINS("<TOOLCALL>"), MARKS("</TOOLCALL>"))},
	{FORMAT("granite", tagged, &granite, BEGINS("<|tool_call|>", "<tool_call>"))},
	{FORMAT("phi4_mini", tagged, &phi4_mini, BEGINS("<|tool_call|>"), MARKS("<|/tool_call|>"))},
	{FORMAT("internlm", tagged, &internlm,
            BEGINS("<|action_start|><|plugin|>", "<|action_start|> <|plugin|>"),
            MARKS("<|action_start|>", "<|plugin|>", "<|action_end|>"))},
	{FORMAT("command", tagged, &command, BEGINS("<|START_ACTION|>"), MARKS("<|END_ACTION|>"))},
	{FORMAT("llama3_json", tagged, &llama3, BEGINS("<|python_tag|>"), .bare = "{")},
	{FORMAT("mistral", mistral, &mistral, BEGINS("[TOOL_CALLS]"), MARKS("[ARGS]", "[CALL_ID]"),
            .ids = MX_TOOL_IDS_SHORT)},
	{FORMAT("mistral_args", mistral, NULL, BEGINS("[TOOL_CALLS]"), MARKS("[ARGS]", "[CALL_ID]"),
            .ids = MX_TOOL_IDS_SHORT)},
	/* a mark for each call */
	{FORMAT("deepseek_v3", sections, &deepseek_v3, BEGINS("<｜tool▁calls▁begin｜>"),
            MARKS("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>",
                  "<｜tool▁calls▁end｜>"))},
	{FORMAT("deepseek_v31", sections, &deepseek_v31, BEGINS("<｜tool▁calls▁begin｜>"),
            MARKS("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>",
                  "<｜tool▁calls▁end｜>"))},
	{FORMAT("kimi_k2", sections, &kimi_k2, BEGINS("<|tool_calls_section_begin|>"),
            MARKS("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>",
                  "<|tool_calls_section_end|>"))},
	/* elements */
	{FORMAT("qwen3_coder", xml, &qwen3_coder, BEGINS("<tool_call>"), MARKS("</tool_call>"))},
	{FORMAT("seed_oss", xml, &seed_oss, BEGINS("<seed:tool_call>"), MARKS("</seed:tool_call>"))},
	{FORMAT("minimax_m2", xml, &minimax_m2, BEGINS("<minimax:tool_call>"),
            MARKS("</minimax:tool_call>"))},
	{FORMAT("deepseek_v32", xml, &deepseek_v32, BEGINS("<｜DSML｜function_calls>"),
            MARKS("｜DSML｜"))},
	{FORMAT("glm45", xml, &glm45, BEGINS("<tool_call>"),
            MARKS("</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"))},
	/* programs */
	{FORMAT("pythonic", pythonic, &llama4, BEGINS("<|python_start|>"), MARKS("<|python_end|>"),
            .bare = "[")},
	{FORMAT("olmo3", pythonic, &olmo3, BEGINS("<function_calls>"), MARKS("</function_calls>"))},
	{FORMAT("lfm2", pythonic, &lfm2, BEGINS("<|tool_call_start|>"), MARKS("<|tool_call_end|>"))},
	{FORMAT("gemma4", pythonic, &gemma4, BEGINS("<|tool_call>"), MARKS("<tool_call|>", "<|\"|>"))},
	{FORMAT("functiongemma", pythonic, &functiongemma, BEGINS("<start_function_call>"),
            MARKS("<end_function_call>", "<escape>"))},
	/* channels */
	{FORMAT("harmony", harmony, NULL, BEGINS("<|start|>", "<|channel|>"),
            MARKS("<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"),
            .all = true)},
};
#define N_FORMATS (sizeof(formats) / sizeof(*formats))

static const struct mx_reasoning_format reasonings[] = {
	{"think", "<think>", "</think>", NULL},
	{"mistral", "[THINK]", "[/THINK]", NULL},
	{"seed_oss", "<seed:think>", "</seed:think>", NULL},
	{"command", "<|START_THINKING|>", "<|END_THINKING|>", NULL},
	{"gemma4", "<|channel>thought", "<channel|>", "<|channel>"},
	{"harmony", NULL, NULL, NULL},
};
#define N_REASONINGS (sizeof(reasonings) / sizeof(*reasonings))

/* A template that has both texts is of that format; the first that fits counts. */
struct template_mark {
	const char *format, *text, *other;
};

static const struct template_mark call_marks[] = {
	{"harmony", "<|channel|>", "<|message|>"},
	{"deepseek_v32", "｜DSML｜", NULL},
	{"deepseek_v3", "<｜tool▁call▁begin｜>", "```json"},
	{"deepseek_v31", "<｜tool▁call▁begin｜>", NULL},
	{"kimi_k2", "<|tool_call_argument_begin|>", NULL},
	{"minimax_m2", "<minimax:tool_call>", NULL},
	{"seed_oss", "<seed:tool_call>", NULL},
	{"glm45", "<arg_key>", NULL},
	{"qwen3_coder", "<function=", "<parameter="},
	{"gemma4", "<|tool_call>", NULL},
	{"functiongemma", "<start_function_call>", NULL},
	{"nemotron", "<TOOLCALL>", NULL},
	{"mistral_args", "[TOOL_CALLS]", "[ARGS]"},
	{"mistral", "[TOOL_CALLS]", NULL},
	{"phi4_mini", "<|tool_call|>", "<|/tool_call|>"},
	{"phi4_mini", "<|tool|>", "<|/tool|>"},
	{"granite", "<|tool_call|>", NULL},
	{"lfm2", "<|tool_call_start|>", NULL},
	{"lfm2", "<|tool_list_start|>", NULL},
	{"olmo3", "<function_calls>", NULL},
	{"internlm", "<|plugin|>", NULL},
	{"command", "<|START_ACTION|>", NULL},
	{"hermes", "<tool_call>", NULL},
	{"tool_calls", "<tool_calls>", NULL},
	{"pythonic", "[func_name1(", NULL},
	{"llama3_json", "<|python_tag|>", NULL},
	{"llama3_json", "\"parameters\": dictionary of argument name", NULL},
};

static const struct template_mark reasoning_marks[] = {
	{"harmony", "<|channel|>", "<|message|>"},
	{"seed_oss", "<seed:think>", NULL},
	{"command", "<|START_THINKING|>", NULL},
	{"gemma4", "<|channel>", NULL},
	{"mistral", "[THINK]", NULL},
	{"think", "</think>", NULL},
};

const struct mx_tool_format *mx_tool_format_named(const char *name)
{
	for (size_t i = 0; i < N_FORMATS; i++)
		if (!strcmp(formats[i].name, name))
			return &formats[i];
	return NULL;
}

const struct mx_reasoning_format *mx_reasoning_format_named(const char *name)
{
	for (size_t i = 0; i < N_REASONINGS; i++)
		if (!strcmp(reasonings[i].name, name))
			return &reasonings[i];
	return NULL;
}

const char *mx_tool_format_name_at(size_t i)
{
	return i < N_FORMATS ? formats[i].name : NULL;
}

const char *mx_reasoning_format_name_at(size_t i)
{
	return i < N_REASONINGS ? reasonings[i].name : NULL;
}

const char *mx_tool_format_name(const struct mx_tool_format *f)
{
	return f->name;
}

const char *mx_reasoning_format_name(const struct mx_reasoning_format *f)
{
	return f->name;
}

bool mx_tool_format_reasons(const struct mx_tool_format *f)
{
	return f->all;
}

static bool has(const char *template, size_t len, const char *text)
{
	return !text || memmem(template, len, text, strlen(text));
}

const struct mx_tool_format *mx_tool_format_of(const char *template, size_t len)
{
	for (size_t i = 0; i < sizeof(call_marks) / sizeof(*call_marks); i++)
		if (has(template, len, call_marks[i].text) && has(template, len, call_marks[i].other))
			return mx_tool_format_named(call_marks[i].format);
	return NULL;
}

const struct mx_reasoning_format *mx_reasoning_format_of(const char *template, size_t len)
{
	for (size_t i = 0; i < sizeof(reasoning_marks) / sizeof(*reasoning_marks); i++)
		if (has(template, len, reasoning_marks[i].text) &&
		    has(template, len, reasoning_marks[i].other))
			return mx_reasoning_format_named(reasoning_marks[i].format);
	return NULL;
}

const char *mx_tool_format_mark(const struct mx_tool_format *f, size_t i)
{
	size_t n = 0;
	while (n < sizeof(f->begins) / sizeof(*f->begins) && f->begins[n])
		n++;
	if (i < n)
		return f->begins[i];
	return i - n < sizeof(f->marks) / sizeof(*f->marks) ? f->marks[i - n] : NULL;
}

const char *mx_reasoning_format_mark(const struct mx_reasoning_format *f, size_t i)
{
	return i == 0 ? f->begin : i == 1 ? f->end : i == 2 ? f->token : NULL;
}

bool mx_reasoning_format_span(const struct mx_reasoning_format *f, const char **out_begin,
                              const char **out_end)
{
	*out_begin = f->begin ? f->begin : "<|channel|>analysis<|message|>";
	*out_end = f->end ? f->end : "<|end|>";
	return !f->begin;
}

static bool begins(const char *text, const char *mark)
{
	return !strncmp(text, mark, strlen(mark));
}

bool mx_tool_mark_begins(const char *text)
{
	const char *mark;
	for (size_t k = 0; k < N_FORMATS; k++)
		for (size_t i = 0; (mark = mx_tool_format_mark(&formats[k], i)); i++)
			if (begins(text, mark))
				return true;
	for (size_t k = 0; k < N_REASONINGS; k++)
		for (size_t i = 0; (mark = mx_reasoning_format_mark(&reasonings[k], i)); i++)
			if (begins(text, mark))
				return true;
	return false;
}

/* Returns true if a prompt ends with a mark, white space aside. */
static bool ends_with(const char *prompt, size_t len, const char *mark)
{
	size_t n = mark ? strlen(mark) : 0;
	while (len && mx_json_space(prompt[len - 1]))
		len--;
	return n && len >= n && !memcmp(prompt + len - n, mark, n);
}

bool mx_reasoning_is_open(const struct mx_reasoning_format *f, const char *prompt, size_t len)
{
	return ends_with(prompt, len, f->begin);
}

bool mx_reasoning_is_over(const struct mx_reasoning_format *f, const char *prompt, size_t len)
{
	return ends_with(prompt, len, f->end);
}
