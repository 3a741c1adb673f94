"""GGUF: the header of a file or of a split set, read without its tensors, and the model it describes.

`header` reads the published format, `sets` puts the parts of a split set together, `traits` turns the keys into the
form of a config.json. None of them imports numpy or the `gguf` package.
"""

from attnfit.inputs.gguf.header import Array, Header, Tensor, read_header
from attnfit.inputs.gguf.sets import GgufFiles, open_beside, read_gguf, read_set

__all__ = ["Array", "GgufFiles", "Header", "Tensor", "open_beside", "read_gguf", "read_header", "read_set"]
