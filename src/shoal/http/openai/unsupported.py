"""Parameters that change the meaning of a response with texts, and are not supported here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from shoal.http.openai.errors import refused

if TYPE_CHECKING:
    from collections.abc import Mapping

# What the answers have no form for, whatever the model takes.
_NEVER: Final = frozenset(
    {
        *("tools", "functions", "function_call", "tool_choice", "logprobs", "top_logprobs"),
        *("audio", "modalities", "echo", "best_of", "web_search_options"),
    }
)
# What a model may take itself.
_BY_MODEL: Final = frozenset({"response_format", "logit_bias", "suffix", "prediction"})
SPECIAL: Final = _NEVER | _BY_MODEL
"""The names of the parameters."""


def _changes_nothing(name: str, value: Any, n: int) -> bool:
    """Returns whether a response without the parameter is what the client wants."""
    if value is None:  # not given
        return True
    if name == "response_format":
        return bool(value == {"type": "text"})
    if name == "modalities":
        return bool(value == ["text"])
    if name in ("tool_choice", "function_call"):
        return bool(value in ("none", "auto"))  # without tools
    if name == "best_of":
        return type(value) is int and value == n
    # A number that says how many logprobs of a completion are wanted may be 0, and means some.
    return value is False or value in ("", [], {}) or (name == "top_logprobs" and value == 0)


def check_supported(given: Mapping[str, Any], n: int, fields: frozenset[str]) -> None:
    """Refuses such parameters, unless the model takes them (`fields`) itself."""
    for name in SPECIAL.intersection(given):
        is_models = name in _BY_MODEL and name in fields
        if not is_models and not _changes_nothing(name, given[name], n):
            raise refused(
                f"The parameter {name} is not supported here", param=name, code="unsupported"
            )
