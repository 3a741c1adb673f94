"""Reading a crash: lines of a log in, the first cause out. Pure: it opens nothing and asks nobody.

`story` follows the log through its starts, `cause` says what went wrong first, `cure` writes the command instead.
"""

from attnfit.explain.cause import Answer, Cause, explain
from attnfit.explain.marks import marks
from attnfit.explain.story import Story, follow

__all__ = ["Answer", "Cause", "Story", "explain", "follow", "marks"]
