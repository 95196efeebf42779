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

/* Letters that have a case, as DeepSeek's tokenizer lists them. */
#define CASED                                                                                      \
	"A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293"                \
	"\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a"                 \
	"\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-"               \
	"\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-"               \
	"\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-"               \
	"\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-"                 \
	"\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-"               \
	"\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-"                  \
	"\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-"                 \
	"\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-"                \
	"\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-"               \
	"\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-"                     \
	"\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"                    \
	"\U0001e900-\U0001e943"

/* Of DeepSeek's earlier models. */
#define LINE_ENDS SPLIT("[\\\\r\\\\n]")
#define MARKS     SPLIT("\\\\s?[!-/:-~\\uff01-\\uff0f\\uff1a-\\uff5e\\u2018-\\u201f\\u3000-\\u3002]+")
#define EASTERN   SPLIT("[\\u4e00-\\u9fa5\\u0800-\\u4e00\\uac00-\\ud7ff]+")
#define TOGETHER  "{\"type\":\"Digits\",\"individual_digits\":false}"

/* Of Kimi, whose words have no Chinese in them. */
#define NOT_HAN(class) "(?:(?!\\\\p{Han})" class ")"
#define KIMI_WORDS                                                                                 \
	"\\\\p{Han}+|" LEADING NOT_HAN(UPPER) "*" NOT_HAN(LOWER) "+" SHORT_FORMS "?|" LEADING NOT_HAN( \
		UPPER) "+" NOT_HAN(LOWER) "*" SHORT_FORMS "?|\\\\p{N}{1,3}|"

static const struct mx_gguf_pre table[] = {
	{.names = "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2",
     .pre_tokenizer = LLAMA3,
     .ignore_merges = true,
     .add_bos = true},
	{.names = "smaug-bpe chatglm-bpe dbrx", .pre_tokenizer = LLAMA3},
	{.names = "glm4 glm5", .pre_tokenizer = LLAMA3, .ignore_merges = true},
	{.names = "qwen2", .normalizer = NFC, .pre_tokenizer = QWEN2},
	{.names = "deepseek-r1-qwen megrez stablelm2 hunyuan solar-open kormo grok-2",
     .pre_tokenizer = QWEN2},
	{.names = "qwen35",
     .normalizer = NFC,
     .pre_tokenizer =
         ONE(SHORT_FORMS "|" LEADING "[\\\\p{L}\\\\p{M}]+|\\\\p{N}|"
                         " ?[^\\\\s\\\\p{L}\\\\p{M}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|"
                         "\\\\s+(?!\\\\S)|\\\\s+")},
	{.names = "gpt-2 phi-2 gigachat exaone4 mellum granite-docling mpt jais trillion a.x-4.0",
     .pre_tokenizer = BYTE_LEVEL},
	{.names = "olmo", .normalizer = NFC, .pre_tokenizer = BYTE_LEVEL},
	{.names = "starcoder refact smollm codeshell exaone minerva-7b mellum2",
     .pre_tokenizer = SEQUENCE(DIGITS "," BYTE_LEVEL)},
	{.names = "command-r", .normalizer = NFC, .pre_tokenizer = SEQUENCE(DIGITS "," BYTE_LEVEL)},
	{.names = "tekken",
     .pre_tokenizer =
         ONE(LEADING UPPER "*" LOWER "+|" LEADING UPPER "+" LOWER "*|\\\\p{N}|" REST_SLASH),
     .ignore_merges = true,
     .add_bos = true},
	{.names = "gpt-4o llama4 kanana2 minimax-m2",
     .pre_tokenizer = ONE(LEADING UPPER "*" LOWER "+" SHORT_FORMS "?|" LEADING UPPER "+" LOWER
                                        "*" SHORT_FORMS "?|\\\\p{N}{1,3}|" REST_SLASH)},
	{.names = "deepseek-v3 hunyuan-dense joyai-llm",
     .pre_tokenizer = SEQUENCE(SPLIT("\\\\p{N}{1,3}") "," SPLIT(
		 "[\\u4e00-\\u9fa5\\u3040-\\u309f\\u30a0-\\u30ff]+") "," SPLIT(DEEPSEEK_WORDS) "," BYTES)},
	{.names = "deepseek-llm",
     .pre_tokenizer = SEQUENCE(LINE_ENDS "," SPLIT("\\\\s?[" CASED "]+") "," MARKS "," SPLIT(
		 "\\\\s+$") "," EASTERN "," TOGETHER "," BYTES)},
	{.names = "kimi-k2", .pre_tokenizer = ONE(KIMI_WORDS REST), .ignore_merges = true},
	{.names = "bailingmoe bailingmoe2 llada-moe",
     .pre_tokenizer = ONE("'(?i:[sdmt]|ll|ve|re)|" LEADING "\\\\p{L}+|\\\\p{N}|"
                          " ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]|"
                          "\\\\s+(?!\\\\S)|\\\\s+")},
	{.names = "exaone-moe",
     .pre_tokenizer =
         ONE(SHORT_FORMS "|" LEADING "(?:\\\\p{L}\\\\p{M}*(?: \\\\p{L}\\\\p{M}*)*)+|\\\\p{N}|"
                         " ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n/]?|\\\\s*[\\\\r\\\\n]|"
                         "\\\\s+(?!\\\\S)|\\\\s+")},
	{.names = "seed-coder",
     .pre_tokenizer = ONE(SHORT_FORMS "|" LEADING "\\\\p{L}+|\\\\p{N}|"
                                      " ?[^\\\\s\\\\p{L}\\\\p{N}\\\\r\\\\n]+|\\\\s*[\\\\r\\\\n]+|"
                                      "\\\\s+(?!\\\\S)|\\\\s+")},
	{.names = "deepseek-coder",
     .pre_tokenizer = SEQUENCE(LINE_ENDS "," SPLIT("\\\\s?\\\\p{L}+") "," SPLIT(
		 "\\\\s?\\\\p{P}+") "," EASTERN "," DIGITS "," BYTES)},
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
