"""Our indexer in vLLM's generic DSA model, where DeepGEMM has no kernels: GPUs of 8.0 to 8.9 and 11.0, and CPUs.

vLLM's own quantises queries with Triton code that needs e4m3 (8.9) and asks DeepGEMM for logits (9.0, 10.x, 12.x). Ours
keeps queries in 16 bits and uses attnfit's writer, logits and top-k. Nothing is changed unless such a model is loaded.
"""
