"""Config classes in the witness: transformers' by our tables, SGLang's own by its source, refusals in their words."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from attnfit.engines.sglang.witness import auto
from attnfit.engines.sglang.witness.configs import Pin, Transformers
from attnfit.engines.sglang.witness.files import Files
from attnfit.witness import blame, guard, stubs
from attnfit.witness.fake_torch import DTYPES

LLAMA = {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 2}
DATA = Path(__file__).parent / "data"


@pytest.fixture(autouse=True)
def _outside_loading() -> None:
    stubs.STATE.loading = 0


@cache
def pin(version: str) -> Pin:
    return Pin(version)


class World:
    """transformers of one version, over one config.json; `own` are the engine's config classes."""

    def __init__(self, version: str, config: dict[str, Any], names: list[str] | None = None) -> None:
        self.own: dict[str, Any] = {}
        self.notes: list[str] = []
        self.files = Files("/m/one", {"config.json": config}, names or ["config.json"], {}, "/src")
        self.home = Transformers(pin(version), lambda: self.own, self.files.config)
        self.package: Any = auto.modules(self.home, self.files, self.notes)["transformers"]

    def read(self, **options: Any) -> Any:
        return self.package.AutoConfig.from_pretrained("/m/one", **options)


BOTH = pytest.mark.parametrize("version", ["4.57.1", "5.3.0", "5.19.0"])


def has(config: Any, name: str) -> bool:
    return bool(guard.checked_builtins()["hasattr"](config, name))


@BOTH
def test_what_config_json_leaves_out_has_the_class_s_default(version: str) -> None:
    config = World(version, LLAMA).read()
    assert type(config).__name__ == "LlamaConfig"
    assert (config.hidden_size, config.num_key_value_heads, config.head_dim) == (4096, 32, 128)
    assert (config.vocab_size, config.model_type, config.architectures) == (32000, "llama", None)
    assert config._name_or_path == "/m/one"
    with pytest.raises(AttributeError, match="'LlamaConfig' object has no attribute 'kv_lora_rank'"):
        _ = config.kv_lora_rank
    assert getattr(config, "kv_lora_rank", None) is None
    assert has(config, "head_dim")
    assert not has(config, "kv_lora_rank")


@BOTH
def test_a_key_no_class_knows_is_kept(version: str) -> None:
    config = World(version, {**LLAMA, "index_topk": 2048, "architectures": ["X"]}).read()
    assert (config.index_topk, config.architectures) == (2048, ["X"])
    assert config.to_dict()["index_topk"] == 2048


@BOTH
@pytest.mark.parametrize("key", ["torch_dtype", "dtype"])
def test_the_dtype_goes_by_both_of_its_names(version: str, key: str) -> None:
    config = World(version, {**LLAMA, key: "float16"}).read()
    assert config.dtype is config.torch_dtype is DTYPES["float16"]
    config.torch_dtype = "bfloat16"
    assert config.dtype is DTYPES["bfloat16"]
    assert config.to_dict()["dtype"] == "bfloat16"
    assert "torch_dtype" not in config.to_dict()
    assert World(version, LLAMA).read().torch_dtype is None


def test_rope_scaling_is_another_name_since_transformers_5() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0}
    new = World("5.19.0", {**LLAMA, "rope_scaling": scaling}).read()
    assert new.rope_parameters["factor"] == new.rope_scaling["factor"] == 4.0
    old = World("4.57.1", {**LLAMA, "rope_scaling": scaling}).read()
    assert old.rope_scaling["factor"] == 4.0


def test_since_transformers_5_everything_about_rope_is_in_one_place() -> None:
    keys = {**LLAMA, "rope_theta": 500000.0, "rope_scaling": None}
    new, old = World("5.19.0", keys).read(), World("4.57.1", keys).read()
    assert new.rope_scaling == new.rope_parameters == {"rope_theta": 500000.0, "rope_type": "default"}
    assert not has(new, "rope_theta")
    assert (old.rope_theta, old.rope_scaling) == (500000.0, None)
    assert World("4.57.1", LLAMA).read().rope_scaling is None


