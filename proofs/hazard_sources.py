"""Every message that a hazard's test quotes from an engine's source stands there, in that release, at that line.

    python proofs/hazard_sources.py vllm=DIR sglang=DIR

DIR holds a folder a release with the package in it (DIR/0.33.0/vllm/...), as unpacked wheels do. A message is compared
without what is filled in at run time: the literals that its record looks for must stand, in order, in one expression of
that line's statement.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

from attnfit.hazards import catalogue, matches

ROWS = Path(__file__).parent.parent / "tests" / "data" / "explain" / "source_lines.jsonl"


def statement(source: str, line: int) -> str:
    """The text constants of the innermost statement that begins at a line, one behind the other."""
    found = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.Raise, ast.Assert, ast.Return, ast.Expr, ast.Assign)) and node.lineno == line
    ]
    return " ".join("".join(_texts(node) for node in found[-1:]).split())


def _texts(node: ast.AST) -> str:
    """In the order of the source: of an f-string, its pieces have no places of their own."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    return "".join(_texts(child) for child in ast.iter_child_nodes(node))


def main() -> int:
    roots = dict(word.split("=", 1) for word in sys.argv[1:])
    rows = [json.loads(line) for line in ROWS.read_text("utf-8").splitlines()]
    asked, wrong = 0, []
    for row in rows:
        if row["engine"] not in roots:
            continue
        asked += 1
        file, _, line = row["where"].rpartition(":")
        path = Path(roots[row["engine"]]) / row["release"] / file
        text = statement(path.read_text("utf-8"), int(line)) if path.is_file() else ""
        hits = matches(f"{row['exception']}: {row['message']}", catalogue())
        literals = hits[0].signature.has if hits else ()
        at = 0
        for literal in literals:  # the exception's name is not in the text
            literal = literal.removeprefix("Error: ").strip()
            at = text.find(literal, at) if literal not in row["exception"] else at
            if at < 0:
                break
        if at < 0 or not literals or not text:
            wrong.append(f"{row['hazard']} {row['where']} ({row['release']}): {text[:100]!r} has not {literals}")
    print("\n".join(wrong))
    print(f"{asked - len(wrong)} of {asked} messages stand in the source of their release")
    return 1 if wrong or not asked else 0


if __name__ == "__main__":
    sys.exit(main())
