"""What refuses after the selector said yes, and the block sizes, against the real engine's answers (vLLM 0.33.0)."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from attnfit.core import Capability, LayerQuestion, Question, Selection
from attnfit.engines.vllm.flags import load_table, parse_flags
from attnfit.engines.vllm.launch import blocks, construct, engine_config, kernel_facts, layers
from attnfit.engines.vllm.launch.expert_blocks import refined_block
from attnfit.engines.vllm.launch.impl_checks import check_impl
from attnfit.engines.vllm.launch.linear import check_blocks, linear_steps
from attnfit.engines.vllm.launch.mla_prefill import Dims, choose_prefill, prefill_priorities
from attnfit.engines.vllm.launch.moe import MoeLayer, MoeParallel, humming_first, in_capabilities
from attnfit.engines.vllm.launch.moe_select import Scheme, select
from attnfit.engines.vllm.launch.pages import token_bytes, turboquant_slot
from attnfit.engines.vllm.launch.projections import Projection
from attnfit.engines.vllm.launch.skipped import is_skipped
from attnfit.engines.vllm.launch.state import EngineConfig, ParsedFlags, Refusal, Unknown

DATA = Path(__file__).parent / "data"
RELEASE = "0.33.0"
RAW = gzip.decompress((DATA / f"construct-{RELEASE}.jsonl.gz").read_bytes())
ROWS = [json.loads(line) for line in RAW.splitlines()]


@cache
def configs() -> dict[str, Any]:
    with gzip.open(DATA / "configs.json.gz", "rt") as file:
        loaded: dict[str, Any] = json.load(file)
    return loaded


def recorded(row: dict[str, Any]) -> Any:
    """A selector that repeats what the real one answered in this launch."""

    def answer(question: Question) -> Selection:
        for backend, heads, fields, chosen in row["select"]:
            if (backend, heads) == (question.backend, question.num_heads) and all(
                getattr(question, key) == value for key, value in fields.items()
            ):
                return Selection(chosen=chosen, valid=(), verdicts=())
        return Selection(chosen=None, valid=(), verdicts=(), unknown="not asked by the real engine")

    return answer


def launch(row: dict[str, Any]) -> tuple[str, str | None, str | None, blocks.BlockSizes | None]:
    capability = Capability.parse(row["capability"])
    model = configs()[row["model"]]
    flags = parse_flags(load_table(RELEASE), ["--model", row["model"], *row["flags"]], form="module")
    cfg = engine_config.resolve(model["config"], model.get("hf_quant"), capability, flags, RELEASE, {}, gpus=64)
    answer = layers.ask(cfg, recorded(row))
    kv = construct.kv_cache_dtype_after_init(cfg, answer)
    try:
        construct.check(cfg, answer, capability)
        return "done", None, kv, blocks.block_sizes(cfg, answer.kv_cache_dtype, answer.kv_layers, capability)
    except Refusal as refusal:
        return refusal.stage, refusal.message, kv, None


@pytest.mark.parametrize("row", ROWS, ids=lambda r: f"{r['model']}-{r['capability']}-{' '.join(r['flags'])[:40]}")
def test_construction_ends_as_in_the_real_engine(row: dict[str, Any]) -> None:
    """Stage, text, KV dtype after construction, block size and recurrent-state block size are the engine's."""
    stage, error, kv, sizes = launch(row)
    assert (stage, (error or "").strip()) == (row["stage"], (row["error"] or "").strip())
    assert kv == row["kv_cache_dtype_after_init"]
    if sizes is not None:
        assert sizes.block_size == row["block_size_after_load"]
        assert sizes.mamba_block_size == row["mamba_block_size_after_load"]


def config(**changes: Any) -> EngineConfig:
    """A small dense launch, changed as a test needs it."""
    base: dict[str, Any] = {
        "release": RELEASE, "capability": Capability(9, 0), "flags": ParsedFlags(values={}, defaults={}, env={}),
        "config": {}, "text": {"hidden_size": 4096, "num_hidden_layers": 4, "vocab_size": 32000},
        "architecture": "LlamaForCausalLM", "model_type": "llama", "dtype": "bfloat16", "quantization": None,
        "quant_config": None, "head_size": 128, "num_heads": 32, "num_kv_heads": 8, "use_mla": False,
        "is_hybrid": False, "block_size": 16,
    }  # fmt: skip
    return EngineConfig(**{**base, **changes})


