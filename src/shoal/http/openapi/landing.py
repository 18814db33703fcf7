"""The page at ``/`` of an application that has nothing else there: how to call what it serves.

It shows what ``/-/routes`` shows, as a page for a browser and as JSON for others.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
import shlex
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import orjson

from shoal.http.openapi.page import HTML, Sent, page_headers, root_of
from shoal.http.requests.accept import VARIES
from shoal.http.requests.exchange import JSON
from shoal.http.websocket.sockets import SUBPROTOCOL
from shoal.serving.names import RESERVED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from starlette.types import Scope

    from shoal.asgi.http_options import HttpOptions

MOST_SHOWN: Final = 200
"""The most endpoints that are shown."""

_HOST: Final = re.compile(
    r"[A-Za-z0-9._-]{1,255}(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:[0-9]{1,5})?"
)
_PARAMETER: Final = re.compile(r"\{(\w+)(?::\w+)?\}")
# The options of curl that send an item of each kind.
_SENDING: Final = {
    "json": ("-H", "Content-Type: application/json", "--data", "@item.json"),
    "array": ("-H", "Content-Type: application/json", "--data", "@item.json"),
    "bytes": ("--data-binary", "@item"),
    "request": ("--data-binary", "@item"),
}
_STYLE: Final = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 0 auto; padding: 1.5rem; }
h1 { font-size: 1.6rem; }
h2 { font-size: 1.1rem; margin: 1.6rem 0 .3rem; }
pre { overflow-x: auto; padding: .7rem; border: 1px solid light-dark(#ccc, #555);
  border-radius: .4rem; background: light-dark(#f6f6f6, #222); }
.note { color: light-dark(#555, #aaa); font-weight: normal; font-size: .95rem; }
nav a { margin-right: 1rem; }
"""
_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_POLICY: Final = f"style-src 'sha256-{_HASH}'; img-src data:"


def landing_page(
    options: HttpOptions,
    routes: Sequence[Mapping[str, Any]],
    mounts: Sequence[str],
    scope: Scope,
    headers: Mapping[bytes, bytes],
    *,
    operations: Mapping[str, Any],
    protocols: Sequence[tuple[str, str]] = (),
    has_dashboard: bool = False,
) -> Sent:
    """Returns the page, in the form that the client accepts.

    Args:
        options: The options of the application.
        routes: The endpoints, as ``/-/routes`` has them.
        mounts: The prefixes of mounted applications.
        scope: The ASGI scope of the request.
        headers: The headers of the request.
        operations: The operations of the endpoints, by path and method, as the OpenAPI document has
            them; may be empty.
        protocols: The other protocols in which they are called: the title of each, and the path at
            which it begins, which may be empty.
        has_dashboard: Whether the client may see the dashboard.
    """
    root, base = quote(root_of(scope)), _base(scope, headers)
    reached = [one for one in routes if one["path"] is not None]
    shown = [{**one, "call": _curl(one, operations, base)} for one in reached[:MOST_SHOWN]]
    others = [{"title": title, "start": first and f"{root}{first}"} for title, first in protocols]
    pages = _links(options, has_dashboard=has_dashboard)
    links = {name: f"{root}{RESERVED}/{page}" for name, page in pages}
    if b"text/html" in headers.get(b"accept", b"").lower():
        # A proxy may have taken a prefix away without saying so; this page's own path ends in "/".
        start = root or "."
        near = {name: url if root else f".{url}" for name, url in links.items()}
        by_path = [(title, first and f"{start}{first}") for title, first in protocols]
        text = "".join(_lines(options.title, shown, len(reached), by_path, mounts, start, near))
        return Sent(HTML, text.encode("utf-8", "replace"), (*page_headers(_POLICY), VARIES))
    body = orjson.dumps(
        {
            "title": options.title,
            "endpoints": shown,
            "protocols": others,
            "websocket": SUBPROTOCOL,
            "mounts": mounts,
            "links": links,
        }
    )
    return Sent(JSON, body, ((b"cache-control", b"no-store"), VARIES))


