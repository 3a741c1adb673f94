"""Who picks the keys of a sparse layer: DeepGEMM's kernels where there are some, else our indexer.

Standard library only: `check` reads it. vLLM's indexers call DeepGEMM. Its package imports on every GPU, so a launch
without its kernels stops at the first batch, after the weights have loaded; `missing` says it before.
"""

from __future__ import annotations

# Families of GPUs that a release says DeepGEMM has kernels for, besides 9.0: 0.16.0 vllm/utils/deep_gemm.py:73; then
# `support_deep_gemm`, vllm/platforms/cuda.py (0.23.0:557, 0.28.0:669, 0.30.0:721, 0.32.0:689, 0.33.0:691).
_FAMILIES = {
    "0.16.0": (10,),
    "0.23.0": (10,),
    "0.28.0": (10, 12),
    "0.30.0": (10, 12),
    "0.32.0": (10, 12),
    "0.33.0": (10, 12),
}
NOT_IN_WHEEL = ("0.16.0",)  # no vllm/third_party/deep_gemm

# Architectures whose layers our backend was written for, and those of them whose indexer ours can take the place of.
OURS = ("DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM")
POOLED = ("Glm5NextForCausalLM", "Glm5NextForConditionalGeneration")  # an indexer of their own, over pools of keys
KNOWN = (*OURS, *POOLED)
_DRAFTS = ("DeepSeekMTPModel", "DeepseekV32MTPModel")  # the draft models' own names, as their layers see them
# With our indexer they are built by vLLM's generic classes (indexer/routing.py): architecture -> whose class that is.
GENERIC = {
    "DeepseekV32ForCausalLM": "DeepseekV3ForCausalLM",
    "GlmMoeDsaForCausalLM": "DeepseekV3ForCausalLM",
    "DeepseekV32MTPModel": "DeepSeekMTPModel",
}

TRIED_ON: tuple[tuple[int, int], ...] = ()  # capabilities of GPUs on which the plug-in was run in vLLM


def deep_gemm_serves(release: str, capability: tuple[int, int]) -> bool:
    """Whether DeepGEMM has an indexer's kernels for that GPU. release: one of `serves.RELEASES`."""
    return capability == (9, 0) or capability[0] in _FAMILIES[release]


def missing(
    release: str, capability: tuple[int, int], architecture: str, *, dtype: str, own: bool, variable: str
) -> str:
    """Why nothing can pick the keys, in one sentence; "" where something can.

    dtype: of the model, vLLM's name. own: our indexer is switched on; variable: what switches it on.
    """
    if architecture in POOLED and dtype != "bfloat16":
        # models/glm5next/common/attention.py:225 and :361 (0.30.0: nvidia/attention.py:246 and :380).
        return (
            f"the indexer of {POOLED[0]} multiplies by a weight that vLLM keeps in bfloat16, and stops in {dtype} at "
            "the first batch; give --dtype bfloat16"
        )
    if deep_gemm_serves(release, capability) or (own and architecture in (*OURS, *_DRAFTS)):
        return ""
    gpu = "compute capability {}.{}".format(*capability)
    if architecture in (*OURS, *_DRAFTS):
        return (
            f"the indexer of vLLM {release} needs DeepGEMM, which has no kernels for {gpu}; set {variable}=1 for "
            "attnfit's own indexer"
        )
    if architecture in POOLED:
        architecture = POOLED[0]  # whose layers they are, within a multimodal model too
    return (
        f"the indexer of {architecture} needs DeepGEMM, which has no kernels for {gpu}; attnfit's own indexer is for "
        f"{' and '.join(OURS)}"
    )
