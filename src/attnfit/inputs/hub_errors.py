"""What went wrong between here and the hub: one sentence each, with what to do. Never the library's own text.

The library's messages hold addresses that may be signed, and its classes differ between its major releases, so errors
are told apart by their names and by the status of the answer.
"""

from __future__ import annotations

import re

from attnfit.errors import UnknownAnswer
from attnfit.inputs.hub_ref import HubRef, HubSettings

#: libraries whose exceptions mean that the far end could not be reached, or went away
_TRANSPORT = frozenset(("httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3", "ssl", "socket", "http"))


class Unreachable(UnknownAnswer):
    """The hub cannot be asked now: offline, no connection, busy, broken. What the cache holds still counts."""


def sentence(error: Exception, ref: HubRef, settings: HubSettings, what: str = "") -> UnknownAnswer | None:
    """The error to show for what huggingface_hub raised, or None where it is none of the hub's (a fault of ours).

    what: the file that was asked for; empty: the repository itself.
    """
    names = {cls.__name__ for cls in type(error).__mro__}
    repo, host = ref.repo, settings.host
    page = f"https://{host}/{repo}" if "://" not in host else f"{host}/{repo}"
    if "GatedRepoError" in names:
        return UnknownAnswer(
            f"{repo} is gated: accept its terms at {page}, then log in with `hf auth login` or set HF_TOKEN to a token "
            "of that account; or give a directory with its config.json"
        )
    if "RevisionNotFoundError" in names:
        return UnknownAnswer(f"{repo} has no revision {ref.revision!r}; its branches and tags are at {page}/tree/main")
    if "EntryNotFoundError" in names and "LocalEntryNotFoundError" not in names:
        return missing_file(ref, settings, what)
    if "DisabledRepoError" in names:
        return UnknownAnswer(f"{repo} has been disabled on {host}; give another copy of the model")
    status = _status(error)
    if "RepositoryNotFoundError" in names or (status == 401 and not has_token(settings)):
        return UnknownAnswer(
            f"{repo} is no path here, and {host} shows no such model"
            f"{' to this token' if has_token(settings) else ' without a token'}; check the spelling, and for a private "
            "one log in with `hf auth login` or set HF_TOKEN"
        )
    if "OfflineModeIsEnabled" in names:
        return offline(ref, settings)
    if status is not None:
        return _answered(error, status, ref, settings)
    if "HFValidationError" in names or "HfUriError" in names:
        return UnknownAnswer(f"{repo} is no path here and cannot be a hub id; write org/name")
    if isinstance(error, UnicodeError | ValueError) and not _transport(error):
        return _odd_header(error, ref, settings)
    if "LocalEntryNotFoundError" in names or "FileMetadataError" in names:
        cause = error.__cause__
        inner = sentence(cause, ref, settings, what) if isinstance(cause, Exception) else None
        return inner or not_a_hub(ref, settings)
    if _transport(error) or isinstance(error, OSError):
        return Unreachable(
            f"{ref} is no path here, and {host} cannot be reached ({_kind(error, names)}); check the connection and "
            "HF_ENDPOINT, or give a directory with the model's config.json"
        )
    return None


def offline(ref: HubRef, settings: HubSettings) -> Unreachable:
    """Asked to stay offline, and the cache does not have it."""
    where = f" {settings.cache}" if settings.cache else ""
    return Unreachable(
        f"{ref} is no path here and not in the hub cache{where}, and offline mode is on (HF_HUB_OFFLINE); run once "
        f"without it, or `hf download {ref.repo} config.json`, or give a directory"
    )


def not_a_hub(ref: HubRef, settings: HubSettings) -> Unreachable:
    """The far end answers, but with something else."""
    return Unreachable(
        f"{ref} is no path here, and {settings.host} does not answer as the hub does; check HF_ENDPOINT and the proxy"
    )


def missing_file(ref: HubRef, settings: HubSettings, what: str) -> UnknownAnswer:
    return UnknownAnswer(
        f"{ref.repo}{f' at {ref.revision}' if ref.revision else ''} on {settings.host} has no {what or 'such file'}; "
        "check the name, or give a directory with the model's config.json"
    )


def has_token(settings: HubSettings) -> bool:
    from huggingface_hub import get_token

    return bool(settings.token or get_token())


def _answered(error: Exception, status: int, ref: HubRef, settings: HubSettings) -> UnknownAnswer:
    host = settings.host
    if status == 401:
        return UnknownAnswer(
            f"{host} refuses the token given for {ref.repo}; make a new one (`hf auth login`, HF_TOKEN), or unset it "
            "for a public model"
        )
    if status == 403:
        return UnknownAnswer(
            f"{host} forbids this token to read {ref.repo}; use one with read access to it, or give a directory with "
            "its config.json"
        )
    if status == 404:
        return UnknownAnswer(f"{host} has nothing under that name for {ref}; check the spelling")
    if status == 429:
        wait = f", wait {seconds} s" if (seconds := _wait(error)) else ""
        login = "" if has_token(settings) else "log in (`hf auth login`) for a higher limit, "
        return Unreachable(
            f"{ref} is no path here, and {host} takes no more requests for now (429{wait}); try again later, {login}"
            "or give a directory with the model's config.json"
        )
    if status >= 500 or status == 408:
        return Unreachable(
            f"{ref} is no path here, and {host} is in trouble (it answered {status}); try again later, or give a "
            "directory with the model's config.json"
        )
    return UnknownAnswer(f"{host} answered {status} for {ref}; check HF_ENDPOINT, or give a directory")


def _odd_header(error: Exception, ref: HubRef, settings: HubSettings) -> UnknownAnswer | None:
    """A token that no request can carry makes the HTTP library fail before it sends anything."""
    if isinstance(error, UnicodeError) or "header" in str(error).lower():
        return UnknownAnswer("the hub token holds characters that no token has; set HF_TOKEN to the token alone")
    return not_a_hub(ref, settings)


def _status(error: Exception) -> int | None:
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    return status if isinstance(status, int) else None


def _wait(error: Exception) -> int | None:
    """Seconds the hub asks to wait: `Retry-After`, or `t=` of its `RateLimit` header."""
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    text = headers.get("Retry-After") or ""
    if not text.isdecimal():
        found = re.search(r"\bt=(\d+)", headers.get("RateLimit") or headers.get("ratelimit") or "")
        text = found[1] if found else ""
    return int(text) if text and len(text) < 7 else None


def _transport(error: Exception) -> bool:
    return any(cls.__module__.partition(".")[0] in _TRANSPORT for cls in type(error).__mro__)


def _kind(error: Exception, names: set[str]) -> str:
    if any("Timeout" in n for n in names):
        return "it does not answer in time"
    if any("Proxy" in n for n in names):
        return "the proxy refuses"
    if any("SSL" in n for n in names) or "SSL" in str(error) or "CERTIFICATE" in str(error):
        return "its certificate is not accepted"
    broken = ("RemoteProtocolError", "ReadError", "ChunkedEncodingError", "IncompleteRead")
    if any(n in broken for n in names) or any(w in str(error) for w in ("aborted", "broke", "Consistency check")):
        return "the connection broke off"
    if "InvalidURL" in names or "UnsupportedProtocol" in names:
        return "its address is none"
    return "no connection"
