"""The table ``[server]`` of an application file: the settings of the server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from shoal.core.options.checks import seconds, whole, yes_or_no
from shoal.serving.config.replicas import more_than_0

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shoal.serving.app_file.flaws import Flaws


EventLoop = Literal["trio", "asyncio"]
"""The event loop of a server's process; asyncio runs on uvloop if that is installed."""


def checked_server(flaws: Flaws, value: Any) -> dict[str, Any]:
    """Checks the table.

    Args:
        flaws: Collects the errors.
        value: The file's value under ``server``.

    Returns:
        The settings that were given, without those that have errors.
    """
    found: dict[str, Any] = {}
    for name, one in flaws.table(("server",), value, SERVER_CHECKS).items():
        try:
            found[name] = SERVER_CHECKS[name](name, None if one == "none" else one)
        except (TypeError, ValueError) as error:
            flaws.add(("server", name), str(error))
    return found


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(f'{name} must be text, such as "127.0.0.1", not {value!r}')
    return value


def _port(name: str, value: Any) -> int:
    if whole(name, value, least=0) > 65535:
        raise ValueError(f"{name} must be from 0 to 65535, not {value!r}")
    return int(value)


def _at_least_1(name: str, value: Any) -> int:
    return whole(name, value, least=1)


def _seconds_or_none(name: str, value: Any) -> float | None:
    return None if value is None else more_than_0(name, value)


def _overload_status(name: str, value: Any) -> int:
    if value not in (503, 429):
        raise ValueError(f"{name} must be 503 or 429, not {value!r}")
    return int(value)


def _event_loop(name: str, value: Any) -> EventLoop:
    if value not in get_args(EventLoop):
        raise ValueError(f'{name} must be "trio" or "asyncio", not {value!r}')
    found: EventLoop = value
    return found


SERVER_CHECKS: Final[Mapping[str, Callable[[str, Any], Any]]] = {
    "host": _text,
    "port": _port,
    "event_loop": _event_loop,
    "graceful_timeout_s": seconds,
    "send_timeout_s": more_than_0,
    "max_connections": _at_least_1,
    "keep_alive_timeout_s": more_than_0,
    "access_log": yes_or_no,
    "max_body_bytes": _at_least_1,
    "max_json_elements": _at_least_1,
    "answer_timeout_s": _seconds_or_none,
    "heartbeat_s": more_than_0,
    "overload_status": _overload_status,
    "retry_after_s": _at_least_1,
    "debug": yes_or_no,
}
"""The settings, and the check of each."""
