"""`check --kernels` without torch: what is asked of the child, and what its answers make of a launch."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from attnfit import kernel_check
from attnfit.api import check
from attnfit.core import Gpu, Model, Report
from attnfit.engines import Circumstances
from attnfit.engines.sglang import kernels
from attnfit.engines.vllm import kernels as vllm_kernels
from attnfit.engines.vllm.launch.state import KvLayer
from attnfit.errors import UnknownAnswer
from attnfit.inputs import kernel_fit
from attnfit.inputs.kernel_rows import Answer, Failure, Row, Tuned
from attnfit.kernel_check import Wanted
from test_cli import Run, _at_the_root, attnfit  # noqa: F401 (fixtures)

LATENT = {
    "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "torch_dtype": "bfloat16",
    "hidden_size": 2048, "intermediate_size": 10944, "num_attention_heads": 16, "num_key_value_heads": 16,
    "num_hidden_layers": 2, "vocab_size": 102400, "max_position_embeddings": 8192, "rms_norm_eps": 1e-06,
    "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "moe_intermediate_size": 1408, "n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 2,
    "first_k_dense_replace": 1, "moe_layer_freq": 1, "n_group": 1, "topk_group": 1, "topk_method": "greedy",
    "norm_topk_prob": False, "routed_scaling_factor": 1.0, "scoring_func": "softmax", "hidden_act": "silu",
    "rope_theta": 10000, "tie_word_embeddings": False,
}  # fmt: skip
HYBRID = {
    "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "dtype": "bfloat16", "hidden_size": 2048,
    "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "num_hidden_layers": 4,
    "vocab_size": 151936, "max_position_embeddings": 8192, "rms_norm_eps": 1e-06, "intermediate_size": 5120,
    "full_attention_interval": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "num_experts": 8,
    "num_experts_per_tok": 2, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
    "decoder_sparse_step": 1, "norm_topk_prob": True, "mlp_only_layers": [], "hidden_act": "silu",
    "partial_rotary_factor": 0.25, "rope_theta": 10000000, "tie_word_embeddings": False,
}  # fmt: skip
TOO_LARGE = "out of resource: shared memory, Required: 102400, Hardware limit: 101376."


def row(verdict: str = "fits", shared: int = 63488, **more: Any) -> Row:
    known: dict[str, Any] = {
        "case": "decode", "launch": 0, "capability": "12.0", "limit": 101376, "kernel": "stage1",
        "file": "vllm/v1/attention/ops/a.py", "line": 7, "constexprs": {}, "tensors": {}, "verdict": verdict,
        "shared": shared, "exception": "OutOfResources" if verdict != "fits" else "",
        "message": TOO_LARGE if verdict != "fits" else "",
    }  # fmt: skip
    return Row(**{**known, **more})


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LATENT))
    return folder


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """What looks like an unpacked release."""
    root = tmp_path / "release"
    (root / "vllm" / "platforms").mkdir(parents=True)
    (root / "vllm" / "platforms" / "__init__.py").write_text("")
    info = root / "vllm-0.33.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: vllm\nVersion: 0.33.0\nRequires-Dist: torch==2.14.0\n")
    return root


class Child:
    """Takes the place of the child: keeps what it was asked, and answers with these rows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[dict[str, Any]] = []
        self.rows: tuple[Row, ...] = (row(),)
        self.triton = "3.8.0"
        self.fails = ""
        self.failures: tuple[Failure, ...] = ()
        monkeypatch.setattr(kernel_fit, "ask", self.ask)

    def ask(self, capabilities: list[str], **job: Any) -> Answer:
        self.asked.append({"capabilities": capabilities, **job})
        if self.fails:
            raise UnknownAnswer(self.fails)
        rows = self.rows if job["about"].get("kv_cache_dtype") != "auto" or not self.asked[1:] else (row(),)
        return Answer(triton=self.triton, torch="2.14.0", rows=rows, failures=self.failures, seconds=0.1)


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Child:
    return Child(monkeypatch)


def launch(
    model: Path, tree: Path | None, *flags: str, gpu: str = "rtx-pro-6000-server", planned: bool = False
) -> Report:
    return check(
        ["vllm", "serve", str(model), *flags],
        gpu=gpu,
        engine="vllm==0.33.0",
        planned=planned,
        kernels=Wanted(source=str(tree)) if tree else None,
    )


