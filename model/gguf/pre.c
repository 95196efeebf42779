/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The values of tokenizer.ggml.pre, and the pre-tokenizers that the tokenizer.json of the same
 * models have. GGUF does not say whether a text is normalised: the models of Qwen and Cohere do.
 */
#include <string.h>

#include "model/gguf/tokens.h"

#define NFC        "{\"type\":\"NFC\"}"
#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}"
#define BYTES      "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}"
#define SPLIT(regex)                                                                               \
	"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex                                          \
	"\"},\"behavior\":\"Isolated\",\"invert\":false}"
#define SEQUENCE(parts) "{\"type\":\"Sequence\",\"pretokenizers\":[" parts "]}"
#define ONE(regex)      SEQUENCE(SPLIT(regex) "," BYTES)
#define DIGITS          "{\"type\":\"Digits\",\"individual_digits\":true}"

/* Parts of expressions, with the backslashes of JSON in C. */
#define SHORT_FORMS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define REST        " ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define REST_SLASH                                                                                 \
	" ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n/]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define UPPER   "[\\\\p{Lu}\\\\p{Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]"
#define LOWER   "[\\\\p{Ll}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]"
#define LEADING "[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?"
#define DEEPSEEK_WORDS                                                                             \
	"[!\\\"#$%&'()*+,\\\\-./:;<=>?@\\\\[\\\\\\\\\\\\]^_`{|}~][A-Za-z]+|"                           \
	"[^\\\\r\\\\n\\\\p{L}\\\\p{P}\\\\p{S}]?[\\\\p{L}\\\\p{M}]+| "                                  \
	"?[\\\\p{P}\\\\p{S}]+[\\\\r\\\\n]*|"                                                           \
	"\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"

#define LLAMA3 ONE(SHORT_FORMS "|" LEADING "\\\\p{L}+|\\\\p{N}{1,3}|" REST)
#define QWEN2  ONE(SHORT_FORMS "|" LEADING "\\\\p{L}+|\\\\p{N}|" REST)

static const struct mx_gguf_pre table[] = {
	{.names = "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2",
     .pre_tokenizer = LLAMA3,
     .ignore_merges = true,
     .add_bos = true},
	{.names = "smaug-bpe chatglm-bpe", .pre_tokenizer = LLAMA3},
	{.names = "glm4", .pre_tokenizer = LLAMA3, .ignore_merges = true},
	{.names = "qwen2", .normalizer = NFC, .pre_tokenizer = QWEN2},
	{.names = "deepseek-r1-qwen megrez stablelm2 hunyuan", .pre_tokenizer = QWEN2},
	{.names = "qwen35",
     .normalizer = NFC,
     .pre_tokenizer =
         ONE(SHORT_FORMS "|" LEADING "[\\\\p{L}\\\\p{M}]+|\\\\p{N}|"
                         " ?[^\\\\s\\\\p{L}\\\\p{M}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|"
                         "\\\\s+(?!\\\\S)|\\\\s+")},
	{.names = "gpt-2 phi-2 gigachat exaone4 mellum granite-docling mpt jais trillion",
     .pre_tokenizer = BYTE_LEVEL},
	{.names = "olmo", .normalizer = NFC, .pre_tokenizer = BYTE_LEVEL},
	{.names = "starcoder refact smollm codeshell exaone minerva-7b",
     .pre_tokenizer = SEQUENCE(DIGITS "," BYTE_LEVEL)},
	{.names = "command-r", .normalizer = NFC, .pre_tokenizer = SEQUENCE(DIGITS "," BYTE_LEVEL)},
	{.names = "tekken",
     .pre_tokenizer =
         ONE(LEADING UPPER "*" LOWER "+|" LEADING UPPER "+" LOWER "*|\\\\p{N}|" REST_SLASH),
     .ignore_merges = true,
     .add_bos = true},
	{.names = "gpt-4o llama4 kanana2",
     .pre_tokenizer = ONE(LEADING UPPER "*" LOWER "+" SHORT_FORMS "?|" LEADING UPPER "+" LOWER
                                        "*" SHORT_FORMS "?|\\\\p{N}{1,3}|" REST_SLASH)},
	{.names = "deepseek-v3 hunyuan-dense joyai-llm",
     .pre_tokenizer = SEQUENCE(SPLIT("\\\\p{N}{1,3}") "," SPLIT(
		 "[\\u4e00-\\u9fa5\\u3040-\\u309f\\u30a0-\\u30ff]+") "," SPLIT(DEEPSEEK_WORDS) "," BYTES)},
	{.names = "deepseek-coder",
     .pre_tokenizer = SEQUENCE(
		 SPLIT("[\\\\r\\\\n]") "," SPLIT("\\\\s?\\\\p{L}+") "," SPLIT("\\\\s?\\\\p{P}+") "," SPLIT(
			 "[\\u4e00-\\u9fa5\\u0800-\\u4e00\\uac00-\\ud7ff]+") "," DIGITS "," BYTES)},
};

const struct mx_gguf_pre *mx_gguf_pre_named(struct mx_gguf_string name)
{
	for (size_t i = 0; i < sizeof table / sizeof *table; i++)
		for (const char *p = table[i].names; *p;) {
			size_t n = strcspn(p, " ");
			if (n == name.n && !memcmp(p, name.s, n))
				return &table[i];
			p += n + (p[n] == ' ');
		}
	return NULL;
}
