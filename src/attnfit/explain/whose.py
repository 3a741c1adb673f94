"""Whose text a log is: of another program, a source file, the history of a repository, or what somebody wrote about a
failure. Pure. A few lines that hold nothing but a message may be an engine's: so people quote them."""

from __future__ import annotations

import re

from attnfit.engines.log import log_words
from attnfit.explain.story import EXCERPT, Start, Story
from attnfit.inputs.log import Line

NOBODY_S = "nothing in it was written by an engine that is known"
_CODE = re.compile(
    r"(?:from [\w.]+ import\b|import [\w.]+(?: as \w+)?$|(?:async )?def \w+\(|class \w+[(:]|@\w[\w.]*(?:\(|$)"
    r"|# SPDX-|#include |#pragma |if __name__ ==|using namespace )"
)
_LEAST_CODE = 3  # lines: one is quoted above the error that it raised
_LOGGER = re.compile(r" - (?P<name>[A-Za-z_][\w.]*) - (?:DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL) - ")
_ANYONE_S = ("root", "__main__", "ray", "torch", "transformers", "triton", "flashinfer", "uvicorn")  # within an engine
_COMMIT = re.compile(r"(?:\* )?[0-9a-f]{7,12} (?:\([^)]*\) )?[A-Z\[(][^:=]*")  # git log --oneline
_SOMEBODY = re.compile(
    r"(?:^|(?<=[\s(]))(?:I|I'm|I've|I'd|[Mm]y|[Mm]e|[Aa]nyone|[Ss]omeone|[Tt]hanks|[Hh]i|[Hh]ello)(?=[\s,.!?:]|$)"
    r"|\b[Ww]e(?:'re|'ve)? (?:\w+ )?(?:get|got|see|saw|hit|ran|run|use|used|tried|keep|find|found|observed?)\b"
    r"|\b(?:[Aa]fter|[Ww]hen|[Ww]hile|[Ss]ince) (?:\w+ ){0,3}\w+ing\b.{0,80}\b(?:gets?|fails|crash(?:es)?|dies)\b"
)


def other_program(story: Story) -> str:
    """Why the log is none of an engine's; "" where it is one, or may be an excerpt of one."""
    begun = any(start.begun for start in story.starts)
    if story.program and (not story.ours or (story.program in ("pytest", "pip") and not begun)):
        return f"this is a log of {story.program}, not of an engine that is known here"
    if story.foreign and not story.ours:
        return f"this is a log of a program of its own ({story.foreign[0]}), not of an engine that is known here"
    if story.own:
        return ""
    frames = any(raised.frames for start in story.starts for raised in start.raised)
    if not frames and sum(bool(_CODE.match(line.text)) for line in story.few) >= _LEAST_CODE:
        return "this is a source file; what it could print was not printed"
    if story.ours:
        return ""
    if all(_COMMIT.fullmatch(line.text) for line in story.few) and len(story.few) > 1:
        return "this is the history of a repository, not a log of an engine"
    if name := next((name for line in story.few if (name := _logger(line))), ""):
        return f"this is a log of {name}, not of an engine that is known here"
    if not any(start.ready for start in story.starts) and story.lines > EXCERPT:
        return NOBODY_S
    if any(start.found for start in story.starts) and all(_told(start) for start in story.starts):
        return "this was written about a failure, and no line of it by an engine; give the log itself"
    return ""


def _logger(line: Line) -> str:
    """The program that a logger names, where that is no engine and nothing that runs within one."""
    found = _LOGGER.search(line.head)
    if found is None:
        return ""
    name = found["name"].partition(".")[0]
    known = {*_ANYONE_S, *(log.engine for log in log_words())}
    return "" if name.lower() in known else name


def _told(start: Start) -> bool:
    """Whether every line of it that shows a hazard is a sentence of somebody's."""
    return all(
        not each.line.level and (each.raised is None or not each.raised.frames) and _SOMEBODY.search(each.line.text)
        for each in start.found
    )
