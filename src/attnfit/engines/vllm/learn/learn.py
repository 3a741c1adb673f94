"""`attnfit learn`: source -> explore -> book -> replay -> write. A book with one disagreement is not written."""

from __future__ import annotations

import datetime
import json
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

import attnfit
from attnfit.engines.vllm import releases
from attnfit.engines.vllm.book import FORMAT, Book
from attnfit.engines.vllm.distribution import DISTRIBUTION
from attnfit.engines.vllm.learn.replay import Replay, replay
from attnfit.engines.vllm.witness.client import Witness
from attnfit.errors import AttnfitError, UsageError
from attnfit.witness import sources
from attnfit.witness.cache import Source, to_stderr

QUESTIONS = 20_000
CPU_SECONDS, WALL_SECONDS = 3600, 300.0
Say = Callable[[str], None]


class Disagreement(AttnfitError):
    """Book and witness differ: the book is not written. The message shows the first question they differ on."""


class Learned(NamedTuple):
    """A book as bytes, what the replay found, and how many of its leaves say unknown."""

    raw: bytes
    replay: Replay
    unknown: list[str]


def run(
    spec: str,
    *,
    folder: Path | None = None,
    questions: int = QUESTIONS,
    seed: int | None = None,
    offline: bool = False,
    say: Say = to_stderr,
) -> Path:
    """Learn `vllm==X`, a wheel, a source tree or "installed" into `folder` (default: the user's books).

    Returns the path of the book. Raises InputError or UnknownAnswer for sources, Disagreement, WitnessError.
    """
    if questions < 1:
        raise UsageError(f"{questions} questions prove nothing; replay at least one, {QUESTIONS:,} as a rule")
    source = sources.find(DISTRIBUTION, spec, offline=offline, say=say)
    learned = learn(source, how=f"attnfit learn {spec}", questions=questions, seed=seed, say=say)
    if folder is None and source.version in {*releases.shipped(), *releases.shared()}:
        say(f"note: attnfit has a book of {source.version} already, which it goes on using; this one is not read")
    return write(learned.raw, source.version, folder or releases.user_books())


def learn(
    source: Source,
    *,
    how: str,
    questions: int = QUESTIONS,
    seed: int | None = None,
    say: Say = lambda text: None,
) -> Learned:
    """Explore one release and hold the book against the witness on fresh questions."""
    seed = secrets.randbelow(10**9) if seed is None else seed
    with Witness(
        source.root,
        source.version,
        source.env,
        modules=["attnfit.engines.vllm.learn.job"],
        cpu_seconds=CPU_SECONDS,
        wall_seconds=WALL_SECONDS,
    ) as witness:
        say(f"exploring the predicates of vLLM {source.version}")
        body = witness.call("learn")
        book = Book(render(_whole(source, body, {})))
        say(f"asking book and witness {questions:,} questions (seed {seed})")
        found = replay(book, witness, questions, seed, source.env, lambda done: say(f"  {done:,} questions"))
    if found.disagreements:
        raise Disagreement(_shown(source.version, found))
    provenance = {
        "source": source.origin, "sha256": source.sha256, "how": how, "learned_by": f"attnfit {attnfit.__version__}",
        "on": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "replay": {
            "questions": found.questions, "seed": seed, "environments": found.environments, "disagreements": 0,
            "unknown": found.unknown, "branches": found.branches, "texts": found.texts,
        },
    }  # fmt: skip
    return Learned(render(_whole(source, body, provenance)), found, unknowns(body))


def _whole(source: Source, body: Mapping[str, Any], provenance: Mapping[str, Any]) -> dict[str, Any]:
    read = {name[4:] for name in body["fields"] if name.startswith("env.")}
    return {
        "format": FORMAT, "engine": "vllm", "version": source.version, "provenance": dict(provenance),
        "environment": {name: source.env[name] for name in sorted(read & source.env.keys())}, **body,
    }  # fmt: skip


def unknowns(tree: Any) -> list[str]:
    """What the leaves of a book (or a part of it) name as unknown."""
    found: set[str] = set()
    todo = [tree]
    while todo:
        part = todo.pop()
        if isinstance(part, dict):
            if isinstance(part.get("unknown"), str):
                found.add(part["unknown"])
            todo.extend(part.values())
        elif isinstance(part, list):
            todo.extend(part)
    return sorted(found)


def render(book: Mapping[str, Any]) -> bytes:
    """A book as JSON that people can read and diff: one rule, tree or helper per line."""

    def line(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False)

    def table(entries: Mapping[str, Any]) -> str:
        return "{\n" + ",\n".join(f"  {line(name)}: {line(value)}" for name, value in entries.items()) + "\n }"

    def backend(entry: Mapping[str, Any]) -> str:
        rules = ",\n".join(f"    {line(rule)}" for rule in entry["rules"])
        rest = {name: value for name, value in entry.items() if name != "rules"}
        return line(rest)[:-1] + ', "rules": [\n' + rules + "]}" if rules else line(entry)

    parts = []
    for name, value in book.items():
        if name == "backends":
            text = "{\n" + ",\n".join(f"  {line(n)}: {backend(e)}" for n, e in value.items()) + "\n }"
        elif name in ("trees", "helpers", "fields", "messages", "provenance") and value:
            text = table(value)
        else:
            text = line(value)
        parts.append(f" {line(name)}: {text}")
    return ("{\n" + ",\n".join(parts) + "\n}\n").encode()


def write(raw: bytes, version: str, folder: Path) -> Path:
    """Write a book into a folder of books; the old one stays until the new one is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    path, new = folder / f"{version}.json", folder / f".{version}.json.new"
    new.write_bytes(raw)
    new.replace(path)
    return path


def _shown(version: str, found: Replay) -> str:
    first = found.first[0]
    key = first["differs"]
    return (
        f"the book of vLLM {version} disagrees with the witness on {found.disagreements} of {found.questions} "
        f"questions and "
        f"is not written. First: {key}\n  question {json.dumps(first['question'])}\n  environment "
        f"{json.dumps(first['env'])}\n"
        f"  book    {msgspec.json.encode(first['book'].get(key)).decode()}\n"
        f"  witness {msgspec.json.encode(first['witness'].get(key)).decode()}\n"
        "Please report this with the version; `attnfit check --witness` answers from the engine's own code meanwhile"
    )
