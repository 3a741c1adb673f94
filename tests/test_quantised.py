"""Quantised checkpoints end where the release ends them, in its words: compared with the real engine's answers to
synthetic checkpoints (a real config.json with another quantisation_config): whole launches on vLLM 0.33.0,
create_engine_config alone on older releases."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from attnfit import engines
from attnfit.core import Capability, Gpu, Launch, Model
from attnfit.engines import Circumstances
from attnfit.engines.vllm.launch import ct_scheme
from attnfit.engines.vllm.launch.ct_experts import compressed_tensors_experts
from attnfit.engines.vllm.launch.facts import release_facts
from attnfit.engines.vllm.launch.quant_config import check_config
from attnfit.engines.vllm.launch.scheme_capability import too_old
from attnfit.engines.vllm.launch.state import Refusal, Unknown

DATA = Path(__file__).parent / "data"
CONFIGS: dict[str, Any] = json.loads(gzip.decompress((DATA / "configs.json.gz").read_bytes()))
ROWS: list[dict[str, Any]] = json.loads(gzip.decompress((DATA / "quantised_launches.json.gz").read_bytes()))
EARLY = ("parse_flags", "create_engine_config")


def launch(row: dict[str, Any]) -> Launch:
    config = {**CONFIGS[row["model"]]["config"]}
    for part in (config, config.get("text_config")):
        for key in ("quantization_config", "compression_config"):
            if isinstance(part, dict):
                part.pop(key, None)
    if row["quant"] is not None:
        config["quantization_config"] = row["quant"]
    names = {"config.json"} | ({"hf_quant_config.json"} if row["hf_quant"] else set())
    model = Model(path=f"./{row['model']}", config=config, hf_quant=row["hf_quant"], files=frozenset(names))
    gpu = Gpu(name="", capability=Capability.parse(row["capability"]))
    return engines.engine("vllm").release(row["release"]).launch(Circumstances(model, gpu, row["flags"], env={}))


def words(error: str | None) -> str | None:
    """An error without what the recording GPU was called and without pydantic's view of the arguments.

    Python prints the members of a set in no order.
    """
    if error is None:
        return None
    error = re.sub(r"\{([^{}]*)\}", lambda found: f"{{{sorted(found[1].split(', '))}}}", error)
    text = re.sub(r" on [^()]*\(compute", " on (compute", error.split(" [type=")[0].replace("fake", ""))
    return re.sub(r"\s+", " ", text).strip()


@pytest.mark.parametrize(
    "row", ROWS, ids=lambda row: f"{row['release']}-{row['model'].split('__')[1]}-{row['capability']}"
)
def test_ends_as_the_real_engine_ends_it(row: dict[str, Any]) -> None:
    ours = launch(row)
    if row["stage"] == "later":  # create_engine_config took it; what comes next was not asked
        assert ours.stage not in EARLY
        return
    assert (ours.ok, ours.stage, words(ours.error)) == (row["ok"], row["stage"], words(row["error"])), ours.unknown
    if row["ok"]:
        assert ours.kv_cache_dtype_after_init == row["kv"]


def refused(release: str, method: str, quant: dict[str, Any], capability: tuple[int, int] = (9, 0)) -> str:
    """What the method's config class says to a checkpoint; "" if it takes it."""
    facts = release_facts(release)
    try:
        check_config(facts, facts["quant_classes"][method], quant, Capability(*capability))
    except Refusal as refusal:
        return refusal.message
    return ""


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True, "sym": True}


def test_activation_order_by_group_is_refused_from_0_30_on() -> None:
    assert refused("0.29.0", "auto_gptq", GPTQ) == ""
    assert "desc_act=True) is no longer supported" in refused("0.30.0", "auto_gptq", GPTQ)
    assert refused("0.30.0", "auto_gptq", {**GPTQ, "group_size": -1}) == ""  # one group: no order to keep
    rule = {**GPTQ, "desc_act": False, "dynamic": {"+:.*mlp.*": {"desc_act": True}, "-:lm_head": {}}}
    assert "enabled by dynamic rule '+:.*mlp.*'" in refused("0.33.0", "auto_gptq", rule)
    group = {"config_groups": {"g": {"targets": ["Linear"], "weights": {"actorder": "group"}}}}
    assert refused("0.29.0", "compressed-tensors", group) == ""
    assert "(actorder='group') is no longer supported" in refused("0.33.0", "compressed-tensors", group)


@pytest.mark.parametrize("release", ["0.12.0", "0.23.0", "0.33.0"])
def test_a_missing_key_is_named_with_all_its_spellings(release: str) -> None:
    assert "Cannot find any of ['w_bit', 'bits']" in refused(release, "awq", {"quant_method": "awq"})
    half = {"bits": 4, "q_group_size": 128}
    assert "Cannot find any of ['zero_point']" in refused(release, "awq", half)


