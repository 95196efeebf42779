/* SPDX-License-Identifier: Apache-2.0 */
/* What people give for a checkpoint folder by mistake is named, with the remedy. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "model/folder.h"
#include "model/plan.h"

#define POINTER                                                                                    \
	"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb"  \
	"8f32b1258daaa5e2ca24d17e2393\nsize 988097824\n"
#define CONFIG "{\"model_type\": \"nothing\"}"

static char folder[64];

static int make_folder(void **state)
{
	(void)state;
	snprintf(folder, sizeof folder, "/tmp/mixd-folder-XXXXXX");
	return mkdtemp(folder) ? 0 : -1;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *f)
{
	(void)st;
	(void)type;
	(void)f;
	return remove(path);
}

static int remove_folder(void **state)
{
	(void)state;
	return nftw(folder, remove_entry, 4, FTW_DEPTH | FTW_PHYS);
}

static void put(const char *name, const char *text)
{
	char path[128];
	snprintf(path, sizeof path, "%s/%s", folder, name);
	FILE *f = fopen(path, "w");
	assert_non_null(f);
	assert_true(fputs(text, f) >= 0);
	fclose(f);
}

/* Loading the folder's file or subfolder `name` fails with every word of the list. */
static void refused(const char *name, mx_status status, const char *const *words)
{
	char path[128];
	struct mx_plan *p = NULL;
	struct mx_err err = {0};
	snprintf(path, sizeof path, "%s%s%s", folder, *name ? "/" : "", name);
	assert_int_equal(mx_plan_load(path, &p, &err), status);
	assert_null(p);
	char text[sizeof err.where + sizeof err.text + 4];
	snprintf(text, sizeof text, "%s: %s", err.where, err.text);
	for (; *words; words++)
		if (!strstr(text, *words))
			fail_msg("no \"%s\" in \"%s\"", *words, text);
	assert_true(strlen(err.text) < sizeof err.text - 1); /* not cut */
}
#define REFUSED(name, status, ...) refused(name, status, (const char *const[]){__VA_ARGS__, NULL})

static void a_gguf_file(void **state)
{
	(void)state;
	put("tiny.gguf", "GGUF\3");
	REFUSED("", MX_E_INVALID, folder, "holds tiny.gguf in GGUF", "give the path of the file");
	put("config.json", CONFIG);
	REFUSED("", MX_E_INVALID, "holds tiny.gguf in GGUF");
	put("model.safetensors", ""); /* beside safetensors a GGUF file does no harm */
	REFUSED("", MX_E_UNSUPPORTED, "model_type: 'nothing'");
}

static void another_file(void **state)
{
	(void)state;
	put("model.safetensors", "");
	REFUSED("model.safetensors", MX_E_INVALID, "is a file: give the folder");
}

static void a_folder_without_config(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		REFUSED("", MX_E_NOTFOUND, folder, "is not a model folder: it has no config.json",
		        "give the folder that holds the checkpoint");
		put("model.safetensors", ""); /* empty at first */
	}
	put("config.json", CONFIG);
	REFUSED("", MX_E_UNSUPPORTED, "model_type: 'nothing'");
}

static void git_lfs_pointers(void **state)
{
	(void)state;
	static const char *const names[] = {"model.safetensors", "tokenizer.json", "config.json",
	                                    "model-00002-of-00009.safetensors"};
	for (size_t i = 0; i < 4; i++) {
		put("config.json", CONFIG);
		put(names[i], POINTER);
		REFUSED("", MX_E_FORMAT, folder, names[i], "is a git-lfs pointer", "git lfs pull");
		put(names[i], "{}");
	}
	put("model.gguf", POINTER);
	REFUSED("model.gguf", MX_E_FORMAT, "is a git-lfs pointer");
}

static void pickles_alone(void **state)
{
	(void)state;
	put("config.json", CONFIG);
	put("pytorch_model.bin", "PK");
	REFUSED("", MX_E_UNSUPPORTED, folder, "holds pytorch_model.bin", "from_pretrained",
	        "save_pretrained", "give NEW as its path");
	put("model.safetensors.index.json", "{}");
	REFUSED("", MX_E_UNSUPPORTED, "model_type: 'nothing'");
}