@BOTH
def test_a_name_that_stands_for_another_reads_and_writes_it(version: str) -> None:
    config = World(version, {"model_type": "gpt2", "n_embd": 64, "n_head": 2, "n_layer": 3}).read()
    assert (config.hidden_size, config.num_hidden_layers) == (64, 3)
    config.hidden_size = 128
    assert config.n_embd == 128


def test_what_no_rule_explains_is_there_and_unknown_until_it_is_set() -> None:
    config = World("5.19.0", {"model_type": "mamba2"}).read()
    assert has(config, "time_step_limit")
    with pytest.raises(stubs.StubLeak, match=r"time_step_limit of Mamba2Config: .*say it in config\.json"):
        _ = config.time_step_limit
    config.time_step_limit = (0.0, 1.0)
    assert config.time_step_limit == (0.0, 1.0)


def test_a_default_that_the_class_replaces_in_a_way_we_do_not_know_is_not_shown() -> None:
    """The class's own code makes layer_types of linear_attn_config; the None it starts from is no answer."""
    config = World("5.19.0", {"model_type": "kimi_linear", "num_hidden_layers": 4}).read()
    assert has(config, "layer_types")
    with pytest.raises(stubs.StubLeak, match="layer_types of KimiLinearConfig"):
        _ = config.layer_types
    kept = ["full_attention"] * 4
    config = World("5.19.0", {"model_type": "kimi_linear", "num_hidden_layers": 4, "layer_types": kept}).read()
    assert config.layer_types == kept


@BOTH
def test_the_language_model_s_part_is_a_config_of_its_class(version: str) -> None:
    parts = {"text_config": {"hidden_size": 64, "num_hidden_layers": 3}, "vision_config": {"hidden_size": 32}}
    config = World(version, {"model_type": "gemma3", **parts}).read()
    text = config.get_text_config()
    assert (type(text).__name__, text.hidden_size, text.head_dim) == ("Gemma3TextConfig", 64, 256)
    assert text is config.text_config
    assert text.get_text_config() is text
    assert World(version, LLAMA).read().get_text_config().hidden_size == 4096


@BOTH
def test_a_model_type_nobody_knows_is_refused_with_transformers_words(version: str) -> None:
    with pytest.raises(ValueError, match="has model type `nothing` but Transformers does not recognize") as caught:
        World(version, {**LLAMA, "model_type": "nothing"}).read()
    assert blame.fault(caught.value) is None
    with pytest.raises(ValueError, match=r"Unrecognized model in /m/one\. Should have a `model_type` key"):
        World(version, {"hidden_size": 1}).read()


def test_a_type_that_came_later_is_unknown_to_the_earlier_transformers() -> None:
    new = World("5.19.0", {"model_type": "qwen3_5_moe"}).home.class_of("qwen3_5_moe")
    assert new is not None
    assert World("4.57.1", LLAMA).home.class_of("qwen3_5_moe") is None


def test_a_version_without_tables_is_unknown() -> None:
    with pytest.raises(stubs.StubLeak, match=r"no table of the config classes of transformers 3\.0\.0"):
        Pin("3.0.0")


