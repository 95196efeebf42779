/* SPDX-License-Identifier: Apache-2.0 */
/* What is said of each family: mixd --list-models, and docs/models.md, which is its output. */
#include "model/catalogue.h"

#include <string.h>

#include "model/family/family.h"
#include "model/gguf/texts.h"

#define ATTENTION "attention"
#define EXPERTS   "experts"

/* Where a family's layers run. */
enum place {
	ANYWHERE, /* CPUs and GPUs */
	ON_CPU,
};

static const struct entry {
	const char *type; /* model_type */
	const char *models, *layers;
	enum place place;
	const char *missing; /* what of the family is refused or left out, beside its skipped tensors */
} entries[] = {
	{"llama", "Llama 2 and 3, and what is built like them", ATTENTION, ANYWHERE, ""},
	{"mistral", "Mistral 7B, Nemo, Small", ATTENTION ", windows", ANYWHERE, ""},
	{"qwen2", "Qwen 1.5, 2, 2.5", ATTENTION ", windows", ANYWHERE, ""},
	{"qwen3", "Qwen 3", ATTENTION ", windows", ANYWHERE, ""},
	{"gemma2", "Gemma 2", ATTENTION ", windows, softcaps", ANYWHERE, ""},
	{"gemma3_text", "Gemma 3 1B", ATTENTION ", windows", ANYWHERE, "`use_bidirectional_attention`"},
	{"gemma3", "Gemma 3", ATTENTION ", windows", ANYWHERE, "images; `use_bidirectional_attention`"},
	{"gemma4_text", "the text of Gemma 4",
     ATTENTION ", windows, in E2B and E4B keys of earlier layers; " EXPERTS " in 26B-A4B", ANYWHERE,
     "on GPUs E2B and E4B"},
	{"gemma4", "Gemma 4", "as gemma4_text", ANYWHERE, "images and sound; as gemma4_text"},
	{"phi", "Phi 1, 1.5, 2", ATTENTION ", blocks side by side", ANYWHERE, "`qk_layernorm`"},
	{"phi3", "Phi 3, 3.5, 4, 4 mini", ATTENTION ", windows, longrope", ANYWHERE, ""},
	{"olmo", "OLMo", ATTENTION, ANYWHERE, "`clip_qkv`"},
	{"olmo2", "OLMo 2", ATTENTION, ANYWHERE, ""},
	{"olmo3", "OLMo 3", ATTENTION ", windows", ANYWHERE, ""},
	{"olmo_hybrid", "OLMo Hybrid 7B", "gla (gated delta net), " ATTENTION ", mostly without rope",
     ANYWHERE, ""},
	{"smollm3", "SmolLM 3", ATTENTION ", some without rope", ANYWHERE, ""},
	{"granite", "Granite 3", ATTENTION ", multipliers", ANYWHERE, ""},
	{"granite_swa", "Granite with windows", ATTENTION ", windows, multipliers", ANYWHERE, ""},
	{"ministral", "Ministral", ATTENTION ", windows", ANYWHERE, ""},
	{"ministral3", "Ministral 3", ATTENTION, ANYWHERE, ""},
	{"mistral3", "Mistral Small 3.1, Ministral 3", ATTENTION, ANYWHERE, "images"},
	{"nanochat", "nanochat", ATTENTION, ANYWHERE, ""},
	{"cohere2", "Command R7B, Command A", ATTENTION ", windows, blocks side by side", ANYWHERE, ""},
	{"gpt2", "GPT-2", ATTENTION ", learned positions", ANYWHERE, ""},
	{"gpt_bigcode", "StarCoder, SantaCoder", ATTENTION ", learned positions", ANYWHERE, ""},
	{"gpt_neox", "GPT-NeoX, Pythia", ATTENTION ", blocks side by side", ANYWHERE, ""},
	{"arcee", "AFM 4.5B", ATTENTION, ANYWHERE, ""},
	{"seed_oss", "Seed-OSS", ATTENTION, ANYWHERE, ""},
	{"iquestcoder", "IQuest-Coder", ATTENTION, ANYWHERE, ""},
	{"cohere", "Command R", ATTENTION ", blocks side by side", ANYWHERE, "`use_qk_norm` (R+)"},
	{"gemma", "Gemma", ATTENTION, ANYWHERE, "`use_bidirectional_attention`"},
	{"glm", "GLM 4 9B", ATTENTION, ANYWHERE, ""},
	{"glm4", "GLM 4 0414, Z1", ATTENTION, ANYWHERE, ""},
	{"ernie4_5", "ERNIE 4.5 0.3B", ATTENTION, ANYWHERE, ""},
	{"exaone4", "EXAONE 4", ATTENTION ", windows, some without rope", ANYWHERE, ""},
	{"starcoder2", "StarCoder 2", ATTENTION ", windows", ANYWHERE, ""},
	{"nemotron", "Nemotron 4, Minitron", ATTENTION, ANYWHERE, ""},
	{"cwm", "Code World Model", ATTENTION ", windows", ANYWHERE, ""},
	{"hunyuan_v1_dense", "Hunyuan 0.5B to 7B", ATTENTION, ANYWHERE, ""},
	{"stablelm", "StableLM 3B, 2 1.6B", ATTENTION, ANYWHERE,
     "`qk_layernorm`, `use_parallel_residual` (12B)"},
	{"helium", "Helium 1", ATTENTION, ANYWHERE, ""},
	{"internlm3", "InternLM 3", ATTENTION, ANYWHERE, "`qkv_bias` other than `bias`"},
	{"vaultgemma", "VaultGemma 1B", ATTENTION ", windows, softcaps", ANYWHERE, ""},
	{"youtu", "Youtu-LLM 2B", "mla", ANYWHERE, ""},
	{"hyperclovax", "HyperCLOVA X SEED Think 14B", ATTENTION ", multipliers", ANYWHERE, ""},
	{"mixtral", "Mixtral 8x7B, 8x22B", ATTENTION ", windows; " EXPERTS, ANYWHERE, ""},
	{"qwen2_moe", "Qwen 1.5 MoE, Qwen 2 57B-A14B", ATTENTION ", windows; " EXPERTS ", a shared one",
     ANYWHERE, "`use_sliding_window` without `layer_types`"},
	{"qwen3_moe", "Qwen 3 30B-A3B, 235B-A22B", ATTENTION ", windows; " EXPERTS, ANYWHERE, ""},
	{"glm4_moe", "GLM 4.5, 4.6, 4.7", ATTENTION "; " EXPERTS ", shared ones", ANYWHERE,
     "multi-token prediction"},
	{"deepseek_v2", "DeepSeek V2, V2 Lite, Coder V2", "mla; " EXPERTS ", shared ones", ANYWHERE,
     "`norm_topk_prob`"},
	{"deepseek_v3", "DeepSeek V3, R1, Moonlight", "mla; " EXPERTS ", shared ones", ANYWHERE,
     "FP8 weights, as V3 and R1 are published"},
	{"kimi_k2", "Kimi K2", "mla; " EXPERTS ", a shared one", ANYWHERE,
     "FP8 weights, as it is published"},
	{"glm4_moe_lite", "GLM 4.7 Flash", "mla; " EXPERTS ", a shared one", ANYWHERE, ""},
	{"kimi_linear", "Kimi Linear 48B-A3B",
     "gla (Kimi delta attention), mla without rope; " EXPERTS ", a shared one", ANYWHERE, ""},
	{"bailing_moe", "Ling 2, Ring 2", ATTENTION "; " EXPERTS ", a shared one", ANYWHERE,
     "multi-token prediction; Ling 1"},
	{"bailing_hybrid", "Ling 3",
     "gla (Kimi delta attention), mla with a gate for each head; " EXPERTS ", a shared one", ON_CPU,
     "multi-token prediction; lightning attention (Ling 2.5)"},
	{"afmoe", "Trinity Nano, Mini, Large",
     ATTENTION " with an output gate, windows, some without rope; " EXPERTS ", shared ones",
     ANYWHERE, ""},
	{"mistral4", "Mistral Small 4", "mla; " EXPERTS ", a shared one", ANYWHERE,
     "FP8 weights, as it is published"},
	{"exaone_moe", "K-EXAONE 236B-A23B",
     ATTENTION ", windows, some without rope; " EXPERTS ", a shared one", ANYWHERE,
     "multi-token prediction"},
	{"hunyuan_v1_moe", "Hunyuan A13B", ATTENTION "; " EXPERTS ", a shared one", ANYWHERE,
     "`use_cla`"},
	{"minimax_m2", "MiniMax M2", ATTENTION "; " EXPERTS, ANYWHERE,
     "FP8 weights, as it is published"},
	{"olmoe", "OLMoE", ATTENTION "; " EXPERTS, ANYWHERE, "`clip_qkv`"},
	{"gpt_oss", "gpt-oss 20B, 120B", ATTENTION ", windows, sinks; " EXPERTS, ANYWHERE, ""},
	{"ernie4_5_moe", "ERNIE 4.5 21B-A3B, 300B-A47B", ATTENTION "; " EXPERTS ", shared ones",
     ANYWHERE, "multi-token prediction; `use_bias`"},
	{"dots1", "dots.llm1", ATTENTION ", windows; " EXPERTS ", shared ones", ANYWHERE, ""},
	{"solar_open", "Solar Open 100B", ATTENTION "; " EXPERTS ", a shared one", ANYWHERE, ""},
	{"granitemoe", "Granite 3 1B-A400M, 3B-A800M", ATTENTION ", multipliers; " EXPERTS, ANYWHERE,
     ""},
	{"granitemoeshared", "Granite with experts and a shared one",
     ATTENTION ", multipliers; " EXPERTS ", a shared one", ANYWHERE, ""},
	{"mellum", "Mellum 2", ATTENTION ", windows; " EXPERTS, ANYWHERE, "multi-token prediction"},
	{"minimax", "MiniMax-Text-01, MiniMax-M1, as transformers writes them",
     "gla (lightning attention), " ATTENTION "; " EXPERTS, ANYWHERE, ""},
	{"minimax_text_01", "MiniMax-Text-01, as published", "as minimax", ANYWHERE,
     "a shared expert (no model has one)"},
	{"minimax_m1", "MiniMax-M1, as published", "as minimax", ANYWHERE,
     "a shared expert (no model has one)"},
	{"qwen2_vl", "Qwen 2 VL", ATTENTION ", windows", ANYWHERE, "images"},
	{"qwen2_vl_text", "the text of Qwen 2 VL", "as qwen2_vl", ANYWHERE, ""},
	{"qwen2_5_vl", "Qwen 2.5 VL", ATTENTION ", windows", ANYWHERE, "images"},
	{"qwen2_5_vl_text", "the text of Qwen 2.5 VL", "as qwen2_5_vl", ANYWHERE, ""},
	{"qwen3_vl", "Qwen 3 VL 2B to 32B", ATTENTION, ANYWHERE, "images"},
	{"qwen3_vl_text", "the text of Qwen 3 VL", "as qwen3_vl", ANYWHERE, ""},
	{"qwen3_vl_moe", "Qwen 3 VL 30B-A3B, 235B-A22B", ATTENTION "; " EXPERTS, ANYWHERE, "images"},
	{"qwen3_vl_moe_text", "the text of Qwen 3 VL with experts", "as qwen3_vl_moe", ANYWHERE, ""},
	{"qwen3_next", "Qwen 3 Next 80B-A3B",
     "gla (gated delta net), " ATTENTION " with an output gate; " EXPERTS ", a shared one",
     ANYWHERE, ""},
	{"qwen3_5", "Qwen 3.5, dense", "gla (gated delta net), " ATTENTION " with an output gate",
     ANYWHERE, "images"},
	{"qwen3_5_text", "the text of Qwen 3.5, dense", "as qwen3_5", ANYWHERE, ""},
	{"qwen3_5_moe", "Qwen 3.5 35B-A3B and larger",
     "gla (gated delta net), " ATTENTION " with an output gate; " EXPERTS ", a shared one",
     ANYWHERE, "images"},
	{"qwen3_5_moe_text", "the text of Qwen 3.5 with experts", "as qwen3_5_moe", ANYWHERE, ""},
	{"lfm2", "LFM2 350M to 2.6B", "shortconv, " ATTENTION, ANYWHERE, ""},
	{"lfm2_moe", "LFM2 8B-A1B, 24B-A2B", "shortconv, " ATTENTION "; " EXPERTS, ANYWHERE, ""},
	{"lfm3", "LFM3 1.7B", "shortconv, " ATTENTION " with windows and a gate for each head",
     ANYWHERE, ""},
	{"bamba", "Bamba 9B", "mamba, " ATTENTION, ANYWHERE, ""},
	{"falcon_h1", "Falcon-H1 0.5B to 34B", "mamba and " ATTENTION " side by side, multipliers",
     ANYWHERE, ""},
	{"granitemoehybrid", "Granite 4",
     "mamba, " ATTENTION ", multipliers; " EXPERTS ", a shared one", ANYWHERE, ""},
	{"zamba2", "Zamba 2 1.2B, 2.7B, 7B",
     "mamba, shared transformers of attention beside them with adapters", ON_CPU,
     "`use_long_context`"},
	{"nemotron_h", "Nemotron-H, Nemotron Nano 2 and 3",
     "mamba, " ATTENTION " without rope, feed-forwards or " EXPERTS ", one a layer", ANYWHERE,
     "multi-token prediction; the step is clamped to `time_step_limit`, not to `time_step_min`"},
	{"jamba", "Jamba", "mamba1, " ATTENTION " without rope; " EXPERTS, ANYWHERE, ""},
	{"mamba", "Mamba 130M to 2.8B", "mamba1", ANYWHERE, ""},
	{"falcon_mamba", "Falcon Mamba 7B", "mamba1", ANYWHERE, ""},
	{"mamba2", "Mamba-2, Codestral Mamba; also flash-linear-attention's and state-spaces' configs",
     "mamba", ANYWHERE, "hybrids of state-spaces (`attn_layer_idx`)"},
	{"rwkv7", "RWKV-7 Goose 0.1B to 2.9B, as flash-linear-attention has them",
     "rwkv (time mixing and channel mixing)", ANYWHERE,
     "layers of attention (`attn`); `value_dim` other than `hidden_size`"},
	{"hyenadna", "HyenaDNA", "hyena", ANYWHERE, ""},
	{"safari", "Hyena of safari", "hyena", ANYWHERE, ""},
	{"stripedhyena", "StripedHyena 7B", "hyena, " ATTENTION, ANYWHERE, ""},
	{"mixd", "models of any mixers, see model-format.md", "as the config says", ANYWHERE, ""},
	{"delta_net", "flash-linear-attention: DeltaNet", "gla, " ATTENTION, ANYWHERE, ""},
	{"gated_deltanet", "flash-linear-attention: gated DeltaNet", "gla, " ATTENTION, ANYWHERE, ""},
	{"gla", "flash-linear-attention: GLA", "gla, " ATTENTION, ANYWHERE, ""},
	{"hgrn", "flash-linear-attention: HGRN", "gla, " ATTENTION, ANYWHERE, ""},
	{"hgrn2", "flash-linear-attention: HGRN2", "gla, " ATTENTION, ANYWHERE, ""},
	{"kda", "flash-linear-attention: Kimi delta attention", "gla, " ATTENTION, ANYWHERE, ""},
	{"linear_attn", "flash-linear-attention: linear attention", "gla, " ATTENTION, ANYWHERE, ""},
	{"retnet", "flash-linear-attention: RetNet", "gla, " ATTENTION, ANYWHERE, ""},
};
#define N_ENTRIES (sizeof entries / sizeof *entries)

