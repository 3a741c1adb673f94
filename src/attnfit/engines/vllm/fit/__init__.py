"""vLLM's own conventions about memory: KV cache specs and groups, sharded weights, what the budget is."""
