"""Pages for browsers: Swagger UI with the OpenAPI document, the page at ``/``, and their files.

The files are in packages; large ones are compressed there. Pages refer to them by relative paths,
since a proxy may have removed a prefix without saying so.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
import shlex
from functools import lru_cache
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import quote

import orjson

from shoal.http.json.stream_forms import weights

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from starlette.types import ASGIApp

Content: TypeAlias = tuple[bytes, bytes, tuple[tuple[bytes, bytes], ...]]
"""The media type, the body, and other headers of a response."""

HTML: Final = b"text/html; charset=utf-8"

_MEDIA_TYPES: Final = {"js": b"text/javascript; charset=utf-8", "css": b"text/css; charset=utf-8"}
# Swagger UI sets styles on elements, and its own pictures are in its style sheet.
_VIEWER_POLICY: Final = (
    "script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src data:; "
    "connect-src 'self'"
)
_VIEWER: Final = """\
<noscript>This page needs JavaScript. The same as data: <a href="openapi.json">openapi.json</a>\
</noscript>
<main id="viewer" data-documents="{documents}"></main>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
"""
_HOST: Final = re.compile(
    r"[A-Za-z0-9._-]{1,255}(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:[0-9]{1,5})?"
)
_PARAMETER: Final = re.compile(r"\{(\w+)(?::\w+)?\}")
_WITH_BODY: Final = ("POST", "PUT", "PATCH")
_JSON: Final = ("-H", "Content-Type: application/json", "--data", "@item.json")
_RAW: Final = ("--data-binary", "@item")
# The options of curl that send each kind of item.
_SENDING: Final = {"json": _JSON, "array": _JSON, "bytes": _RAW, "request": _RAW}
_STYLE: Final = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 0 auto; padding: 1.5rem; }
pre { overflow-x: auto; }
nav a { margin-right: 1rem; }
"""
_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_PAGE: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
{style}
</head>
<body>
{body}
</body>
</html>
"""


def viewer_page(title: str, mounted: Mapping[str, ASGIApp], root: str) -> Content:
    """Returns the page. It also offers the documents of mounted applications (``openapi_url``)."""
    documents = [{"name": title, "url": "openapi.json"}]
    for prefix, app in mounted.items():
        path: Any = getattr(app, "openapi_url", None)
        if isinstance(path, str) and path.startswith("/"):
            documents.append({"name": prefix or "/", "url": quote(f"{root}{prefix}{path}")})
    body = _VIEWER.format(documents=escape(orjson.dumps(documents).decode()))
    style = '<link rel="stylesheet" href="docs/swagger-ui.css">'
    text = _PAGE.format(title=escape(title), style=style, body=body)
    return _page(text, _VIEWER_POLICY)


def landing_page(
    title: str,
    links: Mapping[str, str],
    routes: Iterable[Mapping[str, Any]],
    operations: Mapping[str, Any],
    base: tuple[str, bytes, str],
) -> Content:
    """Returns the page at ``/``, with links to paths, and a ``curl`` command for each endpoint."""
    scheme, host, root = base
    start = quote(root) or "."
    anchors = [
        f'<a href="{escape(start + quote(path))}">{escape(name)}</a>'
        for name, path in links.items()
    ]
    url = f"{scheme}://{_plain(host)}{quote(root)}"
    calls = escape("\n".join(_curl(one, operations, url) for one in routes if one["path"]))
    title = escape(title)
    body = f"<h1>{title}</h1>\n<nav>{''.join(anchors)}</nav>\n<pre>\n{calls}\n</pre>"
    text = _PAGE.format(title=title, style=f"<style>{_STYLE}</style>", body=body)
    return _page(text, f"style-src 'sha256-{_HASH}'; img-src data:")


def _plain(host: bytes) -> str:
    """Returns the host as the client wrote it, or ``localhost`` if a shell could misread it."""
    text = host.decode("latin-1")
    return text if _HOST.fullmatch(text) else "localhost"


def _curl(route: Mapping[str, Any], operations: Mapping[str, Any], base: str) -> str:
    """Returns a command that calls an endpoint; values that it requires are in CAPITALS."""
    methods = route["methods"]
    method = next((one for one in _WITH_BODY if one in methods), methods[0])
    sending = _SENDING.get(route["takes"], ()) if method in _WITH_BODY else ()
    usual = "POST" if sending else "GET"
    operation = operations.get(_PARAMETER.sub(r"{\1}", route["path"]), {}).get(method.lower(), {})
    query = "&".join(
        [
            f"{quote(one['name'])}={quote(one['name'].upper())}"
            for one in operation.get("parameters", ())
            if one.get("required") and one["in"] == "query"
        ]
    )
    path = _PARAMETER.sub(lambda found: found[1].upper(), route["path"])
    words = [
        "curl",
        *(("-N",) if route["streams"] else ()),
        *(("--head",) if method == "HEAD" else () if method == usual else ("-X", method)),
        *sending,
        base + quote(path, safe="/:@!$&'()*+,;=~") + (query and f"?{query}"),
    ]
    return shlex.join(words)


def index_page(package: str, title: str, policy: str) -> Content:
    text = _read(package, "index.html")[0].decode()
    return _page(text.replace("{title}", escape(title)), policy)


def _page(text: str, policy: str) -> Content:
    """Returns a page that may load only what a ``Content-Security-Policy`` allows."""
    rest = "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    headers = (
        (b"cache-control", b"no-store"),
        (b"content-security-policy", f"default-src 'none'; {policy}; {rest}".encode("ascii")),
        (b"referrer-policy", b"no-referrer"),
        (b"x-content-type-options", b"nosniff"),
    )
    return HTML, text.encode("utf-8", "replace"), headers


def page_file(package: str, name: str, accept_encoding: bytes, max_age_s: int) -> Content:
    """Returns a file of a package's folder ``static``; browsers may keep it for ``max_age_s``."""
    body, is_compressed = _read(package, name)
    headers: tuple[tuple[bytes, bytes], ...] = (
        (b"cache-control", b"max-age=%d" % max_age_s if max_age_s else b"no-store"),
        (b"vary", b"accept-encoding"),
        (b"x-content-type-options", b"nosniff"),
    )
    if is_compressed and _accepts_gzip(accept_encoding):
        headers = (*headers, (b"content-encoding", b"gzip"))
    elif is_compressed:
        body = gzip.decompress(body)
    return _MEDIA_TYPES[name.rpartition(".")[2]], body, headers


@lru_cache(maxsize=16)
def _read(package: str, name: str) -> tuple[bytes, bool]:
    """Returns a file, and whether it is compressed."""
    folder = files(package) / "static"
    compressed = folder / f"{name}.gz"
    if compressed.is_file():
        return compressed.read_bytes(), True
    return (folder / name).read_bytes(), False


def _accepts_gzip(accept_encoding: bytes) -> bool:
    accepted = weights(accept_encoding)
    return accepted.get(b"gzip", accepted.get(b"*", 0.0)) > 0
