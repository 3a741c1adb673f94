"""Architectures that a GGUF file can name, and which of them we can put into the terms of a config.json.

Names: `MODEL_ARCH_NAMES` of the gguf package 0.19.0, and of the newer one that llama-cpp-python 0.3.36 brings. What a
name stands for (model types, which key holds what) is what llama.cpp's converter writes for these models; the
derivation was compared with that converter's own output for the real configs at hand.
"""

from __future__ import annotations

from typing import NamedTuple

_NAMES = """
    afmoe apertus arcee arctic arwkv7 baichuan bailingmoe bailingmoe2 bailingmoe3 bert bitnet bloom chameleon
    chatglm clip codeshell cogvlm cohere2 cohere2moe command-r dbrx deci deepseek deepseek2 deepseek2-ocr deepseek32
    deepseek4 dflash dots1 dots3note dream eagle3 ernie4_5 ernie4_5-moe eurobert exaone exaone-moe exaone4 falcon
    falcon-h1 gemma gemma-embedding gemma2 gemma3 gemma3n gemma4 gemma4-assistant glm-dsa glm4 glm4moe glm5-next
    gpt-oss gpt2 gptj gptneox granite granite_swa granitehybrid granitemoe graniteswitch grok grovemoe hrm_text
    hunyuan-dense hunyuan-moe hunyuan_vl hy_v3 hy_v4 internlm2 jais jais2 jamba jina-bert-v2 jina-bert-v3 kimi-k3
    kimi-linear laguna lfm2 lfm2moe llada llada-moe llama llama-embed llama4 maincoder mamba mamba2 maple mellum
    mimo2 minicpm minicpm3 minimax-01 minimax-m2 minimax-m3 mistral3 mistral4 modern-bert mpt muse-glimmer nanbeige
    nemotron nemotron_h nemotron_h_moe neo-bert nomic-bert nomic-bert-moe olmo olmo2 olmoe openelm orion paddleocr
    pangu-embedded phi2 phi3 phimoe plamo plamo2 plamo3 plm pockettts qwen qwen2 qwen2moe qwen2vl qwen3 qwen35
    qwen35moe qwen3moe qwen3next qwen3tts qwen3vl qwen3vlmoe qwen4exp refact rnd1 rwkv6 rwkv6qwen2 rwkv7 seed_oss
    smallthinker smollm3 spark2_5 stablelm starcoder starcoder2 step35 t5 t5encoder talkie wavtokenizer-dec xverse
"""
NAMES = frozenset(_NAMES.split())


class Form(NamedTuple):
    """The model in Hugging Face terms. `experts` is the key that counts them there; `layout` names a function of
    `layouts`, which reads what is special."""

    model_type: str
    architecture: str
    experts: str = ""
    layout: str = "plain"


_LOCAL, _ROUTED, _NUM = "num_local_experts", "n_routed_experts", "num_experts"

