"""The indexer of DeepSeek-V3.2 and GLM-5, which says what a token attends to: index logits, top-k, the key cache."""

from attnfit.kernels.indexer.cache_writer import write_index_cache
from attnfit.kernels.indexer.logits import index_logits, index_logits_paged
from attnfit.kernels.indexer.topk import index_topk

__all__ = ["index_logits", "index_logits_paged", "index_topk", "write_index_cache"]