@pytest.mark.parametrize(
    ("release", "algorithm", "taken"),
    [("0.13.0", "FP8_PB_WO", False), ("0.14.1", "FP8_PB_WO", True), ("0.20.2", "MIXED_PRECISION", True)],
)
def test_modelopt_algorithms_are_those_of_the_release(release: str, algorithm: str, taken: bool) -> None:
    quant = {"quant_method": "modelopt", "quant_algo": algorithm}
    assert ("ModelOpt currently only supports" not in refused(release, "modelopt", quant)) is taken


def test_torchao_is_not_part_of_any_release() -> None:
    assert refused("0.33.0", "torchao", {"quant_method": "torchao"}).startswith("ImportError: Please install torchao")


def side(bits: int, kind: str, strategy: str, size: int | None = None, dynamic: bool | str = False) -> dict[str, Any]:
    return {"num_bits": bits, "type": kind, "strategy": strategy, "group_size": size, "dynamic": dynamic}


NVFP4 = {"targets": ["Linear"], "weights": side(4, "float", "tensor_group", 16), "format": "nvfp4-pack-quantized"}
FP8 = {
    "targets": ["re:.*self_attn.*"],
    "weights": side(8, "float", "channel"),
    "input_activations": side(8, "float", "token", dynamic=True),
    "format": "float-quantized",
}
MIXED = {"quant_method": "compressed-tensors", "config_groups": {"group_0": NVFP4, "group_1": FP8}, "ignore": []}


def test_each_layer_follows_the_group_that_names_it() -> None:
    """A name or expression comes before the class of layers, whatever the groups' order."""
    attention = ct_scheme.group_of(MIXED, ["model.layers.0.self_attn.o_proj"])
    other = ct_scheme.group_of(MIXED, ["model.layers.0.mlp.down_proj"])
    assert attention is not None
    assert other is not None
    assert ct_scheme.linear_scheme(attention, (9, 0), "") == "fp8"
    assert ct_scheme.linear_scheme(other, (9, 0), "") == "nvfp4"
    experts = compressed_tensors_experts(MIXED, ["model.layers.0.mlp.experts"])
    assert experts is not None
    assert (experts.oracle, experts.activation) == ("nvfp4", None)


def test_experts_on_the_ignore_list_stay_as_they_are() -> None:
    ignoring = {**MIXED, "ignore": ["re:.*mlp\\.experts\\..*"]}
    assert compressed_tensors_experts(ignoring, ["model.layers.0.mlp.experts"]) is None


def test_arguments_are_shown_as_the_library_shows_them() -> None:
    """They are part of the engine's message; what the checkpoint leaves out has the library's defaults."""
    given = ct_scheme.args({"num_bits": 4, "type": "int", "group_size": 128})
    assert repr(given) == (
        "QuantizationArgs(num_bits=4, type='int', symmetric=True, group_size=128, strategy='group', "
        "block_structure=None, dynamic=False, actorder=None, scale_dtype=None, zp_dtype=torch.int8, "
        "observer='memoryless_minmax', observer_kwargs={})"
    )


@pytest.mark.parametrize(("release", "capability", "old"), [("0.15.1", (7, 5), True), ("0.16.0", (7, 5), False)])
def test_fp8_weights_run_on_turing_from_0_16_on(release: str, capability: tuple[int, int], old: bool) -> None:
    class Config:
        pass

    config: Any = Config()
    config.release = release
    if not old:
        too_old(config, "fp8", Capability(*capability))
        return
    with pytest.raises(Refusal, match=r"Min capability: 80\. ', 'Current capability: 75"):
        too_old(config, "fp8", Capability(*capability))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"type": "int"}, "num_bits=8, type=int"),
        ({"strategy": "channel"}, "found strategy: QuantizationStrategy.CHANNEL"),
        ({"symmetric": False}, "found symmetric: False"),
    ],
)
def test_a_kv_scheme_that_attention_does_not_take_is_refused(change: dict[str, Any], said: str) -> None:
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True}
    ct_scheme.check_kv_scheme({"kv_cache_scheme": scheme})
    with pytest.raises(Refusal, match=said):
        ct_scheme.check_kv_scheme({"kv_cache_scheme": {**scheme, **change}})


def test_an_expression_that_could_run_for_ever_is_not_run() -> None:
    slow = {**MIXED, "config_groups": {"g": {**FP8, "targets": ["re:(a+)+$"]}}}
    with pytest.raises(Unknown):
        ct_scheme.group_of(slow, ["model.layers.0.mlp.down_proj"])
