"""vLLM's part of the witness: a release's own predicates, run straight from its source files.

Everything here except `client` and `distribution` is standard library only and imports nothing of attnfit outside this
package and `attnfit.witness`: it runs inside the isolated child process.

    release = Release(root, "0.33.0", env)      # root holds vllm/; env: env.default_env(...)
    release.ask(question).chosen                # question: fields of core.Question, capability "12.0" or (12, 0)
    with release.context(question):             # the same circumstances, for single predicates
        release.backend("FLASH_ATTN").supports_head_size(128)
"""