def test_the_child_is_asked_about_the_launch_s_own_shapes(model: Path, tree: Path, child: Child) -> None:
    launch(model, tree, "--kv-cache-dtype", "fp8", "-tp", "2", "--max-model-len", "4096")
    (job,) = child.asked
    assert job["capabilities"] == ["12.0"]
    assert job["module"] == "attnfit.engines.vllm.triton_kernels"
    assert job["properties"] == {"12.0": {"multiprocessor_count": 188}}
    about = job["about"]
    assert about["root"] == str(tree)
    wanted = {"kernel": "mla-decode", "num_heads": 8, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "dtype": "bfloat16",
              "kv_cache_dtype": "fp8", "block_size": 16, "max_model_len": 4096, "sms": 188,
              "cuda_major": 13}  # fmt: skip
    assert {name: about[name] for name in wanted} == wanted


def test_linear_attention_is_asked_with_the_heads_of_one_rank(model: Path, tree: Path, child: Child) -> None:
    (model / "config.json").write_text(json.dumps(HYBRID))
    launch(model, tree, "-tp", "2", "--attention-backend", "TRITON_ATTN", gpu="a100-80gb")
    asked = {job["about"]["kernel"]: job["about"] for job in child.asked}
    assert asked.keys() == {"unified-attention", "gdn"}
    assert asked["gdn"]["linear_num_key_heads"] == 8
    assert asked["gdn"]["linear_num_value_heads"] == 16
    attention = asked["unified-attention"]
    assert (attention["num_heads"], attention["num_kv_heads"], attention["head_size"]) == (8, 1, 256)


@pytest.mark.parametrize(
    ("backend", "more"),
    [
        ("MAMBA2_ATTN", {"mamba_type": "MAMBA2"}),
        ("TRITON_ATTN", {"attn_type": "encoder_only"}),
        ("TREE_ATTN", {}),
        ("TRITON_MLA_SPARSE", {}),
        ("CUSTOM", {}),
    ],
)
def test_triton_kernels_that_no_adapter_launches_are_unknown(backend: str, more: dict[str, str]) -> None:
    layer = KvLayer(layer_class="Attention", backend=backend, **more)
    (ask,) = vllm_kernels._of(layer, None, None)  # type: ignore[arg-type]
    assert (ask.backend, "are not asked about" in ask.unknown) == (backend, True)
    assert not [*vllm_kernels._of(KvLayer(layer_class="Attention", backend="FLASH_ATTN"), None, None)]  # type: ignore[arg-type]


def test_without_the_flag_nobody_is_asked(model: Path, child: Child) -> None:
    report = launch(model, None, "--kv-cache-dtype", "fp8")
    assert child.asked == []
    assert report.launch.kernels == ()
    assert report.verdict == "passes"


def test_a_kernel_that_cannot_run_breaks_the_launch(model: Path, tree: Path, child: Child) -> None:
    child.rows = (row("does not fit", 102400), row(kernel="stage2", launch=1, shared=0))
    report = launch(model, tree, "--kv-cache-dtype", "fp8")
    assert (report.verdict, report.exit_code) == ("breaks", 1)
    first, second = report.launch.kernels
    assert (first.verdict, first.shared, first.limit, first.breaks) == ("does not fit", 102400, 101376, True)
    assert (first.message, first.where) == (f"OutOfResources: {TOO_LARGE}", "vllm/v1/attention/ops/a.py:7")
    assert "KV cache fp8" in first.inputs[0]
    assert (second.verdict, second.breaks) == ("fits", False)
    (hazard,) = report.launch.hazards
    assert hazard.code == "kernel-out-of-resources"
    assert "102400" in hazard.text


def test_the_next_step_is_a_change_with_which_the_kernels_run(model: Path, tree: Path, child: Child) -> None:
    child.rows = (row("does not fit", 102400),)
    report = launch(model, tree, "--kv-cache-dtype", "fp8", planned=True)
    (step,) = report.steps
    assert step.argv == ("vllm", "serve", str(model))
    assert child.asked[-1]["about"]["kv_cache_dtype"] == "auto"