FORMS: dict[str, Form] = {
    "apertus": Form("apertus", "ApertusForCausalLM"),
    "arcee": Form("arcee", "ArceeForCausalLM"),
    "command-r": Form("cohere", "CohereForCausalLM"),
    "cohere2": Form("cohere2", "Cohere2ForCausalLM", layout="window"),
    "deepseek2": Form("deepseek_v3", "DeepseekV3ForCausalLM", _ROUTED, "deepseek2"),
    "deepseek32": Form("deepseek_v32", "DeepseekV32ForCausalLM", _ROUTED, "indexed"),
    "ernie4_5": Form("ernie4_5", "Ernie4_5ForCausalLM"),
    "exaone4": Form("exaone4", "Exaone4ForCausalLM", layout="window"),
    "falcon-h1": Form("falcon_h1", "FalconH1ForCausalLM", layout="falcon_h1"),
    "gemma": Form("gemma", "GemmaForCausalLM"),
    "gemma2": Form("gemma2", "Gemma2ForCausalLM", layout="window"),
    "gemma3": Form("gemma3_text", "Gemma3ForCausalLM", layout="window"),
    "glm-dsa": Form("glm_moe_dsa", "GlmMoeDsaForCausalLM", _ROUTED, "indexed"),
    "glm4": Form("glm4", "Glm4ForCausalLM"),
    "glm4moe": Form("glm4_moe", "Glm4MoeForCausalLM", _ROUTED),
    "gpt-oss": Form("gpt_oss", "GptOssForCausalLM", _LOCAL, "window"),
    "gpt2": Form("gpt2", "GPT2LMHeadModel"),
    "gptneox": Form("gpt_neox", "GPTNeoXForCausalLM"),
    "granite": Form("granite", "GraniteForCausalLM"),
    "granitemoe": Form("granitemoe", "GraniteMoeForCausalLM", _LOCAL),
    "granitehybrid": Form("granitemoehybrid", "GraniteMoeHybridForCausalLM", _LOCAL, "granite_hybrid"),
    "hunyuan-dense": Form("hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM"),
    "kimi-linear": Form("kimi_linear", "KimiLinearForCausalLM", _NUM, "kimi_linear"),
    "lfm2": Form("lfm2", "Lfm2ForCausalLM", layout="lfm2"),
    "lfm2moe": Form("lfm2_moe", "Lfm2MoeForCausalLM", _NUM, "lfm2"),
    "llama": Form("llama", "LlamaForCausalLM", layout="llama"),
    "mamba": Form("mamba", "MambaForCausalLM", layout="mamba"),
    "mamba2": Form("mamba2", "Mamba2ForCausalLM", layout="mamba"),
    "mimo2": Form("mimo_v2_flash", "MiMoV2FlashForCausalLM", _ROUTED, "mimo2"),
    "minimax-m2": Form("minimax_m2", "MiniMaxM2ForCausalLM", _LOCAL),
    "mistral3": Form("ministral3", "Ministral3ForCausalLM"),
    "nemotron": Form("nemotron", "NemotronForCausalLM"),
    "nemotron_h": Form("nemotron_h", "NemotronHForCausalLM", _ROUTED, "nemotron_h"),
    "nemotron_h_moe": Form("nemotron_h", "NemotronHForCausalLM", _ROUTED, "nemotron_h"),
    "olmo": Form("olmo", "OlmoForCausalLM"),
    "olmo2": Form("olmo2", "Olmo2ForCausalLM", layout="olmo2"),
    "olmoe": Form("olmoe", "OlmoeForCausalLM", _NUM),
    "phi2": Form("phi", "PhiForCausalLM"),
    "phi3": Form("phi3", "Phi3ForCausalLM", layout="phi3"),
    "phimoe": Form("phimoe", "PhiMoEForCausalLM", _LOCAL, "phi3"),
    "qwen2": Form("qwen2", "Qwen2ForCausalLM"),
    "qwen2moe": Form("qwen2_moe", "Qwen2MoeForCausalLM", _NUM),
    "qwen3": Form("qwen3", "Qwen3ForCausalLM"),
    "qwen3moe": Form("qwen3_moe", "Qwen3MoeForCausalLM", _NUM),
    "qwen3next": Form("qwen3_next", "Qwen3NextForCausalLM", _NUM, "gated_delta"),
    "qwen35": Form("qwen3_5_text", "Qwen3_5ForCausalLM", layout="gated_delta"),
    "qwen35moe": Form("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", _NUM, "gated_delta"),
    "seed_oss": Form("seed_oss", "SeedOssForCausalLM"),
    "smollm3": Form("smollm3", "SmolLM3ForCausalLM"),
    "stablelm": Form("stablelm", "StableLmForCausalLM"),
    "starcoder2": Form("starcoder2", "Starcoder2ForCausalLM"),
}

#: what the others are, where that can be said in a word
_OTHERS = {
    "an encoder": "bert eurobert gemma-embedding jina-bert-v2 jina-bert-v3 llama-embed modern-bert neo-bert "
    "nomic-bert nomic-bert-moe t5encoder",
    "the language part of a vision model, whose vision part lies in an mmproj file": "chameleon cogvlm deepseek2-ocr "
    "hunyuan_vl paddleocr qwen2vl qwen3vl qwen3vlmoe",
    "built on a state that attnfit does not derive from these keys": "arwkv7 jamba plamo2 rwkv6 rwkv6qwen2 rwkv7",
    "a diffusion language model": "dream llada llada-moe rnd1",
    "a draft model": "dflash eagle3 gemma4-assistant",
    "a vision projector (mmproj), not a language model": "clip",
    "compressed attention with a cache layout of its own": "deepseek4",
    "chunked attention, whose chunk size the file does not hold": "llama4",
    "an encoder-decoder model": "t5",
    "an audio decoder, not a language model": "wavtokenizer-dec",
}
WHAT: dict[str, str] = {name: what for what, names in _OTHERS.items() for name in names.split()}
