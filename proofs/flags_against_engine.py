"""Random flag lists through the real engine's parser and through ours: same verdict, same words, same values.

    python proofs/flags_against_engine.py --release 0.33.0 --python V/bin/python -n 3000 --seed 1

V is a virtual environment with that vLLM. Lists are valid, invalid, abbreviated, dotted, JSON, from --config files,
unknown. Prints the counts and every disagreement; exit 1 when there is one.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from attnfit.engines.vllm.flags import Table, load_table, parse_flags
from attnfit.engines.vllm.launch.state import Refusal, Unknown

REAL = Path(__file__).with_name("real_parser.py")
TEXTS = [
    "",
    "auto",
    "x",
    "0",
    "1",
    "-1",
    "-0.5",
    "8",
    "1k",
    "1.5k",
    "1.5K",
    "0x10",
    "1e3",
    "nan",
    "None",
    "none",
    "True",
    "{}",
    '{"a": 1}',
    "[1, 2]",
    "{bad",
    "null",
    "a=b",
    "a,b",
    "fp8",
    "half",
    "bfloat16",
    "--",
    "a b",
    "2M",
    "-x",
    "--dtype",
    "1_000",
    " 7 ",
    "3.0",
    "é",
    "FULL",
    '"s"',
]
JSONS: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    2,
    3,
    -1,
    8,
    0.5,
    1.0,
    "",
    "x",
    "auto",
    "true",
    "1",
    "fp8",
    [],
    [1],
    ["a"],
    {},
    {"a": 1},
    {"x": "y"},
    "FULL",
    "VLLM_COMPILE",
    "FLASH_ATTN",
    "flashinfer",
    "torch",
    [0, 1],
    1e400,
]


class Lists:
    def __init__(self, table: Table, seed: int, folder: Path) -> None:
        self.table, self.random, self.folder, self.count = table, random.Random(seed), folder, 0
        self.named = [f for f in table.flags if f.options and f.action != "help"]
        self.typed = [f for f in self.named if isinstance(f.type, dict)]

    def one(self) -> list[str]:
        r = self.random
        out: list[str] = []
        for _ in range(r.choices([0, 1, 2, 3, 5], [2, 40, 30, 20, 8])[0]):
            out += r.choices([self.flag, self.json_flag, self.dotted, self.odd, self.config], [60, 22, 10, 8, 2])[0]()
        return out

    def flag(self) -> list[str]:
        r = self.random
        f = r.choice(self.named)
        name = r.choice(f.options)
        if r.random() < 0.15 and name.startswith("--"):
            name = "--" + name[2:].replace("-", "_")
        elif r.random() < 0.12 and len(name) > 6:
            name = name[: r.randint(4, len(name) - 1)]
        if f.action in ("bool", "true", "false"):
            return [name] if r.random() < 0.93 else [name + "=" + r.choice(TEXTS)]
        values = [self.value(f) for _ in range(r.choice([1, 1, 2, 3]) if f.nargs == "+" else 1)]
        if r.random() < 0.04:
            return [name]
        if r.random() < 0.3:
            return [f"{name}={values[0]}"]
        return [name, *values]

    def value(self, f: Any) -> str:
        r = self.random
        if f.choices and r.random() < 0.7:
            return str(r.choice([c for c in f.choices if c is not None]))
        kind = f.type
        while isinstance(kind, dict) and "dataclass" not in kind:
            kind = next(iter(kind.values()))
        if kind in ("int", "human_readable_int", "human_readable_int_or_auto") and r.random() < 0.7:
            return r.choice(["1", "8", "64", "1k", "2M", "3.5g", "1T", "-1", "auto", "1.5K", " 12 ", "0"])
        if kind == "float" and r.random() < 0.7:
            return r.choice(["0.9", "1", "-0.5", "1e-3", ".5", "nan"])
        if kind in ("json", "union_dict_and_str") and r.random() < 0.7:
            return r.choice(['{"a": 1}', "{}", "[1]", "null", '{"a": {"b": [1, 2]}}', "{a}", "3", '{"a": NaN}'])
        if isinstance(kind, dict) and "dataclass" in kind:
            return self.object_text(kind["dataclass"])
        return r.choice(TEXTS)

    def json_flag(self) -> list[str]:
        r = self.random
        f = r.choice([f for f in self.typed if "dataclass" in str(f.type)])
        return [r.choice(f.options), self.value(f)]

    def object_text(self, name: str) -> str:
        r = self.random
        text = json.dumps(self.object(name, 0))
        if r.random() < 0.05:
            text = text[: r.randint(0, len(text))]
        elif r.random() < 0.1:
            text = text.replace("8", r.choice(["8k", "8M", "8g"]))
        return text

    def object(self, name: str, depth: int) -> Any:
        r = self.random
        fields = self.table.classes.get(name, {}).get("fields", {})
        out: dict[str, Any] = {}
        for key in r.sample(sorted(fields), min(len(fields), r.choices([0, 1, 2, 4], [1, 10, 6, 3])[0])):
            out[key] = self.of_hint(fields[key]["type"], depth) if r.random() < 0.8 else r.choice(JSONS)
        if r.random() < 0.04:
            out["no_such_field"] = 1
        return out if r.random() < 0.98 else r.choice(JSONS)

    def of_hint(self, hint: Any, depth: int) -> Any:
        r = self.random
        if isinstance(hint, str):
            return {
                "bool": lambda: r.choice([True, False, 0, 1, "true", "off"]),
                "int": lambda: r.choice([0, 1, 2, 8, 64, -1, "8", 3.0, True]),
                "float": lambda: r.choice([0.5, 1, 0, -1.5, "0.5"]),
                "str": lambda: r.choice(["", "x", "auto", "eager", "inductor", "FULL", "/tmp/x", "gs://b/x"]),
                "null": lambda: None,
                "list": list,
                "dict": dict,
            }.get(hint, lambda: r.choice(JSONS))()
        kind, arg = next(iter(hint.items()))
        if kind == "union":
            return self.of_hint(r.choice(arg), depth)
        if kind == "literal":
            return r.choice(arg)
        if kind == "bounded":
            return self.of_hint(arg, depth)
        if kind in ("list", "set"):
            item = ["all", "none", "+rms_norm", "-rms_norm", "x", "+silu"]
            return [r.choice(item) if arg == "str" else self.of_hint(arg, depth) for _ in range(r.randint(0, 3))]
        if kind == "dict":
            return {
                r.choice(["a", "full_attention", "mamba", "8"]): self.of_hint(arg[1], depth)
                for _ in range(r.randint(0, 2))
            }
        if kind == "enum":
            spec = self.table.classes.get(arg, {}).get("enum", {"A": 1})
            key = r.choice(sorted(spec))
            return r.choice([key, key.lower(), spec[key], "auto", "NOPE"])
        if kind == "dataclass" and depth < 2:
            return self.object(arg, depth + 1)
        return r.choice(JSONS)

    def dotted(self) -> list[str]:
        r = self.random
        f = r.choice([f for f in self.named if "dataclass" in str(f.type) or "json" in str(f.type)])
        name = r.choice(f.options)
        kind = f.type
        while isinstance(kind, dict) and "dataclass" not in kind:
            kind = next(iter(kind.values()))
        fields = self.table.classes.get(kind["dataclass"], {}).get("fields", {}) if isinstance(kind, dict) else {}
        key = r.choice(sorted(fields) or ["a", "b.c"])
        plus = "+" if r.random() < 0.15 else ""
        value = json.dumps(self.of_hint(fields[key]["type"], 1)) if key in fields else r.choice(TEXTS)
        value = value.strip('"') if r.random() < 0.6 else value
        arg = f"{name}.{key}{plus}"
        return [f"{arg}={value}"] if r.random() < 0.5 else [arg, value]

    def odd(self) -> list[str]:
        r = self.random
        return r.choice(
            [
                ["-O3"],
                ["-O", "2"],
                ["-O=1"],
                ["-O"],
                ["-O.x=1"],
                ["-Oz"],
                ["--no-such-flag"],
                ["--no-such-flag=3"],
                ["--swap-space", "4"],
                ["-x"],
                ["-tp8"],
                ["-t", "8"],
                ["-qfp8"],
                ["-q", "fp8"],
                ["model-name"],
                ["a b"],
                ["--"],
                ["--", "m"],
                [""],
                ["-"],
                ["-1"],
                ["-1.5"],
                ["--help"],
                ["-h"],
                ["--a.b"],
                ["--model"],
                ["--model="],
                ["--task", "embed"],
                ["--d"],
                ["--e", "1"],
                ["-cc.mode=3"],
                ["-cc", "3"],
                ["--=x"],
                ["--config"],
                ["--config", "nope.yaml"],
                ["--config=x.yaml"],
                ["--config", "x.json"],
                ["--lora-modules", "a=b", '{"name": "a", "path": "p"}'],
                ["--lora-modules", "{bad"],
                ["--lora-modules", '{"zzz": 1}'],
                ["--lora-modules", "plain"],
            ]
        )

    def config(self) -> list[str]:
        r = self.random
        self.count += 1
        path = self.folder / f"c{self.count}.yaml"
        content: Any = {}
        for _ in range(r.randint(0, 4)):
            f = r.choice(self.named)
            name = r.choice(f.options).lstrip("-")
            if f.action in ("bool", "true"):
                content[name] = r.choice([True, False, True, "x"])
            else:
                text = self.value(f)
                try:
                    content[name] = json.loads(text) if r.random() < 0.8 else text
                except ValueError:
                    content[name] = text
        if r.random() < 0.1:
            content = r.choice(
                [[1, 2], None, "text", {3: 4}, {True: 1}, {"host": [1, 2]}, {"port": None}, {"port": 1.5}]
            )
        text = yaml.safe_dump(content)
        path.write_text(text if r.random() < 0.95 else "a: [1\nb: {", encoding="utf-8")
        return ["--config", str(path)]


def ours(table: Table, argv: list[str], form: str) -> tuple[bool | None, str, dict[str, Any]]:
    try:
        parsed = parse_flags(table, argv, form=form)
    except Refusal as e:
        return False, e.detail, {"message": e.message}
    except Unknown as e:
        return None, str(e), {}
    return True, "", parsed.values


def same_words(real: str, mine: str) -> bool:
    if real.startswith("exit "):
        return True
    real = real.split("; did you mean")[0]
    mine = mine.split("; did you mean")[0]
    if real == mine or ("Error" in real.split(":")[0] and real.split(":")[0] == mine.split(":")[0]):
        return True
    if "cannot be converted to" in real:
        return real.split("cannot be")[0] == mine.split("cannot be")[0]
    if real.startswith("Invalid fields for --lora-modules"):
        return mine.startswith(real.split(" - ")[0])
    if "validation error" in real or "alidationError" in real:  # pydantic's report of a config object
        return real.split(": ")[0] == mine.split(": ")[0]
    return False


def plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))


def differences(real: dict[str, Any], mine: dict[str, Any], table: Table) -> list[str]:
    out = []
    defaults = {f.dest: f.default for f in table.flags}
    for dest in sorted(set(real) | set(mine)):
        a, b = real.get(dest, defaults.get(dest)), plain(mine.get(dest, defaults.get(dest)))
        if any(isinstance(v, dict) and "object" in v for v in (a, b)) or dest in ("lora_modules", "subparser", "model"):
            continue  # a config object: judged by verdict
        if a != b and not (a != a and b != b):
            out.append(f"{dest}: engine {a!r}, ours {b!r}")
    return out


def main() -> int:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--release", required=True)
    ap.add_argument("--python", required=True, help="python of the environment with that vLLM")
    ap.add_argument("-n", type=int, default=3000)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--form", choices=("module", "serve"), default="module")
    ap.add_argument("--save", type=Path, help="write lists without files and the engine's answers as JSON lines")
    ap.add_argument("--show", type=int, default=20)
    opts = ap.parse_args()
    table = load_table(opts.release)
    with tempfile.TemporaryDirectory() as folder:
        lists = Lists(table, opts.seed, Path(folder))
        cases = [lists.one() for _ in range(opts.n)]
        if opts.form == "serve":  # the model first, as people write it, or not
            cases = [(["./model"] if i % 3 else []) + argv for i, argv in enumerate(cases)]
        done = subprocess.run(
            [opts.python, str(REAL), "serve" if opts.form == "serve" else "parse"],
            input="\n".join(map(json.dumps, cases)) + "\n",
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        if opts.save:
            kept = [{"argv": a, **r} for a, r in zip(cases, answers, strict=True) if folder not in json.dumps(a)]
            opts.save.write_text("".join(json.dumps(k) + "\n" for k in kept), encoding="utf-8")
        count: collections.Counter[str] = collections.Counter()
        shown = 0
        for argv, answer in zip(cases, answers, strict=True):
            ok, words, values = ours(table, argv, opts.form)
            fault = ""
            if ok is None:
                count["unknown (engine accepts)" if answer["ok"] else "unknown (engine refuses)"] += 1
                if shown < opts.show and opts.show > 100:
                    fault = f"unknown: {words}"
            elif ok != answer["ok"]:
                count["WRONG verdict"] += 1
                fault = f"engine {answer.get('error', 'accepts')!r}, ours {words or 'accepts'!r}"
            elif not ok:
                good = same_words(answer["error"], words)
                count["refused, same words" if good else "refused, OTHER words"] += 1
                fault = "" if good else f"engine {answer['error']!r}, ours {words!r}"
            else:
                bad = differences(answer["values"], values, table)
                count["accepted, OTHER values" if bad else "accepted, same values"] += 1
                fault = "; ".join(bad)
            if fault and shown < opts.show:
                shown += 1
                print(json.dumps(argv, ensure_ascii=False)[:400], "\n   ", fault[:600])
    figures = ", ".join(f"{k} {v}" for k, v in sorted(count.items()))
    print(f"{opts.release} ({opts.form}): {len(cases)} lists, seed {opts.seed}: {figures}")
    return int(any("WRONG" in k or "OTHER" in k for k in count))


if __name__ == "__main__":
    sys.exit(main())