def moe(**changes: Any) -> MoeLayer:
    base: dict[str, Any] = {
        "num_experts": 128, "hidden": 2048, "intermediate": 768, "parallel": MoeParallel(tp_size=4),
        "dtype": "bfloat16",
    }  # fmt: skip
    return MoeLayer(**{**base, **changes})


BLOCK_FP8 = Scheme("fp8", "kFp8Static128BlockSym", "kFp8Dynamic128Sym")


def test_block_scaled_experts_need_no_fp8_hardware_where_blocks_cut_evenly() -> None:
    assert select(BLOCK_FP8, moe(), Capability(8, 0), {}, "model_init") == "MARLIN"


def test_refined_blocks_run_only_on_triton_and_so_only_from_sm89() -> None:
    """1536 / 8 = 192 is no multiple of 128: the scales are refined to 64, which only Triton takes."""
    layer = moe(hidden=3072, intermediate=1536, parallel=MoeParallel(tp_size=8))
    assert refined_block(layer, 128, 128) == 64
    refined = Scheme("fp8", "fp8block:64", "kFp8Dynamic128Sym")
    assert select(refined, layer, Capability(9, 0), {}, "model_init") == "TRITON"
    with pytest.raises(Refusal, match="No FP8 MoE backend supports the deployment configuration"):
        select(refined, layer, Capability(8, 0), {}, "model_init")


def test_an_explicit_backend_that_cannot_is_refused_with_its_reason() -> None:
    with pytest.raises(Refusal, match="kernel does not support current device cuda"):
        select(BLOCK_FP8, moe(moe_backend="flashinfer_cutlass"), Capability(8, 0), {}, "model_init")


def test_an_explicit_backend_of_another_scheme_lists_the_valid_names() -> None:
    with pytest.raises(Refusal, match=r"moe_backend='deep_gemm' is not supported for unquantized MoE.*'triton'"):
        select(Scheme("unquantized"), moe(moe_backend="deep_gemm"), Capability(9, 0), {}, "model_init")


def test_quantisation_only_backends_leave_unquantised_experts_alone() -> None:
    assert select(Scheme("unquantized"), moe(moe_backend="marlin"), Capability(9, 0), {}, "model_init") == "TRITON"


def test_humming_goes_before_marlin_on_sm90_and_stays_where_no_marlin_is() -> None:
    order = ["TRITON", "MARLIN", "BATCHED_MARLIN", "HUMMING", "EMULATION"]
    before = ["TRITON", "HUMMING", "MARLIN", "BATCHED_MARLIN", "EMULATION"]
    assert humming_first(order, Capability(9, 0)) == before
    assert humming_first(order, Capability(10, 0)) == order
    assert humming_first(["TRITON", "HUMMING", "CPU"], Capability(9, 0)) == ["TRITON", "HUMMING", "CPU"]


def test_what_the_facts_do_not_say_is_unknown_and_named() -> None:
    with pytest.raises(Unknown, match="b12x package"):
        select(Scheme("nvfp4", "kNvfp4Static", "kNvfp4Dynamic"), moe(moe_backend="b12x"), Capability(12, 0), {}, "s")


@pytest.mark.parametrize(
    ("tokens", "capability", "expected"),
    [(["10.x"], "10.3", True), ([">=8.9"], "8.6", False), (["9.0"], "9.0", True), (["none"], "9.0", False)],
)
def test_capability_tokens(tokens: list[str], capability: str, expected: bool) -> None:
    assert in_capabilities(Capability.parse(capability), tokens) is expected


def test_every_experts_class_an_oracle_names_is_described() -> None:
    table = kernel_facts.load("moe_kernels")
    for oracle in table["oracles"].values():
        named = {name for classes in oracle["backends"].values() for name in classes}
        parts = {part for name in named for part in table["experts"][name].get("all_of", ())}
        assert named | parts <= set(table["experts"])
        assert set(oracle["order"]) <= set(oracle["backends"])


