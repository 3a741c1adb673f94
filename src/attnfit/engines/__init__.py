"""The engines attnfit knows. An engine is one folder here; nothing outside names one."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from attnfit.core import Capability, Fit, Gpu, Launch, Model, Question, Selection
from attnfit.engines.move import Cost as Cost
from attnfit.engines.move import Move as Move
from attnfit.engines.traits import Traits
from attnfit.errors import UnknownAnswer, UsageError, did_you_mean

if TYPE_CHECKING:
    from attnfit.witness.distribution import Distribution

ENGINES = ("vllm", "sglang")


class Weights(NamedTuple):
    """The tensors of a checkpoint: name -> (dtype as safetensors names it, shape, bytes), or why they are not known.

    `broken`: what is wrong with its files, where no engine can load them (a file missing, cut off, not one at all).
    `doubt`: what may be.
    """

    tensors: Mapping[str, tuple[str, tuple[int, ...], int]] | None
    why: str = ""
    broken: str = ""
    doubt: str = ""


class Circumstances(NamedTuple):
    """Everything that decides a launch, beside the release that is asked."""

    model: Model
    gpu: Gpu  # one rank's; its capability is known, or no engine is asked
    argv: Sequence[str]  # the server's arguments
    gpus: int | None = None  # GPUs there are; None: nobody said, so their number is not checked
    form: str = "auto"  # which of the engine's parsers reads the arguments
    files_here: bool = True  # False: files that the arguments name lie in a container or on another machine
    variables: Mapping[str, str] = {}  # environment variables set for the server
    env: Mapping[str, bool] | None = None  # environment facts; None: what the release installs by default
    tried: bool = False  # a change of a launch that was answered before: nothing is fetched for its sake
    driver: str = ""  # NVIDIA's, of the machine it is to run on: "580.65.06"; "": not known

    @property
    def capability(self) -> Capability:
        assert self.gpu.capability is not None, f"{self.gpu.name} is not covered"
        return self.gpu.capability


class KernelAsk(NamedTuple):
    """The engine's own Triton kernels for one kind of layer, as a launch will start them.

    `about` goes to `engines/ENGINE/triton_kernels` in the child that compiles; `inputs` says it to people. `unknown`:
    why they cannot be asked about.
    """

    backend: str
    about: dict[str, Any]
    inputs: tuple[str, ...] = ()
    unknown: str = ""


class Release(Protocol):
    """One release of an engine: answers selector questions and whole launches."""

    version: str  # the release asked for
    book: str  # the release whose rule book answers
    exact: bool  # the book is proven for `version`

    @property
    def dear(self) -> bool:
        """Whether an answer takes a tenth of a second, not a few milliseconds."""

    @property
    def said(self) -> tuple[str, ...]:
        """What is to be said of who answers."""

    def facts(self) -> Mapping[str, bool]:
        """Environment facts that decide in this release, with what installing it brings."""

    def backends(self) -> Sequence[tuple[str, str]]:
        """(name, where it is defined) of every backend."""

    def question(self, config: dict[str, Any]) -> Question:
        """A ready question from an object with the engine's own field names. Raises InputError."""

    def row(self, question: Question, selection: Selection) -> dict[str, Any]:
        """The answer to a ready question, with the engine's texts in its order (docs/json.md)."""

    def select(self, question: Question, env: Mapping[str, bool] | None = None, *, explained: bool = True) -> Selection:
        """One question. In bulk leave the reasons' `required` and `observed` away: not `explained`."""

    def witnessed(self, source: str) -> Release:
        """The same release, answered by the engine's own code from `source` instead of by the book."""

    def installed_in(self, prefix: str) -> Release:
        """The same release as it is installed in an environment: where its own code answers, that code."""

    def launch(self, circumstances: Circumstances) -> Launch:
        """The whole answer."""

    def consider(self, launch: Launch) -> None:
        """Add to an answer just given what only a report shows, and what takes asking again: every other candidate."""

    def sees(self, gpu: Gpu) -> Hashable:
        """What of a GPU decides a launch: where it is equal, the answers are, too, whatever the name and the memory. In
        their texts `{device}` stands for the name."""

    def fitter(self, circumstances: Circumstances, weights: Weights) -> Callable[[Gpu], Fit | None]:
        """Whether a launch that passes fits into memory, of the circumstances' GPU and of any that is seen as the same;
        None where the release is not measured."""

    def kernels(self, circumstances: Circumstances, launch: Launch) -> Sequence[KernelAsk]:
        """The Triton kernels of the engine's own that a launch which passes will start for attention."""

    def traits(self, model: Model) -> Traits:
        """What the release makes of a model: its numbers, kinds of layers, quantisation. Raises nothing."""


class Given(NamedTuple):
    """A launch as it was given: what an engine needs to know to propose changes of it."""

    argv: tuple[str, ...]
    form: str  # which of the engine's parsers reads them
    book: str  # the release whose rule book answers
    variables: Mapping[str, str]
    gpus: int | None  # that the server sees; None: nobody said
    total: int  # that were named
    release: str = ""  # the release asked for, where it is not that of the book
    env: Mapping[str, bool] = {}  # environment facts that were stated or found
    config: Mapping[str, Any] = {}  # the model's config.json