@pytest.mark.parametrize(
    ("changed", "kind", "words"),
    [
        ({"hidden_size": "4096"}, "StrictDataclassFieldValidationError", "Field 'hidden_size' expected int, got str"),
        ({"num_attention_heads": 33}, "StrictDataclassClassValidationError", "is not a multiple of the number of"),
        ({"layer_types": ["odd", "odd"]}, "StrictDataclassClassValidationError", "entries must be in"),
    ],
)
def test_a_config_class_refuses_in_its_own_words(changed: dict[str, Any], kind: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        World("5.19.0", {**LLAMA, **changed}).read()
    assert type(caught.value).__name__ == kind
    assert blame.fault(caught.value) is None, "it is the release's refusal, not a fault of ours"
    if "layer_types" in changed or "hidden_size" in changed:
        assert World("4.57.1", {**LLAMA, **changed, "head_dim": 128}).read() is not None, "4 does not look"


RECORDED: list[Any] = json.loads(gzip.decompress((DATA / "hf-refusals.json.gz").read_bytes()))["rows"]


@pytest.mark.parametrize("version", sorted({version for version, _, _ in RECORDED}))
def test_what_the_real_transformers_refuses_and_reads(version: str) -> None:
    """Odd configs, and what the real package of that version said of each."""
    mine = [(config, real) for each, config, real in RECORDED if each == version]
    assert len(mine) > 25
    for config, real in mine:
        said = None
        try:
            World(version, config).read()
        except Exception as error:
            said = [type(error).__name__, str(error)]
        assert said == real, config


@BOTH
def test_an_engine_s_own_class_runs_from_its_source(version: str) -> None:
    world = World(version, {"model_type": "own", "size": 3, "torch_dtype": "float16", "extra": 1})

    class OwnConfig(world.package.PretrainedConfig):  # type: ignore[misc,name-defined]
        model_type = "own"
        attribute_map = {"hidden_size": "size"}  # noqa: RUF012

        def __init__(self, size: int = 1, depth: int = 7, **kwargs: Any) -> None:
            self.size, self.depth = size, depth
            super().__init__(**kwargs)

    world.own["own"] = OwnConfig
    config = world.read()
    assert type(config) is OwnConfig
    assert (config.size, config.hidden_size, config.depth, config.extra) == (3, 3, 7, 1)
    assert (config.model_type, config.dtype, config.is_encoder_decoder) == ("own", DTYPES["float16"], False)
    assert config.to_dict()["model_type"] == "own"
    assert OwnConfig().depth == 7


@BOTH
def test_one_config_s_lists_are_not_another_s(version: str) -> None:
    world = World(version, {**LLAMA, "architectures": ["A"]})
    world.read().architectures.append("B")
    world.read().id2label[7] = "x"
    assert world.read().architectures == ["A"]
    assert 7 not in world.read().id2label


REMOTE = {**LLAMA, "model_type": "odd", "auto_map": {"AutoConfig": "configuration_odd.OddConfig"}}


@BOTH
def test_code_of_the_model_s_own_is_asked_for_and_never_run(version: str) -> None:
    with pytest.raises(ValueError, match="Please pass the argument `trust_remote_code=True`"):
        World(version, REMOTE).read()
    with pytest.raises(OSError, match=r"does not appear to have a file named configuration_odd\.py"):
        World(version, REMOTE, ["config.json", "model.safetensors"]).read(trust_remote_code=True)
    world = World(version, REMOTE, ["config.json", "configuration_odd.py"])
    with pytest.raises(stubs.StubLeak, match=r"the model's own configuration_odd\.py is never run"):
        world.read(trust_remote_code=True)


@BOTH
def test_a_class_that_is_known_is_read_without_the_model_s_code_and_the_answer_says_so(version: str) -> None:
    keys = {**REMOTE, "model_type": "llama"}
    world = World(version, keys, ["config.json", "configuration_odd.py"])
    assert world.read().hidden_size == 4096
    assert world.notes == []
    assert world.read(trust_remote_code=True).hidden_size == 4096
    assert "configuration_odd.py is never run" in world.notes[0]


@BOTH
def test_names_of_config_classes_are_those_of_that_version(version: str) -> None:
    package = World(version, LLAMA).package
    assert package.__version__ == version
    assert package.LlamaConfig(hidden_size=64, num_attention_heads=2).head_dim == 32
    with pytest.raises(AttributeError, match="module 'transformers' has no attribute 'NoSuchConfig'"):
        _ = package.NoSuchConfig
    assert "llama" in package.CONFIG_MAPPING
    assert package.CONFIG_MAPPING["llama"].__name__ == "LlamaConfig"
    with pytest.raises(KeyError):
        package.CONFIG_MAPPING["nothing"]
    assert package.AutoConfig.for_model("llama", hidden_size=64, num_attention_heads=2).hidden_size == 64


def test_an_unknown_part_is_of_a_known_class_and_nothing_else_is_known_of_it() -> None:
    config = World("5.19.0", {"model_type": "mpt"}).read()
    assert type(config.attn_config).__name__ == "MptAttentionConfig"
    with pytest.raises(stubs.StubLeak, match="alibi of MptAttentionConfig"):
        _ = config.attn_config.alibi