def test_another_triton_than_the_release_s_breaks_nothing_but_is_told(model: Path, tree: Path, child: Child) -> None:
    child.rows, child.triton = (row("does not fit", 102400),), "3.9.0"
    report = launch(model, tree, "--kv-cache-dtype", "fp8")
    (fact,) = report.launch.kernels
    assert (fact.same_triton, fact.brought, fact.breaks) == (False, "3.8", False)
    assert report.verdict == "passes"
    assert "the release brings 3.8" in report.launch.hazards[0].text


def test_an_unknown_triton_of_the_release_breaks_nothing_but_is_told(model: Path, tree: Path, child: Child) -> None:
    (tree / "vllm-0.33.0.dist-info" / "METADATA").write_text("Name: vllm\nVersion: 0.33.0\nRequires-Dist: torch\n")
    child.rows = (row("does not compile", message="needs what this Triton lacks"),)
    report = launch(model, tree, "--kv-cache-dtype", "fp8")
    (fact,) = report.launch.kernels
    assert (fact.same_triton, fact.brought, fact.breaks, fact.may_break) == (None, "", False, True)
    assert report.verdict == "passes"
    assert "which Triton the release brings is not known" in report.launch.hazards[0].text


@pytest.mark.parametrize(("torch", "triton"), [("2.10", "3.6"), ("2.12", "3.7"), ("2.14", "3.8")])
def test_the_triton_that_a_torch_brings(model: Path, tree: Path, child: Child, torch: str, triton: str) -> None:
    metadata = f"Name: vllm\nVersion: 0.33.0\nRequires-Dist: torch=={torch}.0\n"
    (tree / "vllm-0.33.0.dist-info" / "METADATA").write_text(metadata)
    (fact,) = launch(model, tree, "--kv-cache-dtype", "fp8").launch.kernels
    assert fact.brought == triton


def test_an_autotuned_kernel_runs_while_one_configuration_fits(model: Path, tree: Path, child: Child) -> None:
    def tuned(index: int) -> Tuned:
        return Tuned(index=index, of=2, declared=2, meta={}, skips=("OutOfResources",))

    child.rows = (row("does not fit", 102400, tuned=tuned(0)), row(tuned=tuned(1)))
    (fact,) = launch(model, tree, "--kv-cache-dtype", "fp8").launch.kernels
    assert (fact.verdict, fact.configurations, fact.left_out, fact.breaks) == ("fits", 2, 1, False)
    child.rows = tuple(row("does not fit", 102400, tuned=tuned(n)) for n in range(2))
    (fact,) = launch(model, tree, "--kv-cache-dtype", "fp8").launch.kernels
    assert (fact.verdict, fact.breaks) == ("does not fit", True)


def test_what_cannot_be_asked_is_a_note_and_no_verdict(model: Path, tree: Path, child: Child) -> None:
    child.fails = "kernels are compiled with torch and Triton, and python has no torch"
    report = launch(model, tree, "--kv-cache-dtype", "fp8")
    assert report.verdict == "passes"
    assert any(note.startswith("kernels: not known") and "no torch" in note for note in report.launch.notes)


def test_what_fails_in_several_cases_for_one_reason_is_told_once(model: Path, tree: Path, child: Child) -> None:
    reasons = [("prefill", "no such scale"), ("decode", "no such scale"), ("both", "no such row")]
    child.failures = tuple(Failure(case=case, capability="12.0", message=why) for case, why in reasons)
    notes = [note for note in launch(model, tree).launch.notes if "no such" in note]
    assert [note.partition(" on ")[0] for note in notes] == [
        "kernels: TRITON_MLA, prefill and decode",
        "kernels: TRITON_MLA, both",
    ]


def test_sources_of_another_release_are_not_taken(model: Path, tree: Path, child: Child) -> None:
    (tree / "vllm-0.33.0.dist-info").rename(tree / "vllm-0.32.0.dist-info")
    (tree / "vllm-0.32.0.dist-info" / "METADATA").write_text("Name: vllm\nVersion: 0.32.0\n")
    with pytest.raises(kernel_check.UsageError, match=r"vllm 0\.32\.0"):
        launch(model, tree)


