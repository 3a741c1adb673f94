"""What the server itself checks of its flags once they are parsed, before anything loads.

Read in vllm/entrypoints/openai/cli_args.py (0.12 to 0.23) and vllm/entrypoints/common/cli_args.py (0.33),
validate_parsed_serve_args: these two pairs are the same in all of them.
"""

from __future__ import annotations

from attnfit.engines.vllm.launch.state import ParsedFlags, Refusal

# flag -> the flag it cannot do without
_NEEDS = {"enable_auto_tool_choice": "tool_call_parser", "enable_log_outputs": "enable_log_requests"}
_WHERE = "vllm/entrypoints/common/cli_args.py (validate_parsed_serve_args)"
_SOCKET = "vllm/entrypoints/launchers/launcher.py (create_server_socket)"  # openai/api_server.py up to 0.28
_NO_PORT = ("headless", "uds", "grpc")


def check_served(flags: ParsedFlags) -> None:
    """Raises Refusal (stage parse_flags) for a flag whose partner is missing."""
    for flag, needed in _NEEDS.items():
        if flags.get(flag) and not flags.get(needed):
            names = [f"--{name.replace('_', '-')}" for name in (flag, needed)]
            raise Refusal("parse_flags", f"TypeError: Error: {names[0]} requires {names[1]}", _WHERE)
    port = flags.values.get("port")
    if isinstance(port, int) and not 0 <= port <= 65535 and not any(flags.values.get(name) for name in _NO_PORT):
        # Python's own words; the server binds its port before it reads the model
        raise Refusal("parse_flags", "OverflowError: bind(): port must be 0-65535.", _SOCKET)
