"""The only room that reads a log: whatever form it was kept in, its lines come out plain and with who wrote them.

`source` opens it, `lines` picks the lines worth reading, `prefixes` takes off what was put in front of them.
"""

from attnfit.inputs.log.lines import Line, Marks, read_lines
from attnfit.inputs.log.source import Count, blocks, open_log

__all__ = ["Count", "Line", "Marks", "blocks", "open_log", "read_lines"]
