/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/proto/tools/samples.h"

const char mx_sample_tools[] =
	"[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
	"\"properties\":{\"s\":{\"type\":\"string\"},\"n\":{\"type\":\"number\"},"
	"\"o\":{\"type\":\"object\"},\"e\":{\"enum\":[\"x\",\"y\"]},\"u\":{}}}}},"
	"{\"type\":\"function\",\"function\":{\"name\":\"get_time\"}}]";

const struct mx_sample mx_samples[] = {
	/* JSON in tags */
	{"hermes", NULL, false, "Just text, 1 < 2 <tool> </tool_call>.\n",
     "C(Just text, 1 < 2 <tool> </tool_call>.\n)"},
	{"hermes", NULL, false,
     "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"a\\n}\", \"o\": {\"x\": [1, "
     "2.5e-3]}}}\n</tool_call>",
     "B(*,f)A({\"s\": \"a\\n}\", \"o\": {\"x\": [1, 2.5e-3]}})E"},
	{"hermes", NULL, false,
     "I look.\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n"
     "{\"arguments\": {\"n\": 1}, \"name\": \"g\"}\n</tool_call>\n",
     "C(I look.)B(*,f)A({})EB(*,g)A({\"n\": 1})E"},
	{"hermes", NULL, false, "<tool_call>{\"name\": \"f\"}</tool_call>", "B(*,f)A({})E"},
	{"hermes", NULL, false, "<tool_call>{\"name\": \"f\", \"arguments\": null}</tool_call> done",
     "B(*,f)A({})EC( done)"},
	{"hermes", NULL, false,
     "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"n\\\": 1}\"}</tool_call>",
     "B(*,f)A({\"n\": 1})E"},
	{"hermes", NULL, false,
     "<tool_call>{\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": {\"n\": "
     "1}}, \"id\": \"x1\"}</tool_call>",
     "B(*,f)A({\"n\": 1})E"},
	{"hermes", NULL, false,
     "<tool_call>{\"id\": \"x1\", \"name\": \"f\", \"arguments\": {\"n\": 1}}</tool_call>",
     "B(x1,f)A({\"n\": 1})E"},
	{"hermes", NULL, false,
     "<tool_call>[{\"name\": \"f\", \"arguments\": {\"n\": 1}}, {\"name\": \"g\"}]</tool_call>",
     "B(*,f)A({\"n\": 1})EB(*,g)A({})E"},
	{"hermes", NULL, false, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"ö€😀\"}}",
     "B(*,f)A({\"s\": \"ö€😀\"})E"}, /* the end mark is missing */
	{"hermes", NULL, false,
     "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"two\nlines\"}}</tool_call>",
     "B(*,f)A({\"s\": \"two\\u000alines\"})E"},
	/* malformed */
	{"hermes", NULL, false, "See \n <tool_call> tags", "C(See \n <tool_call> tags)"},
	{"hermes", NULL, false, "<tool_call>{\"name\": \"f\"", "C(<tool_call>{\"name\": \"f\")"},
	{"hermes", NULL, false, "<tool_call>{'name': 'f'}</tool_call>",
     "C(<tool_call>{'name': 'f'}</tool_call>)"},
	{"hermes", NULL, false, "<tool_call>{\"name\": 3}</tool_call>",
     "C(<tool_call>{\"name\": 3}</tool_call>)"},
	{"hermes", NULL, false, "<tool_call>{\"arguments\": {}}</tool_call>",
     "C(<tool_call>{\"arguments\": {}}</tool_call>)"},
	{"hermes", NULL, false, "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
     "C(<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>)"},
	{"hermes", NULL, false, "<tool_call>[]</tool_call>", "C(<tool_call>[]</tool_call>)"},
	{"hermes", NULL, false,
     "a <tool_call>{\"name\": \"f\", \"arguments\": {\"n\": 1x}}</tool_call>",
     "C(a)B(*,f)A({\"n\": 1)X( <tool_call>{\"name\": \"f\", \"arguments\": {\"n\": "
     "1)C(x}}</tool_call>)"},
	{"hermes", NULL, false, "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"cut",
     "B(*,f)A({\"s\": \"cut)X(<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"cut)"},
	{"hermes", NULL, false,
     "<tool_call>junk<tool_call>{\"name\": \"f\"}</tool_call><tool_call>more",
     "C(<tool_call>junk)B(*,f)A({})EC(<tool_call>more)"},
	{"hermes", NULL, false, "<tool_call>{\"name\": \"f\"}</tool_", "B(*,f)A({})EC(</tool_)"},

	/* reasoning */
	{NULL, "think", false, "<think>\nHm, <b>.\n\n</think>\n\nYes </think>\n",
     "R(Hm, <b>.)C(Yes </think>\n)"},
	{NULL, "think", true, "\nso </thin so\n</think>\n\nNo", "R(so </thin so)C(No)"},
	{NULL, "think", false, "No <think> at all</think>", "C(No <think> at all</think>)"},
	{NULL, "think", false, " \n<thin", "C( \n<thin)"},
	{NULL, "think", true, "cut </thi", "R(cut </thi)"},
	{NULL, "think", false, "<think></think>", ""},
	{"hermes", "think", true,
     "a <tool_call>\n</think>\n\nI do.\n<tool_call>{\"name\": \"f\"}</tool_call>",
     "R(a <tool_call>)C(I do.)B(*,f)A({})E"},

	/* other marks */
	{"nemotron", NULL, false,
     "<TOOLCALL>[{\"name\": \"f\", \"arguments\": {\"n\": 1}}, {\"name\": \"get_time\", "
     "\"arguments\": {}}]</TOOLCALL>",
     "B(*,f)A({\"n\": 1})EB(*,get_time)A({})E"},
	{"tool_calls", NULL, false,
     "ok <tool_calls>\n{\"name\": \"f\", \"arguments\": {\"n\": 1}}\n{\"name\": "
     "\"g\"}\n</tool_calls>",
     "C(ok)B(*,f)A({\"n\": 1})EB(*,g)A({})E"},
	{"granite", NULL, false, "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"n\": 1}}]",
     "B(*,f)A({\"n\": 1})E"},
	{"granite", NULL, false, "<tool_call>[{\"name\": \"f\", \"arguments\": {\"n\": 1}}, ]x",
     "B(*,f)A({\"n\": 1})EC(x)"},
	{"granite", NULL, false, "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"n\": 1}}, x",
     "B(*,f)A({\"n\": 1})EC(, x)"},
	{"phi4_mini", NULL, false,
     "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"n\": 1}}]<|/tool_call|>",
     "B(*,f)A({\"n\": 1})E"},
	{"internlm", NULL, false,
     "Sure.<|action_start|> <|plugin|>\n{\"name\": \"f\", \"parameters\": {\"n\": "
     "1}}<|action_end|>\n",
     "C(Sure.)B(*,f)A({\"n\": 1})E"},
	{"command", "command", false,
     "<|START_THINKING|>I call.<|END_THINKING|><|START_ACTION|>[\n    {\"tool_call_id\": \"0\", "
     "\"tool_name\": \"f\", \"parameters\": {\"n\": 1}}\n]<|END_ACTION|>",
     "R(I call.)B(0,f)A({\"n\": 1})E"},

	/* without a mark */
	{"llama3_json", NULL, false, "{\"name\": \"f\", \"parameters\": {\"n\": 1}}",
     "B(*,f)A({\"n\": 1})E"},
	{"llama3_json", NULL, false,
     " \n<|python_tag|>{\"name\": \"f\", \"parameters\": {\"n\": 1}}; {\"name\": \"get_time\", "
     "\"parameters\": {}}",
     "B(*,f)A({\"n\": 1})EB(*,get_time)A({})E"},
	{"llama3_json", NULL, false,
     "{\"type\": \"function\", \"name\": \"f\", \"parameters\": {\"s\": \"a; b\"}};{\"name\": "
     "\"f\", \"parameters\": {}}",
     "B(*,f)A({\"s\": \"a; b\"})EB(*,f)A({})E"},
	{"llama3_json", NULL, false, "{\"name\": \"unknown\", \"parameters\": {\"n\": 1}}",
     "C({\"name\": \"unknown\", \"parameters\": {\"n\": 1}})"},
	{"llama3_json", NULL, false, " {\"answer\": [1, 2]}\n", "C( {\"answer\": [1, 2]}\n)"},
	{"llama3_json", NULL, false, "{\"name\": \"f\"}", "C({\"name\": \"f\"})"},
	{"llama3_json", NULL, false, "The call is {\"name\": \"f\", \"parameters\": {}}",
     "C(The call is {\"name\": \"f\", \"parameters\": {}})"},

	/* Mistral */
	{"mistral", NULL, false,
     "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"n\": 1}, \"id\": \"abcdef123\"}, {\"name\": "
     "\"g\", \"arguments\": {}}]",
     "B(*,f)A({\"n\": 1})EB(*,g)A({})E"},
	{"mistral", NULL, false,
     "[TOOL_CALLS] [{\"id\": \"abcdef123\", \"name\": \"f\", \"arguments\": {\"n\": 1}}]",
     "B(*,f)A({\"n\": 1})E"},
	{"mistral", NULL, false, "hm[TOOL_CALLS]f[ARGS]{\"n\": [1]}[TOOL_CALLS]get_time{}",
     "C(hm)B(*,f)A({\"n\": [1]})EB(*,get_time)A({})E"},
	{"mistral", "mistral", false,
     "[THINK]so[/THINK][TOOL_CALLS]f[CALL_ID]abcdef123[ARGS]{\"s\": \"[TOOL_CALLS]\"}",
     "R(so)B(*,f)A({\"s\": \"[TOOL_CALLS]\"})E"},
	{"mistral", NULL, false, "[TOOL_CALLS]no call[ARGS]", "C([TOOL_CALLS]no call[ARGS])"},
	{"mistral", NULL, false, "[TOOL_CALLS]f[ARGS]x", "B(*,f)X([TOOL_CALLS]f[ARGS])C(x)"},
	{"mistral", NULL, false, "[TOOL_CALLS]f[CALL_ID][ARGS]{}", "C([TOOL_CALLS]f[CALL_ID][ARGS]{})"},

	/* a mark for each call */
	{"deepseek_v3", "think", true,
     "hm</"
     "think>ok\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"
     "\"n\": "
     "1}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n```json\n{}"
     "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     "R(hm)C(ok)B(*,f)A({\"n\": 1})EB(*,get_time)A({})E"},
	{"deepseek_v31", NULL, false,
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"n\": "
     "1}<｜tool▁call▁end｜><｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><"
     "｜tool▁calls▁end｜>",
     "B(*,f)A({\"n\": 1})EB(*,g)A({})E"},
	{"deepseek_v31", NULL, false,
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>none<｜tool▁call▁end｜>",
     "B(*,f)X(<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>)C(none<｜tool▁call▁end｜>"
     ")"},
	{"deepseek_v31", NULL, false, "<｜tool▁calls▁begin｜>none", "C(<｜tool▁calls▁begin｜>none)"},
	{"kimi_k2", NULL, false,
     "I "
     "look.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
     "{\"n\": "
     "1}<|tool_call_end|><|tool_call_begin|>functions.get_time:1<|tool_call_argument_begin|>{}<|"
     "tool_call_end|><|tool_calls_section_end|>",
     "C(I look.)B(functions.f:0,f)A({\"n\": 1})EB(functions.get_time:1,get_time)A({})E"},

	/* elements */
	{"qwen3_coder", NULL, false,
     "I do.\n\n<tool_call>\n<function=f>\n<parameter=s>\ntwo\n\"lines\" "
     "</para>\n</parameter>\n<parameter=n>\n12\n</parameter>\n<parameter=o>\n{\"a\": "
     "[true]}\n</parameter>\n</function>\n</tool_call>",
     "C(I do.)B(*,f)A({\"s\": \"two\\n\\\"lines\\\" </para>\", \"n\": 12, \"o\": {\"a\": "
     "[true]}})E"},
	{"qwen3_coder", NULL, false,
     "<tool_call>\n<function=get_time>\n</function>\n</"
     "tool_call>\n<tool_call>\n<function=f>\n<parameter=s>\n12\n</parameter>\n<parameter=u>\nno "
     "JSON\n</parameter>\n<parameter=e>\n3\n</parameter>\n</function>\n</tool_call>",
     "B(*,get_time)A({})EB(*,f)A({\"s\": \"12\", \"u\": \"no JSON\", \"e\": \"3\"})E"},
	{"qwen3_coder", NULL, false,
     "<tool_call><function=f><parameter=n>1</parameter><parameter=u>True</parameter><parameter=s></"
     "parameter><parameter=o>\n</parameter></function></tool_call>",
     "B(*,f)A({\"n\": 1, \"u\": true, \"s\": \"\", \"o\": \"\"})E"},
	{"qwen3_coder", NULL, false, "<tool_call>\n<function=f>\n<parameter=s>\ncut\n</para",
     "B(*,f)A({\"s\": \"cut\\n</para)X(<tool_call>\n<function=f>\n<parameter=s>\ncut\n</para)"},
	{"qwen3_coder", NULL, false, "<tool_call>\n{\"name\": \"f\"}\n</tool_call>",
     "C(<tool_call>\n{\"name\": \"f\"}\n</tool_call>)"},
	{"seed_oss", "seed_oss", false,
     "<seed:think>a</seed:think>\n<seed:tool_call>\n<function=f>\n<parameter=n>1</parameter>\n</"
     "function>\n</seed:tool_call>",
     "R(a)B(*,f)A({\"n\": 1})E"},
	{"minimax_m2", NULL, false,
     "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"s\">San "
     "Francisco</parameter>\n<parameter name=\"n\">1.5</parameter>\n</invoke>\n<invoke "
     "name=\"get_time\">\n</invoke>\n</minimax:tool_call>",
     "B(*,f)A({\"s\": \"San Francisco\", \"n\": 1.5})EB(*,get_time)A({})E"},
	{"deepseek_v32", NULL, false,
     "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"x\" "
     "string=\"true\">1</｜DSML｜parameter>\n<｜DSML｜parameter name=\"y\" "
     "string=\"false\">[1]</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
     "B(*,f)A({\"x\": \"1\", \"y\": [1]})E"},
	{"glm45", "think", false,
     "\n<think>hm</think>\n\n<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>a "
     "<b>\n</arg_value>\n<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n</"
     "tool_call>\n<tool_call>get_time\n</tool_call>",
     "R(hm)B(*,f)A({\"s\": \"a <b>\\n\", \"n\": 1})EB(*,get_time)A({})E"},
	{"glm45", NULL, false,
     "<tool_call>get_time</tool_call><tool_call>f<arg_key>n</arg_key><arg_value>1</arg_value></"
     "tool_call>",
     "B(*,get_time)A({})EB(*,f)A({\"n\": 1})E"},

	/* programs */
	{"pythonic", NULL, false,
     "[f(s=\"it's\", n=-1.5), get_time(), f(o={\"a\": (1, None,), 'b': [True]}, "
     "s='q\"\\n\\u00e4\\/\\ud83d\\ude00\\z')]",
     "B(*,f)A({\"s\": \"it's\", \"n\": -1.5})EB(*,get_time)A({})EB(*,f)A({\"o\": {\"a\": [1, "
     "null], \"b\": [true]}, \"s\": \"q\\\"\\nä/😀\\\\z\"})E"},
	{"pythonic", NULL, false, "[1, 2] are numbers", "C([1, 2] are numbers)"},
	{"pythonic", NULL, false, "[unknown(a=1)]", "C([unknown(a=1)])"},
	{"pythonic", NULL, false, "<|python_start|>[f(n=1)]<|python_end|>", "B(*,f)A({\"n\": 1})E"},
	{"pythonic", NULL, false, "[f(1)]", "B(*,f)X([f()C(1)])"},
	{"pythonic", NULL, false, "[f(n=x)]", "B(*,f)X([f(n=x)C()])"},
	{"olmo3", NULL, false, "<function_calls>f(n=1)\nget_time()\n</function_calls>",
     "B(*,f)A({\"n\": 1})EB(*,get_time)A({})E"},
	{"lfm2", NULL, false, "<|tool_call_start|>[f(s=\"a, b)]\")]<|tool_call_end|>Done.",
     "B(*,f)A({\"s\": \"a, b)]\"})EC(Done.)"},
	{"gemma4", "gemma4", false,
     "<|channel>thought\nI see.\n<channel|><|tool_call>call:f{s:<|\"|>a, "
     "\"b}<|\"|>,n:1,o:{k:[1,<|\"|>x<|\"|>]}}<tool_call|>",
     "R(I see.)B(*,f)A({\"s\": \"a, \\\"b}\", \"n\": 1, \"o\": {\"k\": [1, \"x\"]}})E"},
	{"gemma4", NULL, false,
     "<|tool_call>call:get_time{}<tool_call|><|tool_call>call:f{u:true}<tool_call|>",
     "B(*,get_time)A({})EB(*,f)A({\"u\": true})E"},
	{"functiongemma", NULL, false,
     "<start_function_call>call:f{s:<escape>x<escape>}<end_function_call>",
     "B(*,f)A({\"s\": \"x\"})E"},

	/* channels */
	{"harmony", "harmony", false,
     "<|channel|>analysis<|message|>I think "
     "<b>.<|end|><|start|>assistant<|channel|>final<|message|>Hello!<|return|>",
     "R(I think <b>.)C(Hello!)"},
	{"harmony", "harmony", false,
     "<|channel|>analysis<|message|>So.<|end|><|start|>assistant<|channel|>commentary<|message|>I "
     "call.<|end|><|start|>assistant<|channel|>commentary to=functions.f "
     "<|constrain|>json<|message|>{\"n\": 1}<|call|>",
     "R(So.)C(I call.)B(*,f)A({\"n\": 1})E"},
	{"harmony", "harmony", false,
     "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{\"n\": 1}",
     "B(*,f)A({\"n\": 1})E"},
	{"harmony", "harmony", false, "No channels at all <|end", "C(No channels at all <|end)"},
	{"harmony", "harmony", false, "<|channel|>commentary to=functions.f<|message|>no JSON<|call|>",
     "B(*,f)X(<|channel|>commentary to=functions.f<|message|>)C(no JSON<|call|>)"},
	{"harmony", "harmony", false, "<|channel|>final<|message|>cut <|e", "C(cut <|e)"},
};
const size_t mx_n_samples = sizeof(mx_samples) / sizeof(*mx_samples);