def _links(options: HttpOptions, *, has_dashboard: bool) -> Iterator[tuple[str, str]]:
    if options.openapi:
        yield "docs", "docs"
        yield "openapi", "openapi.json"
    if has_dashboard:
        yield "dashboard", "dashboard"
    yield "health", "readyz"
    yield "metrics", "metrics"
    yield "routes", "routes"


def _base(scope: Scope, headers: Mapping[bytes, bytes]) -> str:
    """Returns the URL of the application as the client wrote it, as far as that is a plain one."""
    host = headers.get(b"host", b"").decode("latin-1")
    if not _HOST.fullmatch(host):
        host = "localhost"
    return f"{scope.get('scheme', 'http')}://{host}{quote(root_of(scope))}"


def _curl(route: Mapping[str, Any], operations: Mapping[str, Any], base: str) -> str:
    """Returns a command that calls an endpoint, with what it requires in capitals."""
    methods = route["methods"]
    method = next((one for one in ("POST", "PUT", "PATCH") if one in methods), methods[0])
    sending = _SENDING.get(route["takes"], ()) if method in ("POST", "PUT", "PATCH") else ()
    path = _PARAMETER.sub(lambda found: found[1].upper(), route["path"])
    template = _PARAMETER.sub(lambda found: f"{{{found[1]}}}", route["path"])
    needed = _required(operations.get(template, {}).get(method.lower(), {}))
    query = "&".join([f"{quote(name)}={quote(name.upper())}" for name in needed["query"]])
    words = [
        "curl",
        *(("-N",) if route["streams"] else ()),
        *_method_words(method, is_sending=bool(sending)),
        *sending,
        *[word for name in needed["header"] for word in ("-H", f"{name}: {name.upper()}")],
        base + quote(path, safe="/:@!$&'()*+,;=~") + (f"?{query}" if query else ""),
    ]
    return shlex.join(words)


def _required(operation: Mapping[str, Any]) -> dict[str, list[str]]:
    """Returns the names of the parameters that a call must have, by where they are."""
    found: dict[str, list[str]] = {"query": [], "header": []}
    for one in operation.get("parameters", ()):
        if one.get("required") and one["in"] in found:
            found[one["in"]].append(one["name"])
    return found


def _method_words(method: str, *, is_sending: bool) -> tuple[str, ...]:
    if method == "HEAD":
        return ("--head",)
    usual = "POST" if is_sending else "GET"
    return () if method == usual else ("-X", method)


def _lines(
    title: str,
    shown: Sequence[Mapping[str, Any]],
    count: int,
    protocols: Sequence[tuple[str, str]],
    mounts: Sequence[str],
    start: str,
    links: Mapping[str, str],
) -> Iterator[str]:
    escaped = html.escape(title)
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    yield f'<title>{escaped}</title>\n<link rel="icon" href="data:,">\n'
    yield f"<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{escaped}</h1>\n<nav>"
    for name, url in links.items():
        yield f'<a href="{html.escape(url)}">{name}</a>'
    yield "</nav>\n"
    for one in shown:
        takes = one["takes"] or "not known here"
        form = "a stream" if one["streams"] else "one result"
        yield f"<h2><code>{html.escape(one['path'])}</code> "
        yield f'<span class="note">{html.escape(", ".join(one["methods"]))} · '
        yield f"{html.escape(one['name'])} · takes: {html.escape(takes)} · answers with {form}"
        yield f"</span></h2>\n<pre>{html.escape(one['call'])}</pre>\n"
    if not shown:
        yield "<p>There is no endpoint with a path.</p>\n"
    if count > len(shown):
        yield f"<p>And {count - len(shown)} more.</p>\n"
    if shown:
        yield "<p>Each is also called by a WebSocket at its path, by the sub-protocol "
        yield f"<code>{SUBPROTOCOL}</code>.</p>\n"
    for name, first in protocols:
        url = html.escape(first)
        yield f"<p>{html.escape(name)}"
        yield f': <a href="{url}">{url.removeprefix(".")}</a></p>\n' if url else "</p>\n"
    for prefix in mounts:
        url = html.escape(f"{start}{quote(prefix)}")
        yield f'<p>Another application: <a href="{url}">{html.escape(prefix)}</a></p>\n'
    yield "</body>\n</html>\n"
