"""The only rooms that start, stop or write: engines under watch, records of them, units.

`keeper` holds an engine's processes together, `process` speaks with it, `watch` follows one start from the first line
to the end, `pivot` decides what is tried next, `records` keeps what happened.
"""
