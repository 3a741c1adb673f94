"""Whether a launch fits into the GPU's memory: pure arithmetic, no I/O, no engine's conventions.

Bytes are whole numbers; what cannot be known without the GPU is a `Span` of bytes with both ends stated.
"""