static const char head[] =
	"# Models\n"
	"\n"
	"What `mixd --list-models` prints. A checkpoint folder is recognised by the `model_type` of "
	"its `config.json`; weights are F32, F16 or BF16 in safetensors, quantised as below, "
	"or in [GGUF](gguf.md). A tensor that nothing asks "
	"for is an error unless it is listed here as skipped; buffers `*.rotary_emb.inv_freq` always "
	"are. GPUs run layers of every mixer but dci, with dense feed-forwards or experts; `mixd`'s "
	"own "
	"format runs there too.\n"
	"\n"
	"Quantised checkpoints: 4 bits in groups and 8 bits of compressed-tensors (pack-quantized, "
	"int-quantized), AWQ (gemm), GPTQ (without act order) and the MXFP4 of gpt-oss are multiplied "
	"with as they are; so is fp8 (e4m3, scales for the tensor, the rows or blocks of 128 x 128) on "
	"GPUs, while on CPUs it is expanded to bf16 when it is loaded. So are the experts of "
	"such checkpoints, on GPUs from compute capability 9.0 on with activations in bf16; on others "
	"experts are expanded to bf16. Other methods are refused by name. `weights: int8` or `int4` "
	"rounds a checkpoint that "
	"is not quantised.\n"
	"\n"
	"| model_type | models | layers | runs on | GGUF files, by `general.architecture` | not "
	"supported "
	"| skipped tensors |\n"
	"| --- | --- | --- | --- | --- | --- | --- |\n";

static const struct entry *entry_of(const struct mx_family *f)
{
	for (size_t i = 0; i < N_ENTRIES; i++)
		if (!strcmp(entries[i].type, f->model_type))
			return &entries[i];
	return NULL;
}

mx_status mx_catalogue_write(struct mx_buf *out)
{
	size_t n = 0;
	mx_buf_puts(out, head);
	for (const struct mx_family *f; (f = mx_family_at(n)); n++) {
		const struct entry *e = entry_of(f);
		if (!e)
			return MX_E_INTERNAL;
		mx_buf_printf(out, "| %s | %s | %s | %s | ", e->type, e->models, e->layers,
		              e->place == ANYWHERE ? "CPU, GPU" : "CPU");
		mx_gguf_names_of_family(e->type, out);
		mx_buf_printf(out, " | %s |", e->missing);
		for (const char *const *s = f->skipped; s && *s; s++)
			mx_buf_printf(out, "%s `%s`", s == f->skipped ? "" : ",", *s);
		mx_buf_puts(out, " |\n");
	}
	if (n != N_ENTRIES)
		return MX_E_INTERNAL;
	return out->failed ? MX_E_NOMEM : MX_OK;
}
