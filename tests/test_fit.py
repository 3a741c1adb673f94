"""Will it fit: what `check` answers for a directory with weights, without, and for the flags that change it."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import attnfit
from attnfit.cli import cli
from attnfit.core import Fit, Report
from attnfit.report.memory import gib, lines
from gguf_bytes import Builder

GIB = 1 << 30
HIDDEN, LAYERS, VOCAB = 1024, 4, 32000
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": 4096,
    "num_attention_heads": 8, "num_key_value_heads": 8, "num_hidden_layers": LAYERS, "vocab_size": VOCAB,
    "max_position_embeddings": 131072, "torch_dtype": "bfloat16", "rms_norm_eps": 1e-5, "head_dim": 128,
    "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip
KV_TOKEN = LAYERS * 2 * 8 * 128 * 2  # layers x (K, V) x heads x head size x bytes


def tensors(scale: int = 1) -> dict[str, tuple[str, list[int]]]:
    """The model's own tensors; `scale` makes the MLPs that many times as wide as the config says."""
    wide = 4096 * scale
    out = {"model.embed_tokens.weight": [VOCAB, HIDDEN], "lm_head.weight": [VOCAB, HIDDEN],
           "model.norm.weight": [HIDDEN]}  # fmt: skip
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            out[f"{at}self_attn.{name}.weight"] = [HIDDEN, HIDDEN]
        out |= {
            f"{at}mlp.gate_proj.weight": [wide, HIDDEN], f"{at}mlp.up_proj.weight": [wide, HIDDEN],
            f"{at}mlp.down_proj.weight": [HIDDEN, wide], f"{at}input_layernorm.weight": [HIDDEN],
            f"{at}post_attention_layernorm.weight": [HIDDEN],
        }  # fmt: skip
    return {name: ("BF16", shape) for name, shape in out.items()}


BYTES = {"F8_E4M3": 1, "BF16": 2, "F32": 4}


def save(path: Path, held: Mapping[str, tuple[str, list[int]]]) -> int:
    """A safetensors file of that many bytes, none of which is written: a hole behind a real header."""
    header, at = {}, 0
    for name, (dtype, shape) in held.items():
        size = math.prod(shape) * BYTES.get(dtype, 2)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)
    return at


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A directory with config.json alone."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), "utf-8")
    return tmp_path


@pytest.fixture
def model(bare: Path) -> Path:
    save(bare / "model.safetensors", tensors())
    return bare


def check(directory: Path, *flags: str, gpu: str = "h100", count: int | None = None) -> Report:
    words = ["vllm", "serve", str(directory), *flags]
    return attnfit.check(words, gpu=gpu, count=count, engine="vllm==0.33.0", planned=False)


def measured(report: Report) -> Fit:
    assert report.launch.fit is not None
    return report.launch.fit


# --- with weights at hand ------------------------------------------------------------------------------------------


