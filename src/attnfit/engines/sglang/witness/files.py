"""The file system as SGLang sees it: the model's own files, what it writes itself, and nothing else.

Standard library only.
"""

from __future__ import annotations

import fnmatch
import io
import json
import pathlib
import types
from collections.abc import Iterator, Mapping
from typing import Any

from attnfit.witness.fakes import StubModule
from attnfit.witness.stubs import as_real, leak

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")


class Files:
    """What lies where the model is.

    `model` is its path as the server is given it; `texts` the JSON files whose contents are at hand (name -> content);
    `names` all files there, or None where that is not known; `others` the config.json of further models, by path.
    """

    def __init__(
        self,
        model: str,
        texts: Mapping[str, Any],
        names: list[str] | None,
        others: Mapping[str, Any],
        root: str,
    ) -> None:
        self.model, self.texts, self.others = model.rstrip("/") or "/", texts, others
        self.names = sorted(names if names is not None else texts)
        # Without weights it is a copy of the configuration alone: what else the checkpoint has is not known.
        self.whole = names is not None and any(name.endswith(_WEIGHTS) for name in names)
        self.root = root  # of SGLang's sources
        self.written: dict[str, str] = {}

    def name_of(self, path: Any) -> str | None:
        """A path's name below the model's directory; "" for the directory itself; None for one elsewhere."""
        text = str(path).rstrip("/")
        if text == self.model:
            return ""
        return text[len(self.model) + 1 :] if text.startswith(f"{self.model}/") else None

    def exists(self, path: Any) -> bool:
        name = self.name_of(path)
        if name is not None:
            return not name or name in self.names
        text = str(path)
        if text == self.root or text.startswith(f"{self.root}/"):
            return pathlib.Path(text).exists()
        return text in self.written or text in self.others

    def is_dir(self, path: Any) -> bool:
        return self.name_of(path) == "" or str(path) in self.others

    def is_file(self, path: Any) -> bool:
        return self.exists(path) and not self.is_dir(path)

    def listdir(self, path: Any = ".") -> list[str]:
        return list(self.names) if self.is_dir(path) else []

    def glob(self, pattern: Any, *args: Any, **kwargs: Any) -> list[str]:
        paths = (f"{self.model}/{name}" for name in self.names)
        return [path for path in paths if fnmatch.fnmatch(path, str(pattern))]

    def open(self, path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        """A model file for reading; a file of SGLang's own for writing, kept in memory."""
        text = str(path)
        if "w" in mode:
            return _Written(text, self.written)
        if text in self.written:
            return io.StringIO(self.written[text])
        name = self.name_of(path)
        if name and name in self.texts:
            return io.StringIO(json.dumps(self.texts[name]))
        if name and name in self.names:
            leak(f"the content of {name} is not at hand")
        raise as_real(FileNotFoundError(2, "No such file or directory", text))

    def config(self, path: Any) -> dict[str, Any]:
        """The config.json at a path."""
        text = str(path)
        if text in self.written:
            found: dict[str, Any] = json.loads(self.written[text])
        elif self.name_of(path) in ("", "config.json"):
            found = self.texts["config.json"]
        elif text.rstrip("/") in self.others:
            found = self.others[text.rstrip("/")]
        else:
            leak(f"the config.json of {text} is not at hand")
        copied: dict[str, Any] = json.loads(json.dumps(found))
        return copied

    def temporary(self, mode: str = "w+b", suffix: str = "", **kwargs: Any) -> _Written:
        return _Written(f"/tmp/sglang-{len(self.written)}{suffix}", self.written)


class _Written(io.StringIO):
    """A file SGLang writes."""

    def __init__(self, name: str, kept: dict[str, str]) -> None:
        super().__init__()
        self.name, self._kept = name, kept
        kept[name] = ""

    def write(self, text: str, /) -> int:
        count = super().write(text)
        self._kept[self.name] = self.getvalue()
        return count


def modules(files: Files) -> dict[str, types.ModuleType]:
    """pathlib, glob and tempfile over these files, by name."""

    class Path(pathlib.PurePosixPath):
        def exists(self) -> bool:
            return files.exists(self)

        def is_file(self) -> bool:
            return files.is_file(self)

        def is_dir(self) -> bool:
            return files.is_dir(self)

        def expanduser(self) -> Path:
            return self

        def absolute(self) -> Path:
            return self

        def resolve(self, strict: bool = False) -> Path:
            return self

        def iterdir(self) -> Iterator[Path]:
            return (self / name for name in files.listdir(self))

        def glob(self, pattern: str) -> Iterator[Path]:
            return (self / name for name in files.listdir(self) if fnmatch.fnmatch(name, pattern))

        def open(self, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            return files.open(self, mode)

        def read_text(self, *args: Any, **kwargs: Any) -> str:
            return str(files.open(self).read())

    pure = pathlib.PurePosixPath
    return {
        "pathlib": StubModule("pathlib", Path=Path, PosixPath=Path, PurePath=pure, PurePosixPath=pure),
        "glob": StubModule("glob", glob=files.glob, iglob=files.glob, escape=str),
        "tempfile": StubModule("tempfile", gettempdir=lambda: "/tmp", NamedTemporaryFile=files.temporary),
    }
