"""Tiny random DSA models of transformers on CPU: with our sparse MLA they compute what their eager attention does."""

from __future__ import annotations

import copy
from functools import cache

import pytest
import torch

pytest.importorskip("transformers", reason="pip install 'attnfit[kernels-dev]'")
from transformers import DeepseekV32Config, DeepseekV32ForCausalLM, GlmMoeDsaConfig, GlmMoeDsaForCausalLM

from attnfit.kernels.hf import use_sparse_mla

pytestmark = pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning")

TOPK = 16  # far fewer than the prompts have tokens: what is left out shows
VOCABULARY = 256
# Logits have a standard deviation of 1.1 here. Both sides compute in fp32, in another order; 40 models with 300 tokens
# each differed by at most 9.8e-6.
LOGITS = 2e-5
# A 16-bit model against itself in fp32, with the same rows chosen: how much more ours may err than eager attention.
NO_WORSE = 1.25
MODELS = {
    "GlmMoeDsa": (GlmMoeDsaForCausalLM, GlmMoeDsaConfig, {"indexer_types": ["full", "full", "shared"]}),
    "DeepseekV32": (DeepseekV32ForCausalLM, DeepseekV32Config, {}),
}
models = pytest.mark.parametrize("name", MODELS)
seeds = pytest.mark.parametrize("seed", [0, 1, 2])


@cache
def eager(name: str, seed: int, dense_layers: int = 1):
    """A random model; copy it before changing it. 32 index heads: with few, ReLU's zeros tie, and chance chooses."""
    model, config, more = MODELS[name]
    torch.manual_seed(seed)
    tiny = config(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=128, num_hidden_layers=3, max_position_embeddings=512,
        num_attention_heads=8, num_key_value_heads=8, qk_nope_head_dim=32, qk_rope_head_dim=64, v_head_dim=32,
        q_lora_rank=64, kv_lora_rank=512, index_topk=TOPK, index_n_heads=32, index_head_dim=128,
        n_routed_experts=8, num_experts_per_tok=2, n_group=1, topk_group=1, moe_intermediate_size=64,
        first_k_dense_replace=dense_layers, rms_norm_eps=1e-6, initializer_range=0.1,
        eos_token_id=None, bos_token_id=None, pad_token_id=0, **more,
    )  # fmt: skip
    built = model(tiny).eval()
    built.set_attn_implementation("eager")
    return built


def ours(model, **how):
    switched = copy.deepcopy(model)
    use_sparse_mla(switched, **how)
    return switched


def prompt(tokens: int, seed: int = 0, batch: int = 1) -> torch.Tensor:
    return torch.randint(1, VOCABULARY, (batch, tokens), generator=torch.Generator().manual_seed(seed))


def logits(model, ids: torch.Tensor, **more) -> torch.Tensor:
    with torch.no_grad():
        return model(ids, **more).logits.float()


def generated(model, ids: torch.Tensor, **more) -> list[list[int]]:
    done = model.generate(ids, max_new_tokens=32, do_sample=False, **more)
    return done[:, ids.shape[1] :].tolist()


@models
@seeds
def test_logits_are_the_eager_model_s_in_fp32(name: str, seed: int) -> None:
    model = eager(name, seed)
    switched = ours(model)
    for tokens, batch in ((5, 1), (TOPK, 2), (TOPK + 1, 1), (130, 2), (300, 1)):
        ids = prompt(tokens, seed, batch)
        assert (logits(model, ids) - logits(switched, ids)).abs().max() < LOGITS


@models
@seeds
def test_generation_is_the_eager_model_s_token_for_token_in_fp32(name: str, seed: int) -> None:
    model = eager(name, seed)
    switched = ours(model)
    texts = [prompt(tokens, 10 * seed + number) for number, tokens in enumerate((5, 20, 60, 130, 300))]
    tokens = [generated(model, ids) for ids in texts]
    assert tokens == [generated(switched, ids) for ids in texts]
    assert len({token for text in tokens for token in text[0]}) > 30, (
        "random models that repeat themselves prove little"
    )


@models
def test_prompts_of_different_lengths_share_a_batch(name: str) -> None:
    model = eager(name, 0)
    ids = prompt(60, batch=3)
    mask = torch.ones_like(ids)
    for row, padding in enumerate((0, 13, 47)):  # on the left, as transformers generates
        ids[row, :padding] = 0
        mask[row, :padding] = 0
    assert generated(model, ids, attention_mask=mask) == generated(ours(model), ids, attention_mask=mask)


@models
def test_it_matters_which_rows_are_read(name: str) -> None:
    """The control: attention over every position, or over as many other ones, gives another model."""
    model, ids = eager(name, 0), prompt(130)
    right = logits(ours(model), ids)
    everything = ours(model)
    for layer in everything.model.layers:
        if layer.self_attn.indexer is not None:
            layer.self_attn.indexer.index_topk = 512
    assert (logits(everything, ids) - right).abs().max() > 1
    assert generated(everything, ids) != generated(model, ids)

    shifted = ours(model)
    for layer in shifted.model.layers:
        plain = layer.self_attn.sparse_mla
        layer.self_attn.sparse_mla = lambda q, kv, rows, *rest, plain=plain, **named: plain(
            q, kv, torch.where(rows > 0, rows - 1, rows), *rest, **named
        )
    assert (logits(shifted, ids) - right).abs().max() > 1


@models
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_kernel_in_the_interpreter_is_as_good_as_eager_attention_in_16_bits(name: str, dtype: torch.dtype) -> None:
    """Rounding moves choices of rows and experts, which would hide all else: rows are replayed, experts left out."""
    half = copy.deepcopy(eager(name, 0, dense_layers=3)).to(dtype)
    exact = copy.deepcopy(half).float()
    ids, chosen = prompt(40), {}
    for layer in exact.model.layers:
        if layer.self_attn.indexer is not None:
            layer.self_attn.indexer.register_forward_hook(lambda m, _, rows: chosen.__setitem__(m.layer_idx, rows))
    right = logits(exact, ids)

    def error(model) -> float:
        for layer in model.model.layers:
            if layer.self_attn.indexer is not None:
                layer.self_attn.indexer.register_forward_hook(lambda m, *_: chosen[m.layer_idx])
        return float((logits(model, ids) - right).norm() / right.norm())

    kernel = error(ours(half, implementation="latent"))
    print(f"{name} {dtype}: relative error of the logits {kernel:.2e}, eager {error(half):.2e}")
    assert kernel < NO_WORSE * error(half)
    assert chosen[0].shape[-1] == TOPK


def test_a_model_without_dsa_layers_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="Linear has no DSA attention layer"):
        use_sparse_mla(torch.nn.Linear(2, 2))
