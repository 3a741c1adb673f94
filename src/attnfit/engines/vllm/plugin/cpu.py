"""DSA models on vLLM's CPU build, which refuses them: the platform plug-in, found through `vllm.platform_plugins`.

vLLM asks before it has chosen its platform, so nothing of it that needs one is imported here.
"""

from __future__ import annotations

PATH = "attnfit.engines.vllm.plugin.cpu_platform.DsaCpuPlatform"


def platform() -> str | None:
    """The entry point: the path of our platform's class; None for vLLM's own, where ours is not asked for."""
    from attnfit.engines.vllm.plugin import say, settings

    if not settings.is_on(settings.CPU):
        return None
    try:
        from vllm.platforms import cpu_platform_plugin

        from attnfit.engines.vllm.plugin import releases

        if cpu_platform_plugin() is None:
            return None  # a build for GPUs
        releases.running(on_cpu=True)
    except Exception as error:  # vLLM logs it at DEBUG only, and the launch would stop later for another reason
        say(f"attnfit's CPU platform is not loaded: {error}")
        return None
    return PATH