def test_text_and_json_say_what_was_found(
    attnfit: Run,  # noqa: F811
    model: Path,
    tree: Path,
    child: Child,
) -> None:
    child.rows = (row("does not fit", 102400),)
    words = (
        "check",
        "--gpu",
        "rtx-pro-6000-server",
        "-n",
        "1",
        "--engine",
        "vllm==0.33.0",
        "--kernels-from",
        str(tree),
    )
    command = ("--", "vllm", "serve", str(model), "--kv-cache-dtype", "fp8")
    code, out, _ = attnfit(*words, *command)
    assert code == 1
    assert out.startswith("breaks: vllm 0.33.0 starts a kernel that cannot run here: TRITON_MLA's stage1 needs 102,400")
    assert "does not fit stage1 (decode): 102,400 of 101,376 bytes" in out
    code, out, _ = attnfit(*words, "--json", *command)
    answer = json.loads(out)
    assert (code, answer["verdict"]) == (1, "breaks")
    documented = (Path(__file__).parent.parent / "docs" / "json.md").read_text("utf-8")
    assert answer["launch"]["kernels"][0]["breaks"] is True
    assert all(f"`{key}`" in documented for key in answer["launch"]["kernels"][0])


def quietly(attnfit: Run, model: Path, tree: Path, *flags: str) -> tuple[int, str, str]:  # noqa: F811
    words = ("check", "--quiet", "--gpu", "rtx-pro-6000-server", "-n", "1", "--engine", "vllm==0.33.0")
    launched = ("--", "vllm", "serve", str(model), "--kv-cache-dtype", "fp8")
    return attnfit(*words, "--kernels-from", str(tree), *flags, *launched)


def test_what_another_triton_foresees_is_in_the_verdict_and_counts_if_strict(
    attnfit: Run,  # noqa: F811
    model: Path,
    tree: Path,
    child: Child,
) -> None:
    child.rows, child.triton = (row("does not fit", 102400),), "3.9.0"
    code, out, _ = quietly(attnfit, model, tree)
    assert (code, out.startswith("passes: "), out.endswith("; a kernel may not run\n")) == (0, True, True)
    assert quietly(attnfit, model, tree, "--strict")[0] == 1
    (note,) = (note for note in launch(model, tree, "--kv-cache-dtype", "fp8").launch.notes if "pip install" in note)
    assert note.startswith("kernels: ")
    assert "python -m pip install 'triton==3.8.*'" in note
    child.triton = "3.8.0"
    assert quietly(attnfit, model, tree)[1].startswith("breaks: ")
    child.rows = (row(),)
    assert "kernel" not in quietly(attnfit, model, tree)[1]


def test_a_short_answer_says_that_the_kernels_were_not_asked(
    attnfit: Run,  # noqa: F811
    model: Path,
    tree: Path,
    child: Child,
) -> None:
    child.fails = "this python has no torch"
    code, out, err = quietly(attnfit, model, tree)
    assert (code, out.startswith("passes: ")) == (0, True)
    assert out.endswith("; whether its kernels run is not known\n")
    assert err.startswith("kernels: not known whether they run on ")
    assert err.endswith(": this python has no torch\n")


def test_kernels_fit_tells_only_of_the_kernels(attnfit: Run, model: Path, tree: Path, child: Child) -> None:  # noqa: F811
    words = ("kernels", "fit", "--engine", "vllm==0.33.0", "--source", str(tree), "--cc", "12.0")
    code, out, _ = attnfit(*words, str(model))
    assert code == 0
    assert out.startswith("fits: the kernel of vllm 0.33.0")
    child.rows = (row("does not fit", 102400),)
    code, out, _ = attnfit(*words, "--json", "--", "vllm", "serve", str(model), "--kv-cache-dtype", "fp8")
    assert (code, json.loads(out)["verdict"]) == (1, "does not fit")
    code, _, err = attnfit("kernels", "fit", "--source", str(tree))
    assert code == 2
    assert "MODEL" in err


def fit_words(tree: Path, model: Path) -> tuple[str, ...]:
    return ("kernels", "fit", "--engine", "vllm==0.33.0", "--source", str(tree), "--cc", "12.0", str(model))


