"""vLLM's generic DSA models with our indexer. Imported only where vLLM loads one of them (routing.py)."""

from __future__ import annotations

from vllm.model_executor.models import deepseek_mtp, deepseek_v2

from attnfit.engines.vllm.plugin.indexer import module, op

# The model's code makes its indexers by these names; only this process, which serves such a model, sees them changed.
op.define()
deepseek_v2.DeepseekV32IndexerCache = module.IndexerCache
deepseek_v2.SparseAttnIndexer = op.SparseIndexer
deepseek_v2.Indexer = module.Indexer

DeepseekV32ForCausalLM = deepseek_v2.DeepseekV3ForCausalLM
GlmMoeDsaForCausalLM = deepseek_v2.GlmMoeDsaForCausalLM
DeepSeekMTP = deepseek_mtp.DeepSeekMTP
