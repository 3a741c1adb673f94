"""What SGLang's code sees around itself in the witness: the case's files, GPUs and packages, never this machine's."""

from __future__ import annotations

import dataclasses
import json
import typing
from pathlib import Path
from typing import Any

import pytest

from attnfit.engines.sglang.witness import gpu, surroundings
from attnfit.engines.sglang.witness.files import Files, modules
from attnfit.engines.sglang.witness.packages import Facts, Kernel, stand_in
from attnfit.witness import stubs
from attnfit.witness.lazy import Situation

CONFIG = {"model_type": "llama", "layers": [1, 2]}


@pytest.fixture(autouse=True)
def _outside_loading() -> None:
    stubs.STATE.loading = 0


def files(names: list[str] | None = None, **others: Any) -> Files:
    return Files("/m/one/", {"config.json": CONFIG}, names, others.get("others", {}), "/src")


def test_the_model_s_directory_holds_what_the_case_says() -> None:
    here = files(["config.json", "tokenizer.json"])
    path = modules(here)["pathlib"].Path("/m/one")  # type: ignore[attr-defined]
    assert path.is_dir()
    assert (path / "config.json").is_file()
    assert not (path / "model.safetensors").exists()
    assert sorted(each.name for each in path.iterdir()) == ["config.json", "tokenizer.json"]
    assert [each.name for each in path.glob("token*")] == ["tokenizer.json"]
    assert json.loads((path / "config.json").read_text()) == CONFIG
    assert modules(here)["glob"].glob("/m/one/*.json") == ["/m/one/config.json", "/m/one/tokenizer.json"]  # type: ignore


def test_a_file_whose_content_is_not_at_hand_is_unknown_and_one_that_is_not_there_is_absent() -> None:
    here = files(["config.json", "tokenizer.json"])
    with pytest.raises(stubs.StubLeak, match=r"the content of tokenizer.json is not at hand"):
        here.open("/m/one/tokenizer.json")
    with pytest.raises(FileNotFoundError):
        here.open("/m/one/nothing.json")