@pytest.mark.parametrize(
    ("torch", "verdict", "said"),
    [
        ("torch==2.14.0", "does not fit", ""),
        ("torch==2.13.0", "unknown", "pip install 'triton==3.7.*' there"),
        ("torch", "unknown", "one that is not known; ask under the engine's own Python (--python)"),
    ],
)
def test_what_another_triton_refuses_is_not_known_of_the_engine_s_kernels(
    attnfit: Run,  # noqa: F811
    model: Path,
    tree: Path,
    child: Child,
    torch: str,
    verdict: str,
    said: str,
) -> None:
    (tree / "vllm-0.33.0.dist-info" / "METADATA").write_text(f"Name: vllm\nVersion: 0.33.0\nRequires-Dist: {torch}\n")
    child.rows = (row("does not fit", 102400),)
    code, out, _ = attnfit(*fit_words(tree, model))
    first = out.splitlines()[0]
    assert (code, first.partition(":")[0]) == (1 if not said else 3, verdict)
    assert said in first
    assert "stage1 does not fit with Triton 3.8.0" in first or not said
    child.asked.clear()
    code, out, _ = attnfit(*fit_words(tree, model), "--json")
    assert json.loads(out)["verdict"] == verdict
    assert json.loads(out)["exit_code"] == code


def test_a_line_says_what_fits_what_is_left_out_and_why_the_compiler_refuses(
    attnfit: Run,  # noqa: F811
    model: Path,
    tree: Path,
    child: Child,
) -> None:
    def tuned(index: int) -> Tuned:
        return Tuned(index=index, of=3, declared=3, meta={}, skips=("OutOfResources",))

    child.rows = (row("does not fit", 131852, tuned=tuned(0)), row(tuned=tuned(1)), row(shared=99, tuned=tuned(2)))
    _, out, _ = attnfit(*fit_words(tree, model))
    assert "  fits         stage1 (decode): 63,488 of 101,376 bytes; 1 of 3" in out
    assert "1 of 3 configurations are too large and left out" in " ".join(out.split())
    child.asked.clear()
    child.rows = (row("does not fit", 131852, tuned=tuned(0)), row("does not fit", 102400, tuned=tuned(1)))
    _, out, _ = attnfit(*fit_words(tree, model))
    assert out.startswith("does not fit: vllm 0.33.0: TRITON_MLA's stage1 needs 102,400 bytes")
    child.asked.clear()
    child.rows = (row("does not compile", exception="CompilationError", message="at 7:4:\n    x = y\nno such type"),)
    _, out, _ = attnfit(*fit_words(tree, model))
    assert "  does not compile stage1 (decode): CompilationError: no such type" in out.splitlines()