class Piece(NamedTuple):
    """One flag with its values, or one word that belongs to none."""

    flag: str  # in full and with dashes, however it is spelt; "" for a word that belongs to no flag
    words: tuple[str, ...]
    known: bool = True  # False: the release has no such flag, or the word belongs to none


class Common(NamedTuple):
    """What two engines both know of a launch."""

    model: str
    values: Mapping[str, str] = {}  # "tensor parallel", "dtype", ... -> the value; "" for a switch
    left: tuple[str, ...] = ()  # flags without a certain counterpart
    guards: tuple[str, ...] = ()  # of those, the ones without which the server would be less protected


class Engine(Protocol):
    name: str
    apart: bool  # its releases answer in processes of their own: many can be asked at once

    def default_command(self, model: Sequence[str], gpus: int, config: dict[str, Any]) -> Sequence[str]:
        """The plainest launch of `model` on at most `gpus` GPUs, for a user who has no command yet."""

    def moves(self, given: Given, launch: Launch) -> Iterator[Move]:
        """Changes of a launch that is refused, breaks or has flags that do nothing: atomic where they can be."""

    def pieces(self, given: Given) -> Sequence[Piece]:
        """The server's arguments, flag by flag with its values: all of them, in order."""

    def price(self, flag: str) -> Cost:
        """What it costs a user to set or drop a flag."""

    def common(self, given: Given) -> Common:
        """What of the launch another engine has a certain counterpart for."""

    def translated(self, common: Common) -> Sequence[str]:
        """The plainest command that says the same to this engine."""

    def at_hand(self) -> Sequence[str]:
        """Releases that answer from what is here, oldest first: nothing is fetched for a plan's sake."""

    def shipped(self, version: str) -> Release:
        """One of those, answered as fast as it can be."""

    def room(self, given: Given, fit: Fit) -> Iterator[Move]:
        """Changes of the launch that need less memory of each GPU, cheapest first."""

    def releases(self) -> Sequence[str]:
        """Versions with a rule book, oldest first."""

    def release(self, version: str | None) -> Release:
        """None: the newest rule book. Raises UsageError for text that is no version at all."""

    def learn(self, source: str, *, folder: Path | None, questions: int, seed: int | None, offline: bool) -> str:
        """Make a release known: its rule book, or its source files, from `source` (see `witness.sources.find`).

        Returns where it lies now. `folder`, `questions` and `seed` are for engines that have rule books.
        """


def divisor(gpus: int, config: Mapping[str, Any]) -> int:
    """The most of `gpus` GPUs that the attention heads of a config.json can be divided among."""
    nested = config.get("text_config")
    heads = (nested if isinstance(nested, dict) else config).get("num_attention_heads")
    size = gpus
    while isinstance(heads, int) and heads > 0 and heads % size:
        size -= 1
    return size


def engine(name: str) -> Engine:
    """Raises UsageError, listing the valid names, for an engine we do not know."""
    if name not in ENGINES:
        raise UsageError(f"unknown engine {name!r}{did_you_mean(name, ENGINES)}; valid: {', '.join(ENGINES)}")
    module = import_module(f"attnfit.engines.{name}")
    found: Engine = module.ENGINE
    return found


def distribution_of(name: str) -> Distribution:
    """What the engine says of its own distribution."""
    found: Distribution = import_module(f"attnfit.engines.{name}.distribution").DISTRIBUTION
    return found


def engine_of_source(spec: str) -> Engine:
    """The engine whose release `spec` names: NAME==VERSION, a wheel, an sdist, a source tree, "installed".

    Raises UsageError where it is of none of them, UnknownAnswer where none is installed.
    """
    from attnfit.witness.sources import INSTALLED, which

    name, pinned, _ = spec.partition("==")
    if pinned and not Path(spec).exists():
        return engine(name.strip())
    distributions = {distribution_of(each): each for each in ENGINES}
    found = which(distributions, spec)
    if found is None:
        known = ", ".join(f"{each}==VERSION" for each in ENGINES)
        if spec in INSTALLED:
            raise UnknownAnswer(f"no engine is installed beside attnfit; give {known}, or a wheel, sdist or tree")
        raise UsageError(f"{spec!r} is of no engine attnfit knows; give {known}, or a wheel, sdist or tree of one")
    return engine(distributions[found])


def split_spec(spec: str) -> tuple[str, str | None]:
    """ "vllm==0.16.0" -> ("vllm", "0.16.0"); "vllm" -> ("vllm", None).

    Raises UsageError for a range: an answer is for one release.
    """
    name, separator, version = (part.strip() for part in spec.partition("=="))
    if separator and not version:
        raise UsageError(f"no release behind '==' in {spec!r}; write for example vllm==0.33.0")
    if bare := re.match(r"[\w-]+(?=\s*[<>~!=@])", name):
        raise UsageError(f"{spec!r} names no single release; write for example {bare.group()}==0.33.0")
    return name.lower(), version or None