def test_mla_prefill_refuses_unknown_dimensions_with_every_candidates_reason() -> None:
    cfg = config(use_mla=True, text={"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 96})
    with pytest.raises(Refusal) as refused:
        choose_prefill(cfg, Capability(9, 0))
    said = "FLASH_ATTN: [Model does not have supported MLA dimensions (got (qk_nope_head_dim=128,"
    assert said in refused.value.message
    assert prefill_priorities(Capability(10, 0), Dims(192, 64, 256))[0] == "TRTLLM_RAGGED"


@pytest.mark.parametrize(
    ("kv", "capability", "ok"), [("fp8", "8.6", False), ("fp8", "8.9", True), ("auto", "7.5", True)]
)
def test_triton_attention_needs_fp8_hardware_for_an_fp8_cache(kv: str, capability: str, ok: bool) -> None:
    cap = Capability.parse(capability)
    question = Question(capability=cap, head_size=128, dtype="float16", kv_cache_dtype=kv)
    asked = LayerQuestion(question=question, selection=Selection(chosen="TRITON_ATTN", valid=(), verdicts=()))
    if ok:
        check_impl(config(), asked, cap, "model_init", kv)
    else:
        with pytest.raises(Refusal, match=r"requires SM89\+. Re-run with --kv-cache-dtype bfloat16"):
            check_impl(config(), asked, cap, "model_init", kv)


def test_packed_kv_formats_take_the_bytes_their_backend_says() -> None:
    assert token_bytes("FLASHINFER", "nvfp4", "bfloat16", 1, 128) == 2 * (64 + 8)
    assert token_bytes("TRITON_ATTN", "int8_per_token_head", "bfloat16", 1, 128) == 2 * 128 + 8
    assert turboquant_slot("turboquant_4bit_nc", 128) == 134
    assert token_bytes("FLASH_ATTN", "auto", "bfloat16", 2, 128) == 2 * 2 * 128 * 2


def projection(**changes: Any) -> Projection:
    return Projection(**{"name": "mlp.down_proj", "inputs": 1216, "outputs": (2560,), "split": "row", **changes})


def test_block_scales_that_a_shard_would_cut_are_refused_as_the_engine_does() -> None:
    """Qwen3-4B-FP8 on 8 ranks: 9728 / 8 = 1216 input channels are not whole blocks of 128."""
    with pytest.raises(Refusal, match=r"Weight input_size_per_partition = 1216 is not divisible by .* block_k = 128"):
        check_blocks(projection(), 128, 128, 8)
    check_blocks(projection(inputs=1280), 128, 128, 8)


@pytest.mark.parametrize("method", ["mxfp4", "mxfp8"])
@pytest.mark.parametrize(("inner", "tp", "refused"), [(4304, 1, 4304), (4304, 2, 2152), (4096, 2, None)])
def test_weights_quantised_while_they_load_need_inputs_in_blocks_of_32(
    method: str, inner: int, tp: int, refused: int | None
) -> None:
    text = {"hidden_size": 4096, "num_hidden_layers": 4, "vocab_size": 32000, "intermediate_size": inner}
    cfg = config(quantization=method, tp=tp, text={**text, "num_attention_heads": 32, "num_key_value_heads": 8})
    assert refusals(linear_steps(cfg, Capability(10, 0))) == [
        f"ValueError: {method.upper()} requires input_size_per_partition ({refused}) to be divisible by 32."
        for _ in range(refused is not None)
    ]


def refusals(steps: Any) -> list[str]:
    said = []
    for _, _, step in steps:
        try:
            step()
        except Refusal as refusal:
            said.append(str(refusal))
    return said


@pytest.mark.parametrize(
    ("method", "patterns", "expected"),
    [
        ("compressed-tensors", ["re:.*mlp\\.(gate|up|down)_proj.*"], True),
        ("compressed-tensors", ["model.layers.0.mlp"], False),  # whole names and expressions only
        ("compressed-tensors", ["lm_head", "re:.*self_attn.*"], False),
        ("fp8", ["model.layers.0.mlp.down_proj"], True),
        ("modelopt_fp4", ["model.layers.0.mlp*"], True),
        ("modelopt_fp4", ["*self_attn*"], False),
        ("auto_awq", ["mlp.down"], True),  # any part of the name
    ],
)
def test_an_ignore_list_is_read_as_the_checkpoints_method_reads_it(
    method: str, patterns: list[str], expected: bool
) -> None:
    assert is_skipped(projection(root="model.layers.0"), patterns, method) is expected


@pytest.mark.parametrize(("skipped", "expected"), [(("gate_proj", "up_proj"), True), (("gate_proj",), False)])
def test_a_merged_matrix_is_skipped_if_all_its_parts_are(skipped: tuple[str, ...], expected: bool) -> None:
    parts = ("mlp.gate_proj", "mlp.up_proj")
    merged = projection(name="mlp.gate_up_proj", parts=parts, root="model.layers.0")
    names = [f"model.layers.0.mlp.{name}" for name in skipped]
    assert is_skipped(merged, names, "fp8") is expected


def test_an_ignore_expression_that_could_run_for_ever_is_not_run() -> None:
    with pytest.raises(Unknown, match="ignore list"):
        is_skipped(projection(root="model.layers.0"), ["re:(a+)+$"], "compressed-tensors")