def test_a_small_model_fits_and_every_figure_follows_from_its_inputs(model: Path) -> None:
    report = check(model)
    fit = measured(report)
    assert (report.verdict, fit.verdict, report.exit_code) == ("passes", "fits", 0)
    size = sum(math.prod(shape) * 2 for _, shape in tensors().values())
    assert fit.weights is not None
    assert fit.weights[0] == size
    assert fit.weights[1] - size < 8 << 20
    assert "safetensors" in fit.weights_from
    assert fit.token_bytes == KV_TOKEN
    assert fit.request_bytes == KV_TOKEN * 131072
    assert fit.utilization == 0.92
    assert fit.memory is not None
    assert fit.kv_cache is not None
    assert fit.overhead is not None
    assert fit.usable is not None
    assert fit.usable[0] < fit.usable[1] == fit.memory, "the driver keeps some of what it reports"
    least, most = (math.ceil(n * 0.92) for n in fit.usable)
    assert fit.kv_cache == (least - fit.weights[1] - fit.overhead[1], most - fit.weights[0] - fit.overhead[0])
    blocks = fit.kv_cache[0] // (16 * KV_TOKEN)
    assert fit.tokens is not None
    assert fit.requests is not None
    assert fit.requests[0] == blocks / (131072 // 16)
    assert fit.tokens[0] == int(fit.requests[0] * 131072)


def test_weights_larger_than_the_memory_break_and_exit_with_1(bare: Path) -> None:
    save(bare / "model.safetensors", tensors(scale=900))
    report = check(bare)
    assert (report.verdict, report.exit_code) == ("breaks", 1)
    assert "the weights alone need" in measured(report).why
    assert report.launch.ok, "the engine would start"


def test_a_launch_in_float32_needs_twice_what_its_bfloat16_files_take(bare: Path) -> None:
    """The engine's parameters have the launch's dtype: no length is offered for a model that is too large itself."""
    size = save(bare / "model.safetensors", tensors(scale=250))  # 28 GiB
    half, single = (measured(check(bare, "--dtype", dtype)).weights for dtype in ("float16", "float32"))
    assert half is not None
    assert single is not None
    assert half[0] == size
    assert single[0] <= 2 * size <= single[1] < single[0] + (8 << 20), "norms may have a dtype of their own"
    words = ["vllm", "serve", str(bare), "--dtype", "float32"]
    report = attnfit.check(words, gpu="l40s", engine="vllm==0.33.0")
    assert (report.verdict, measured(report).why.split(" need")[0]) == ("breaks", "the weights alone")
    assert not any("--max-model-len" in step.text for step in report.steps)


def test_more_gpus_divide_them(bare: Path) -> None:
    save(bare / "model.safetensors", tensors(scale=900))
    report = check(bare, "-tp", "8", count=8)
    assert (report.verdict, measured(report).verdict) == ("passes", "fits")


def test_one_request_that_cannot_fit_breaks_and_the_answer_says_what_would(model: Path) -> None:
    fit = measured(check(model, "--gpu-memory-utilization", "0.02"))
    assert fit.verdict == "breaks"
    assert fit.longest is not None
    assert 0 < fit.longest[1] < 131072
    assert "one request of 131,072 tokens needs 2.00 GiB" in fit.why
    shorter = check(model, "--gpu-memory-utilization", "0.02", "--max-model-len", str(fit.longest[1]))
    assert shorter.verdict == "passes"
    longer = check(model, "--gpu-memory-utilization", "0.02", "--max-model-len", str(fit.longest[1] + 1))
    assert longer.verdict == "breaks"


def test_the_next_step_of_a_launch_that_cannot_fit_is_one_that_can(bare: Path) -> None:
    save(bare / "model.safetensors", tensors())
    words = ["vllm", "serve", str(bare), "--gpu-memory-utilization", "0.02"]
    report = attnfit.check(words, gpu="h100", engine="vllm==0.33.0")
    assert report.verdict == "breaks"
    share, cache, length = report.steps
    assert share.text.startswith("--gpu-memory-utilization 0.12 instead of 0.02; then FLASH_ATTN serves it"), (
        "sure first"
    )
    assert cache.text.startswith("--kv-cache-dtype fp8")
    assert length.text.startswith("--max-model-len")
    for step in report.steps:
        assert step.argv is not None
        again = attnfit.check(step.argv, gpu="h100", engine="vllm==0.33.0")
        assert (again.verdict, again.may_run_out) == ("passes", step is not share)
    save(bare / "model.safetensors", tensors(scale=900))
    report = attnfit.check(["vllm", "serve", str(bare)], gpu="h100", engine="vllm==0.33.0")
    assert not any(step.argv for step in report.steps)


def test_what_fits_only_without_its_overhead_may_break_and_exits_with_0(model: Path) -> None:
    report = check(model, "--gpu-memory-utilization", "0.06")
    assert (report.verdict, measured(report).verdict, report.exit_code) == ("passes", "may break", 0)


@pytest.mark.parametrize(
    ("flags", "verdict"),
    [
        (("--gpu-memory-utilization", "0.02", "--max-model-len", "auto"), "may break"),
        (("--kv-cache-memory-bytes", "3G"), "fits"),
        (("--kv-cache-memory-bytes", "1G"), "breaks"),
        (("--kv-cache-memory-bytes", "90G"), "breaks"),
        (("--num-gpu-blocks-override", "10000"), "fits"),
        (("--num-gpu-blocks-override", "100"), "breaks"),
        (("--num-gpu-blocks-override", "1000000"), "breaks"),
    ],
)
def test_flags_that_say_how_large_the_cache_is(model: Path, flags: tuple[str, ...], verdict: str) -> None:
    assert measured(check(model, *flags)).verdict == verdict


def test_weights_in_cpu_memory_do_not_count(bare: Path) -> None:
    save(bare / "model.safetensors", tensors(scale=900))
    fit = measured(check(bare, "--cpu-offload-gb", "60"))
    assert fit.verdict != "breaks"
    assert any("--cpu-offload-gb" in sentence for sentence in fit.inputs)


def test_a_gguf_file_is_divided_as_its_tensors_say(tmp_path: Path) -> None:
    """Q4_0: 18 bytes for 32 weights. 0.16.0 reads such files by itself."""
    values = {
        "general.architecture": "llama", "llama.block_count": 1, "llama.embedding_length": 512,
        "llama.attention.head_count": 8, "llama.attention.head_count_kv": 2, "llama.context_length": 4096,
        "llama.feed_forward_length": 1024, "llama.vocab_size": 4096,
        "llama.attention.layer_norm_rms_epsilon": 1e-5, "tokenizer.ggml.model": "llama",
    }  # fmt: skip
    shapes = {
        "token_embd.weight": (512, 4096), "output.weight": (512, 4096), "blk.0.attn_q.weight": (512, 512),
        "blk.0.attn_k.weight": (512, 128), "blk.0.attn_v.weight": (512, 128), "blk.0.attn_output.weight": (512, 512),
        "blk.0.ffn_gate.weight": (512, 1024), "blk.0.ffn_up.weight": (512, 1024),
        "blk.0.ffn_down.weight": (1024, 512),
    }  # fmt: skip
    held, at = [], 0
    for name, shape in shapes.items():
        held.append((name, shape, 2, at))
        at += math.prod(shape) // 32 * 18
    data = Builder().header(values, held)
    file = tmp_path / "tiny.gguf"
    file.write_bytes(data + bytes(-len(data) % 32 + at))
    ends = []
    for size in ("1", "2", "4"):
        words = ["vllm", "serve", str(file), "--tokenizer", str(tmp_path), "-tp", size]
        report = attnfit.check(words, gpu="h100", count=4, engine="vllm==0.16.0", planned=False)
        fit = measured(report)
        assert fit.weights is not None
        assert "GGUF" in fit.weights_from
        ends.append(fit.weights[0])
    kv = 2 * 512 * 128 // 32 * 18
    assert ends == [at, at // 2, (at - kv) // 4 + kv // 2], "two KV heads among four ranks"


# --- without -------------------------------------------------------------------------------------------------------


def test_a_config_alone_gives_the_same_weights_but_never_breaks(bare: Path, model: Path) -> None:
    exact = measured(check(model)).weights
    (model / "model.safetensors").unlink()
    fit = measured(check(bare))
    assert exact is not None
    assert fit.weights is not None
    norms = (2 * LAYERS + 1) * HIDDEN * 2
    assert abs(fit.weights[0] - exact[0]) <= norms
    report = check(bare, "--gpu-memory-utilization", "0.001")
    assert (report.verdict, measured(report).verdict) == ("passes", "may break")


def test_weights_that_nobody_can_tell_leave_the_cache(bare: Path) -> None:
    config = {**CONFIG, "architectures": ["OlmoForCausalLM"], "model_type": "olmo"}
    (bare / "config.json").write_text(json.dumps(config), "utf-8")
    fit = measured(check(bare))
    assert (fit.verdict, fit.weights, fit.tokens) == ("unknown", None, None)
    assert fit.token_bytes == KV_TOKEN
    assert "the weights of OlmoForCausalLM" in fit.unknown[0]


def test_a_capability_has_no_memory(model: Path) -> None:
    fit = measured(check(model, gpu="9.0"))
    assert (fit.verdict, fit.memory, fit.kv_cache) == ("unknown", None, None)


def test_the_smallest_of_mixed_gpus_counts_where_all_are_used(bare: Path) -> None:
    save(bare / "model.safetensors", tensors(scale=700))
    verdicts = [check(bare, "-tp", "2", gpu=gpu).verdict for gpu in ("h100x2", "4090x2", "h100,4090")]
    assert verdicts == ["passes", "breaks", "breaks"]


def test_a_small_gpu_that_may_stay_unused_breaks_nothing_for_certain(bare: Path) -> None:
    """CUDA orders the GPUs by itself: which two of three serve is not known before."""
    save(bare / "model.safetensors", tensors(scale=700))
    report = check(bare, "-tp", "2", gpu="h100x2,4090")
    assert (report.verdict, report.exit_code, measured(report).verdict) == ("passes", 0, "may break")
    assert "2 of the 3 GPUs" in measured(report).why
    assert "RTX 4090" in measured(report).why
    assert check(bare, "-tp", "2", gpu="h100,4090x2").verdict == "breaks", "one of two 4090s is always used"
    assert measured(check(bare, "-tp", "2", gpu="4090x2,3090")).verdict == "breaks", "no pair holds it"


def test_a_refused_launch_and_an_unmeasured_release_have_no_fit(model: Path) -> None:
    assert check(model, "--tensor-parallel-size", "3").launch.fit is None
    opinion = attnfit.check(["vllm", "serve", str(model)], gpu="h100", engine="vllm==0.33.1.dev5+g12", planned=False)
    assert opinion.launch.fit is None


def test_pipeline_ranks_share_the_layers(model: Path) -> None:
    whole, half = measured(check(model)), measured(check(model, "-pp", "2", count=2))
    assert half.token_bytes == KV_TOKEN / 2
    assert whole.weights is not None
    assert half.weights is not None
    assert half.weights[0] < whole.weights[0]


def test_an_older_release_is_measured_where_all_layers_are_alike(model: Path) -> None:
    report = attnfit.check(["vllm", "serve", str(model)], gpu="h100", engine="vllm==0.16.0", planned=False)
    fit = measured(report)
    assert (fit.utilization, fit.token_bytes) == (0.9, KV_TOKEN)


# --- printed -------------------------------------------------------------------------------------------------------


def test_the_lines_say_what_is_known_and_stay_within_80_columns(model: Path) -> None:
    result = CliRunner().invoke(cli, ["check", str(model), "--gpu", "h100", "--engine", "vllm==0.33.0"])
    assert result.exit_code == 0
    text = result.output[result.output.index("  memory ") :]
    for word in ("weights", "besides", "kv cache", "holds", "fits: even at the upper end"):
        assert word in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_quiet_says_that_it_breaks_and_why(bare: Path) -> None:
    save(bare / "model.safetensors", tensors(scale=900))
    words = ["check", str(bare), "--gpu", "h100", "--engine", "vllm==0.33.0", "--quiet"]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 1
    assert result.output.startswith("breaks: vllm 0.33.0 would start and run out of memory: the weights alone")


def test_what_may_break_is_said_in_the_verdict_and_exits_with_1_only_if_strict(model: Path) -> None:
    launch = ["--", "vllm", "serve", str(model), "--gpu-memory-utilization", "0.06"]
    for strict, code in ((), 0), (("--strict",), 1):
        words = ["check", "--gpu", "h100", "--engine", "vllm==0.33.0", "--quiet", *strict, *launch]
        result = CliRunner().invoke(cli, words)
        assert (result.exit_code, result.output) == (
            code,
            "passes: vllm 0.33.0 on FLASH_ATTN; it may run out of memory\n",
        )


def test_json_has_every_key_that_is_documented(model: Path) -> None:
    words = ["check", str(model), "--gpu", "h100", "--engine", "vllm==0.33.0", "--json"]
    fit = json.loads(CliRunner().invoke(cli, words).output)["launch"]["fit"]
    documented = (Path(__file__).parent.parent / "docs" / "json.md").read_text("utf-8")
    assert set(fit) == set(Fit.__struct_fields__)
    for key in fit:
        assert f"`{key}`" in documented


def test_equal_ends_are_printed_once() -> None:
    assert gib((GIB, GIB)) == "1.00 GiB"
    assert gib((GIB, 2 * GIB)) == "1.00 to 2.00 GiB"
    assert list(lines(Fit(verdict="unknown", why="", unknown=("x",)))) == [("unknown", "x")]


# --- anything at all -----------------------------------------------------------------------------------------------

ODD: list[Any] = [None, -1, 0, 1, 10**6, 10**18, 10**30, float("nan"), "7", True, [], [1], {}, 1.5]
KEYS = [k for k in CONFIG if k not in ("architectures", "model_type")]


@pytest.mark.parametrize("seed", range(60))
def test_odd_configs_give_an_answer_or_a_sentence_never_a_traceback(
    model: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ATTNFIT_DEBUG", raising=False)
    chance = random.Random(seed)
    config = {**CONFIG, **{key: chance.choice(ODD) for key in chance.sample(KEYS, 2)}}
    (model / "config.json").write_text(json.dumps(config), "utf-8")
    if seed % 2:
        (model / "model.safetensors").unlink()
    words = ["check", str(model), "--gpu", "h100", "--engine", "vllm==0.33.0", *(["--json"] if seed % 3 else [])]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code in (0, 1, 3) or isinstance(result.exception, attnfit.AttnfitError)
