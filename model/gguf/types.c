/* SPDX-License-Identifier: Apache-2.0 */
/* The types of tensors: elements and bytes of a block (ggml.h, ggml-common.h of ggml). */
#include "model/gguf/gguf.h"

static const struct mx_gguf_type_info types[] = {
	{MX_GGUF_TYPE_F32, "F32", 1, 4},
	{MX_GGUF_TYPE_F16, "F16", 1, 2},
	{MX_GGUF_TYPE_Q4_0, "Q4_0", 32, 18},
	{MX_GGUF_TYPE_Q4_1, "Q4_1", 32, 20},
	{MX_GGUF_TYPE_Q5_0, "Q5_0", 32, 22},
	{MX_GGUF_TYPE_Q5_1, "Q5_1", 32, 24},
	{MX_GGUF_TYPE_Q8_0, "Q8_0", 32, 34},
	{9, "Q8_1", 32, 36},
	{MX_GGUF_TYPE_Q2_K, "Q2_K", 256, 84},
	{MX_GGUF_TYPE_Q3_K, "Q3_K", 256, 110},
	{MX_GGUF_TYPE_Q4_K, "Q4_K", 256, 144},
	{MX_GGUF_TYPE_Q5_K, "Q5_K", 256, 176},
	{MX_GGUF_TYPE_Q6_K, "Q6_K", 256, 210},
	{15, "Q8_K", 256, 292},
	{MX_GGUF_TYPE_IQ2_XXS, "IQ2_XXS", 256, 66},
	{MX_GGUF_TYPE_IQ2_XS, "IQ2_XS", 256, 74},
	{MX_GGUF_TYPE_IQ3_XXS, "IQ3_XXS", 256, 98},
	{MX_GGUF_TYPE_IQ1_S, "IQ1_S", 256, 50},
	{MX_GGUF_TYPE_IQ4_NL, "IQ4_NL", 32, 18},
	{MX_GGUF_TYPE_IQ3_S, "IQ3_S", 256, 110},
	{MX_GGUF_TYPE_IQ2_S, "IQ2_S", 256, 82},
	{MX_GGUF_TYPE_IQ4_XS, "IQ4_XS", 256, 136},
	{24, "I8", 1, 1},
	{25, "I16", 1, 2},
	{26, "I32", 1, 4},
	{27, "I64", 1, 8},
	{28, "F64", 1, 8},
	{MX_GGUF_TYPE_IQ1_M, "IQ1_M", 256, 56},
	{MX_GGUF_TYPE_BF16, "BF16", 1, 2},
	{MX_GGUF_TYPE_TQ1_0, "TQ1_0", 256, 54},
	{MX_GGUF_TYPE_TQ2_0, "TQ2_0", 256, 66},
	{MX_GGUF_TYPE_MXFP4, "MXFP4", 32, 17},
	{40, "NVFP4", 64, 36},
	{41, "Q1_0", 128, 18},
	{42, "Q2_0", 64, 18},
};

const struct mx_gguf_type_info *mx_gguf_type_info(uint32_t type)
{
	for (size_t i = 0; i < sizeof types / sizeof *types; i++)
		if (types[i].type == type)
			return &types[i];
	return NULL;
}