static void a_name_on_the_hub(void **state)
{
	(void)state;
	REFUSED("Qwen/Qwen3-0.6B", MX_E_NOTFOUND, folder, "there is no such folder",
	        "hf download Qwen/Qwen3-0.6B --local-dir");
	struct mx_err err = {0};
	assert_int_equal(mx_folder_check("no-org/no-name", &err), MX_E_NOTFOUND);
	assert_non_null(strstr(err.text, "hf download no-org/no-name "));
	assert_int_equal(mx_folder_check("no-such-folder", &err), MX_E_NOTFOUND);
	assert_null(strstr(err.text, "hf download"));
	/* a sibling of other models is rather a typing mistake */
	char path[128];
	snprintf(path, sizeof path, "%s/typo", folder);
	assert_int_equal(mx_folder_check(path, &err), MX_E_NOTFOUND);
	assert_null(strstr(err.text, "hf download"));
	assert_int_equal(mx_folder_check("", &err), MX_E_NOTFOUND);
	assert_int_equal(mx_folder_check("/", &err), MX_E_NOTFOUND); /* there, but not a model */
	assert_non_null(strstr(err.text, "is not a model folder"));
}

static void an_unknown_model_type(void **state)
{
	(void)state;
	put("config.json",
	    "{\"model_type\":\"deepseek_v32\",\"index_topk\":512,\"scoring_func\":\"entmax\","
	    "\"hidden_act\":\"silu\",\"rope_scaling\":{\"type\":\"spiral\"},\"is_encoder_decoder\":"
	    "false,\"vision_config\":null}");
	REFUSED("", MX_E_UNSUPPORTED, "config.json: model_type: 'deepseek_v32' is not supported",
	        "those that are. Missing here: sparse attention (index_topk), router of experts "
	        "(scoring_func 'entmax'), rope scaling (rope_scaling 'spiral'). ",
	        "model_type: mixd (docs/model-format.md)");
	put("config.json", "{\"model_type\":\"lama\",\"hidden_act\":\"silu\"}");
	REFUSED("", MX_E_UNSUPPORTED, "(is it like 'llama'?)", "mixd --list-models");
	put("config.json", "{\"model_type\":\"other\",\"hidden_act\":\"silu\"}");
	REFUSED("", MX_E_UNSUPPORTED, "Its config.json does not say what is missing here. ",
	        "model_type: mixd");
	/* the longest that can be is not cut at its end */
	put("config.json",
	    "{\"model_type\":\"ooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooo\","
	    "\"text_config\":{},\"vision_config\":{},\"audio_config\":{},\"is_encoder_decoder\":true,"
	    "\"index_topk\":1,\"alibi\":true,\"n_positions\":1,\"attn_logit_softcapping\":1,"
	    "\"final_logit_softcapping\":1,\"clip_qkv\":1,\"hidden_act\":\"mish\"}");
	REFUSED("", MX_E_UNSUPPORTED, "an encoder (is_encoder_decoder)", "(docs/model-format.md)");
}

static void quantized_weights(void **state)
{
	(void)state;
	put("config.json", "{\"model_type\":\"llama\",\"quantization\":{\"group_size\":64,\"bits\":4},"
	                   "\"quantization_config\":{\"group_size\":64,\"bits\":4}}");
	REFUSED("", MX_E_UNSUPPORTED, "quantization: MLX's quantized weights (bits 4, group_size 64)",
	        "BF16, F16 or F32");
	put("config.json",
	    "{\"model_type\":\"llama\",\"quantization_config\":{\"quant_method\":\"hqq\"}}");
	REFUSED("", MX_E_UNSUPPORTED, "quantization_config.quant_method: ", "\"hqq\"",
	        "BF16, F16 or F32");
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_folder, remove_folder)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_folder_without_config), TEST(a_gguf_file),       TEST(another_file),
		TEST(git_lfs_pointers),        TEST(pickles_alone),     TEST(a_name_on_the_hub),
		TEST(an_unknown_model_type),   TEST(quantized_weights),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
