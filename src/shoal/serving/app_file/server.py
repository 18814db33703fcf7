"""The table ``[server]`` of an application file: the settings of the server."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from shoal.asgi.http_options import FILE_OPTIONS
from shoal.asgi.option_checks import check_known
from shoal.core.options.option import Option, one_of, whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.serving.app_file.flaws import Flaws


EventLoopName = Literal["trio", "asyncio"]
"""The event loop of a server's process; asyncio runs on uvloop if that is installed."""

Server = Literal["shoal", "hypercorn"]
"""What speaks HTTP: Shoal's own server, or stock Hypercorn."""

NOT_ON_HYPERCORN: Final = (
    *("workers", "max_connections", "send_timeout_s", "head_timeout_s", "body_timeout_s"),
    *("max_headers", "max_target_bytes"),
)
"""The settings of a server that Hypercorn has nothing for."""

Workers = int | Literal["auto"]
"""How many processes speak HTTP for a server; "auto" for as many as there are other cores."""


def checked_server(flaws: Flaws, value: Any) -> dict[str, Any]:
    """Returns the given settings; those that have errors are None."""
    found: dict[str, Any] = {}
    for name, one in flaws.table(("server",), value, _OPTIONS).items():
        given = None if one == "none" else one
        found[name] = flaws.checked(("server", name), _OPTIONS[name].checked, name, given)
    schemes: Any = found.get("security_schemes") or {}
    flaws.checked(("server", "security"), check_known, found.get("security") or (), schemes)
    return found


def checked_workers(name: str, value: Any) -> Workers:
    if value == "auto":
        return "auto"
    if isinstance(value, str):
        raise ValueError(f'{name} must be a whole number or "auto", not {value!r}')
    found = whole(name, value, least=1)
    if found > _MOST_WORKERS:
        raise ValueError(f"{name} must be at most {_MOST_WORKERS}, not {value!r}")
    return found


_MOST_WORKERS: Final = 256
_OPTIONS: Final[Mapping[str, Option]] = {
    "event_loop": Option(partial(one_of, allowed=get_args(EventLoopName))),
    "server": Option(partial(one_of, allowed=get_args(Server))),
    "workers": Option(checked_workers),
    **FILE_OPTIONS,
}
