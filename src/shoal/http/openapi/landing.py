"""The page at ``/``, unless the application serves something else there.

It links to the other pages, and shows a ``curl`` command for each endpoint.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
import shlex
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from shoal.http.openapi.page import Content, page, root_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from starlette.types import Scope

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
_POLICY: Final = f"style-src 'sha256-{_HASH}'; img-src data:"
_PAGE: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<h1>{title}</h1>
<nav>{links}</nav>
<pre>
{calls}
</pre>
</body>
</html>
"""


def landing_page(
    title: str,
    links: Mapping[str, str],
    routes: Iterable[Mapping[str, Any]],
    operations: Mapping[str, Any],
    scope: Scope,
    host: bytes,
) -> Content:
    """Returns the page, with links to paths and with the ``routes`` of ``/-/routes``."""
    root = root_of(scope)
    base = f"{scope.get('scheme', 'http')}://{_plain(host)}{quote(root)}"
    # A proxy may have removed a prefix without saying so, so links are relative to this page.
    start = quote(root) or "."
    anchors = [
        f'<a href="{html.escape(start + quote(path))}">{html.escape(name)}</a>'
        for name, path in links.items()
    ]
    calls = [html.escape(_curl(one, operations, base)) for one in routes if one["path"]]
    text = _PAGE.format(
        title=html.escape(title), style=_STYLE, links="".join(anchors), calls="\n".join(calls)
    )
    return page(text, _POLICY)


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
    template = _PARAMETER.sub(r"{\1}", route["path"])
    operation = operations.get(template, {}).get(method.lower(), {})
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
