"""What a vLLM release's own command-line parser does with a list of flags, from a table `attnfit learn` wrote.

    table = load_table("0.33.0")
    parsed = parse_flags(table, ["--model", "./m", "-tp", "8"], env={}, form="module")

Parts: `table` (the data), `prepare` (what vLLM does to the list before argparse sees it), `parser` (argparse),
`convert` (text to value), `schema` and `checks` (config objects given as JSON).
"""

from attnfit.engines.vllm.flags.parse import flag_error, lenient_values, parse_flags
from attnfit.engines.vllm.flags.table import Flag, Table, known_releases, load_table

__all__ = ["Flag", "Table", "flag_error", "known_releases", "lenient_values", "load_table", "parse_flags"]