def test_nothing_of_this_machine_is_there(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    here = files()
    assert not here.exists(secret)
    assert not here.exists("/etc/hostname")
    assert here.listdir(tmp_path) == []
    with pytest.raises(FileNotFoundError):
        here.open(str(secret))


def test_a_neighbour_whose_name_begins_the_same_is_another_directory() -> None:
    here = files(["config.json"])
    assert here.name_of("/m/one-more/config.json") is None
    assert not here.exists("/m/one-more/config.json")


def test_of_the_release_s_own_files_it_sees_which_are_there(tmp_path: Path) -> None:
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang-other").mkdir()
    here = Files("/m/one", {"config.json": CONFIG}, None, {}, str(tmp_path / "sglang"))
    assert here.exists(tmp_path / "sglang")
    assert not here.exists(tmp_path / "sglang" / "nothing.py")
    assert not here.exists(tmp_path / "sglang-other")


def test_what_it_writes_it_can_read_again_and_nobody_else(tmp_path: Path) -> None:
    here = files()
    target = str(tmp_path / "x.json")
    with here.open(target, "w") as stream:
        stream.write('{"a": 1}')
    assert here.config(target) == {"a": 1}
    assert here.exists(target)
    assert not Path(target).exists()
    with here.temporary(suffix=".json") as stream:
        stream.write("1")
    assert stream.name.endswith(".json")
    assert not files().exists(target)


def test_a_config_is_a_copy_and_a_draft_model_s_is_found_by_its_path() -> None:
    here = files(others={"/m/draft": {"model_type": "qwen3"}})
    here.config("/m/one")["layers"].append(3)
    assert here.config("/m/one/config.json") == CONFIG
    assert here.config("/m/draft/")["model_type"] == "qwen3"
    with pytest.raises(stubs.StubLeak, match=r"config.json of /m/other is not at hand"):
        here.config("/m/other")


GPUS = gpu.Gpus((12, 0), "RTX PRO 6000", 95.59, 2)


def torch(capability: tuple[int, int] = (12, 0), **env: Any) -> Any:
    facts = Facts(Situation(), "/src")
    facts._capability, facts.env = capability, env
    return gpu.modules(facts, GPUS, "2.9.1", "12.8")["torch"]


def test_nvidia_smi_prints_a_line_for_each_gpu_and_nothing_else_is_run() -> None:
    assert GPUS.smi("nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits") == "97884\n97884\n"
    assert GPUS.run(["nvidia-smi", "--query-gpu=compute_cap"]).stdout == "12.0\n12.0\n"
    for command in ("nvidia-smi topo -m", "rocm-smi", ["lscpu"]):
        with pytest.raises(stubs.StubLeak, match="a program was to be run"):
            GPUS.smi(command)


def test_torch_tells_the_gpu_of_the_case() -> None:
    t = torch()
    assert (t.cuda.device_count(), t.cuda.get_device_name(1), t.__version__) == (2, "RTX PRO 6000", "2.9.1")
    properties = t.cuda.get_device_properties(0)
    assert (properties.major, properties.minor, properties.total_memory) == (12, 0, int(95.59 * 2**30))
    assert t.version.hip is None
    assert not hasattr(t, "npu")
    assert not t.xpu.is_available()


def test_what_of_a_gpu_is_not_known_may_be_kept_and_not_looked_at() -> None:
    properties = torch().cuda.get_device_properties(0)
    kept = properties.shared_memory_per_block_optin
    with pytest.raises(stubs.StubLeak, match=r"device_properties.shared_memory_per_block_optin"):
        bool(kept > 1)


def test_devices_compare_as_torch_s_do() -> None:
    device = torch().device
    assert device("cuda") == "cuda" == device("cuda")
    assert device("cuda:1") == device("cuda", 1)
    assert device("cuda") != device("cpu")
    assert (str(device("cuda:1")), device("cuda:1").type, device("cuda:1").index) == ("cuda:1", "cuda", 1)
    assert str(device(device("cpu"))) == "cpu"


def test_the_largest_numbers_of_a_dtype_are_known_or_unknown() -> None:
    t = torch()
    assert (t.finfo(t.float8_e4m3fn).max, t.finfo(t.float16).min) == (448.0, -65504.0)
    assert (t.finfo(t.float8_e5m2).bits, t.finfo(t.bfloat16).bits, t.finfo(t.float32).bits) == (8, 16, 32)
    with pytest.raises(stubs.StubLeak, match="finfo"):
        t.finfo(t.float64)


def test_a_tensor_can_be_made_where_constructors_run_and_not_elsewhere() -> None:
    t = torch()
    with pytest.raises(stubs.StubLeak, match=r"torch\.zeros was called"):
        t.zeros(3)
    stubs.STATE.loading = 1
    made = t.zeros(3)
    assert made is not None
    with pytest.raises(stubs.StubLeak):
        bool(made.sum() > 0)


def present(name: str, **env: bool) -> bool:
    facts = Facts(Situation(), "/src")
    facts.env = env
    return facts.present(name)


def test_which_packages_are_there() -> None:
    assert present("flashinfer")
    assert not present("flashinfer.decode", flashinfer=False)
    assert not present("torch_npu")
    assert not present("sglang.srt.nowhere")
    assert (present("hpc"), present("hpc", hpc=True)) == (False, True)


def test_a_kernel_package_has_every_name_and_none_of_them_decides() -> None:
    module: Any = stand_in("flashinfer.decode")
    kernel = module.Wrapper
    assert type(kernel) is Kernel
    assert kernel is module.Wrapper
    assert bool(kernel)
    with pytest.raises(stubs.StubLeak, match=r"flashinfer\.decode\.Wrapper was called"):
        kernel(1)
    stubs.STATE.loading = 1
    with pytest.raises(stubs.StubLeak, match="truth value"):
        bool(kernel(1))

    def decorated() -> None: ...

    assert kernel(decorated) is decorated
    assert not hasattr(stand_in("flashinfer"), "_grouped_size_compiled_for_decode_kernels")
    assert type(stand_in("some_package").name) is stubs.Stub  # type: ignore[attr-defined]


def test_log_lines_are_kept_in_order_with_their_level_and_logger() -> None:
    said: list[list[str]] = []
    logging: Any = surroundings.logging_module(said)
    logger = logging.getLogger("sglang.srt.server_args")
    logger.warning("page %d of %s", 1, "two")
    logger.getChild("deep").info("plain %s")
    logger.debug("not for a server's log")
    logger.error("%d", "no number")
    logging.getLogger().warning_once("root")
    logger.log(20, "with options", exc_info=True, stacklevel=2)
    logger.setLevel("INFO")
    assert said == [
        ["WARNING", "page 1 of two", "server_args"],
        ["INFO", "plain %s", "server_args.deep"],
        ["ERROR", "%d", "server_args"],
        ["WARNING", "root", "root"],
        ["INFO", "with options", "server_args"],
    ]
    assert (logger.isEnabledFor(10), logger.isEnabledFor(30)) == (False, True)


def test_type_hints_are_looked_up_in_the_engine_s_own_module() -> None:
    """Where engine modules are not in sys.modules, typing's own function finds nothing."""
    module = type(typing)("engine.args")
    vars(module)["Size"] = int

    class Base:
        one: "Size"  # type: ignore[name-defined]  # noqa: F821, UP037
        many: list[Size]  # type: ignore[name-defined]  # noqa: F821

    class Args(Base):
        two: "typing.Annotated[list[Size], 'words']"  # type: ignore[name-defined]  # noqa: F821, UP037

    vars(module)["typing"] = typing
    Base.__module__ = Args.__module__ = "engine.args"
    hints: Any = surroundings.typing_module({"engine.args": module}.get)
    assert hints.get_type_hints(Args) == {"one": int, "many": list[int], "two": list[int]}
    assert hints.get_type_hints(Args, include_extras=True)["two"] == typing.Annotated[list[int], "words"]
    assert hints.get_origin(list[int]) is list


def test_type_hints_of_other_classes_are_typing_s_own() -> None:
    hints: Any = surroundings.typing_module(lambda name: None)

    @dataclasses.dataclass
    class Here:
        one: int | None
        two: list[str]

    assert hints.get_type_hints(Here) == typing.get_type_hints(Here)