def test_a_launch_that_starts_none_of_the_engine_s_kernels_has_nothing_to_ask(
    attnfit: Run,  # noqa: F811
    model: Path,
    tree: Path,
    child: Child,
) -> None:
    config = {**LATENT, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    (model / "config.json").write_text(
        json.dumps({k: v for k, v in config.items() if "lora" not in k and "qk" not in k})
    )
    words = ["h100" if word == "12.0" else "--gpu" if word == "--cc" else word for word in fit_words(tree, model)]
    code, out, _ = attnfit(*words)
    assert (code, child.asked) == (0, [])
    assert out == "nothing to ask: this launch starts none of vllm 0.33.0's Triton kernels that are asked about\n"
    code, out, _ = attnfit(*words, "--json")
    assert (code, json.loads(out)["verdict"], json.loads(out)["exit_code"]) == (0, "nothing to ask", 0)


def test_flash_linear_attention_is_asked_about_a_model(
    attnfit: Run,  # noqa: F811
    model: Path,
    tmp_path: Path,
    child: Child,
) -> None:
    unpacked = tmp_path / "unpacked"
    (unpacked / "fla" / "ops").mkdir(parents=True)
    words = ("kernels", "fit", "--cc", "12.0", "--fla")
    code, _, err = attnfit(*words, str(unpacked), str(model))
    assert code == 3, "a model without linear attention"
    assert "linear_num_key_heads" in err
    (model / "config.json").write_text(json.dumps(HYBRID))
    assert attnfit(*words, str(unpacked), str(model))[0] == 0
    (job,) = child.asked
    assert (job["module"], job["about"]["root"]) == ("attnfit.kernels.fit.fla", str(unpacked))
    assert job["about"]["linear_num_value_heads"] == 32
    code, _, err = attnfit(*words, str(tmp_path), str(model))
    assert code == 2
    assert "fla/ops" in err


SGLANG = {"ok": True, "prefill": "triton", "decode": "triton", "resolved": {"tp_size": 2, "kv_cache_dtype": "auto"}}


def test_sglang_s_triton_backend_is_asked_with_one_rank_s_heads() -> None:
    asked = sglang_asks(LATENT, SGLANG)
    (ask,) = asked
    wanted = {"kernel": "attention", "num_heads": 8, "num_kv_heads": 1, "head_size": 576, "v_head_size": 512,
              "latent": True, "steps": ["prefill", "decode"], "dtype": "bfloat16"}  # fmt: skip
    assert {name: ask.about[name] for name in wanted} == wanted
    flag = {**SGLANG["resolved"], "triton_attention_num_kv_splits": 16}
    assert sglang_asks(LATENT, {**SGLANG, "resolved": flag})[0].about["kv_splits"] == 16
    assert sglang_asks(LATENT, {**SGLANG, "prefill": "fa3", "decode": "fa3"}) == []
    assert sglang_asks(LATENT, {**SGLANG, "ok": False}) == []


def test_sglang_s_linear_attention_is_asked_as_far_as_it_runs_on_triton() -> None:
    linear = {**SGLANG, "prefill": "fa3", "decode": "fa3", "linear_attn": {"prefill": "flashinfer", "decode": "triton"}}
    (ask,) = sglang_asks(HYBRID, linear)
    assert (ask.about["kernel"], ask.about["steps"], ask.about["state_dtype"]) == ("gdn", ["decode"], "float32")
    assert ask.about["linear_num_value_heads"] == 16
    (ask,) = sglang_asks({**HYBRID, "linear_num_key_heads": 3}, linear)
    assert "do not divide by 2 ranks" in ask.unknown


def test_releases_without_a_choice_run_the_gated_delta_rule_on_triton() -> None:
    older = {**SGLANG, "prefill": "fa3", "decode": "fa3", "linear_attn_backend_class": "GDNAttnBackend"}
    (ask,) = sglang_asks(HYBRID, older)
    assert (ask.about["kernel"], ask.about["steps"], ask.unknown) == ("gdn", ["prefill", "decode"], "")
    unknown, ask = sglang_asks(HYBRID, older, SGLANG_USE_CUTEDSL_GDN_DECODE="1")
    assert ask.about["steps"] == ["prefill"]
    assert "SGLANG_USE_CUTEDSL_GDN_DECODE" in unknown.unknown


@pytest.mark.parametrize(("kind", "why"), [("Mamba2AttnBackend", "Mamba2AttnBackend"), (None, "linear attention")])
def test_linear_layers_of_which_nothing_is_told_are_unknown(kind: str | None, why: str) -> None:
    (ask,) = sglang_asks(HYBRID, {**SGLANG, "prefill": "fa3", "decode": "fa3", "linear_attn_backend_class": kind})
    assert why in ask.unknown


def sglang_asks(config: dict[str, Any], answer: dict[str, Any], **variables: str) -> list[Any]:
    circumstances = Circumstances(
        model=Model(path="m", config=config), gpu=Gpu(name="a GPU"), argv=(), variables=variables
    )
    return kernels.asks(circumstances, answer)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["Requires-Dist: torch==2.11.0\n", "Requires-Dist: torch (==2.11.0)\n"])
def test_the_triton_of_a_release_follows_from_its_torch(tmp_path: Path, text: str) -> None:
    info = tmp_path / "one-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: one\n{text}")
    assert kernel_check.pinned_torch(tmp_path, "one") == "2.11"
    assert kernel_check.pinned_torch(tmp_path, "other") == ""


def test_a_machine_without_the_extra_gets_a_note(
    model: Path, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python"
    said = json.dumps({"error": {"kind": "missing", "message": "torch and triton"}})
    program.write_text(f"#!{sys.executable}\nimport sys\nsys.stdin.read()\nprint({said!r})\n")
    program.chmod(0o755)
    monkeypatch.setenv(kernel_fit.VARIABLE, str(program))
    report = launch(model, tree, "--kv-cache-dtype", "fp8")
    assert report.verdict == "passes"
    assert any("has no torch and triton" in note and "pip install" in note for note in report.launch.notes)
