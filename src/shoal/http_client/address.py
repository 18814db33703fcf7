"""The address of a server, and what a client's requests to it have in common."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE: Final = re.compile(r"[\t\x20-\x7e]*")
# httpx refuses URLs above 65,536 characters.
_LONGEST_PATH: Final = 60_000
# What the connection itself sets.
_OF_CONNECTIONS: Final = frozenset({"connection", "content-length", "host", "transfer-encoding"})


def split_url(url: str) -> tuple[str, str | None]:
    """Returns the base of the requests' URLs, and the path of the UNIX socket, if it is one.

    Raises:
        TypeError: The URL is not text.
        ValueError: The URL has none of the forms of `shoal.http_client.connect`.
    """
    right = "write http://127.0.0.1:8000 or unix:/run/shoal.sock"
    if not isinstance(url, str):  # pyright: ignore[reportUnnecessaryIsInstance] (users' mistakes)
        raise TypeError(f"a server's URL must be text, not {url!r}; {right}")
    if url.startswith("unix:"):
        path = url.removeprefix("unix:")
        path = path.removeprefix("//") if path.startswith("///") else path
        if not path:
            raise ValueError(f"{url!r} has no path of a socket; {right}")
        return "http://localhost", path
    wrong = f"{url!r} is not a server's URL; {right}"
    if not url.isprintable() or " " in url:  # `urlsplit` drops line breaks
        raise ValueError(wrong)
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:  # the host or the port has another form
        raise ValueError(wrong) from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(wrong)
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError(f"a server's URL can't have a user, query or fragment; {right}")
    return url.rstrip("/"), None


def checked_path(path: str) -> str:
    """Checks the path of a request, which may have a query.

    Raises:
        TypeError: It is not text.
        ValueError: It does not begin with one slash, or can't be sent.
    """
    if not isinstance(path, str):  # pyright: ignore[reportUnnecessaryIsInstance] (users' mistakes)
        raise TypeError(f"the path of an endpoint must be text, such as '/embed', not {path!r}")
    if not path.startswith("/") or path.startswith("//"):
        raise ValueError(
            f"the path of an endpoint begins with one slash, as '/embed': {path[:100]!r}"
        )
    if not path.isprintable() or "#" in path or len(path) > _LONGEST_PATH:
        raise ValueError(
            f"the path of an endpoint has at most {_LONGEST_PATH} printable characters, without "
            f"'#'; quote others, as '/embed?text=a%0Ab': {path[:100]!r}"
        )
    return path


def checked_method(method: str) -> str:
    """Checks the method of a request.

    Raises:
        TypeError: It is not text.
        ValueError: It is no word that can be sent.
    """
    if not isinstance(method, str):  # pyright: ignore[reportUnnecessaryIsInstance] (users' mistakes)
        raise TypeError(f"an HTTP method must be text, such as 'PUT', not {method!r}")
    if not _NAME.fullmatch(method):
        raise ValueError(f"an HTTP method must be one word, such as 'PUT', not {method[:100]!r}")
    return method


def checked_headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    """Checks headers that a user gives, so that none injects another one.

    Returns:
        The headers, by names in lower case.

    Raises:
        TypeError: They are no mapping, or a name or a value is not text.
        ValueError: A name or a value is invalid, or the connection sets this header.
    """
    found: dict[str, str] = {}
    if headers is not None and not isinstance(headers, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] (users' mistakes)
        raise TypeError(
            f"headers must be a mapping, such as {{'X-Priority': '1'}}, not of type "
            f"{type(headers).__name__}"
        )
    for name, value in (headers or {}).items():
        if {type(name), type(value)} != {str}:
            raise TypeError(
                f"the name and the value of a header must be text, not {name!r} and a value of "
                f"type {type(value).__name__}"
            )
        if not _NAME.fullmatch(name) or name.lower() in _OF_CONNECTIONS:
            raise ValueError(f"a request can't be given the header {name!r}")
        if not _VALUE.fullmatch(value):  # which may be a secret
            raise ValueError(
                f"the value of the header {name!r} must be printable ASCII characters, without "
                "line breaks"
            )
        found[name.lower()] = value
    return found


def checked_token(token: str) -> str:
    """Checks a bearer token.

    Raises:
        TypeError: It is not text.
        ValueError: It has characters that can't be sent.
    """
    if not isinstance(token, str):  # pyright: ignore[reportUnnecessaryIsInstance] (users' mistakes)
        raise TypeError(f"a token must be text, not of type {type(token).__name__}")
    if not token.isascii() or not token.isprintable() or not token or " " in token:
        raise ValueError("a token must be printable ASCII characters, without spaces")
    return token
