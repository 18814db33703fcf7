"""Application files: backends and endpoints in TOML, checked without importing their code.

::

    [backends.small]
    code = "my_models:Classifier"
    init_args = ["small.onnx"]
    placement = "process"
    num_replicas = 2

    [endpoints.classify]
    route = "/classify"
    backend = "small"

All errors in a file are reported together, each with its line.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shoal.serving.app_file.backends import checked_backend
from shoal.serving.app_file.endpoints import EndpointChecks
from shoal.serving.app_file.flaws import AppFileRefused, Flaw, Flaws
from shoal.serving.app_file.positions import lines_of_keys
from shoal.serving.app_file.server import checked_server

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from shoal.serving.state.records import BackendRecord, EndpointRecord

_TABLES: Final = ("server", "backends", "endpoints")
_PLACE: Final = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")


@dataclass(frozen=True, kw_only=True)
class AppFile:
    name: str  # the path, as the user wrote it
    server: Mapping[str, Any]
    backends: Mapping[str, BackendRecord]
    endpoints: Mapping[str, EndpointRecord]
    flaws: Flaws  # later errors, when its code is imported


def read_app_file(path: str | os.PathLike[str]) -> AppFile:
    name = str(path)
    text = _text_of(name)
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise AppFileRefused([_not_toml(name, text, str(error))]) from None
    flaws = Flaws(name, lines_of_keys(text))
    given = flaws.table((), data, _TABLES)
    server = checked_server(flaws, given.get("server", {}))
    named = flaws.table(("backends",), given.get("backends", {}))
    backends = {tag: checked_backend(flaws, tag, one) for tag, one in named.items()}
    checks = EndpointChecks(flaws, named.keys())
    paths = flaws.table(("endpoints",), given.get("endpoints", {}))
    endpoints = {name: checks.checked(name, one) for name, one in paths.items()}
    flaws.refuse()
    return AppFile(
        name=name,
        server=server,
        backends={tag: one for tag, one in backends.items() if one is not None},
        endpoints={name: one for name, one in endpoints.items() if one is not None},
        flaws=flaws,
    )


def _text_of(name: str) -> str:
    try:
        return Path(name).read_bytes().decode().replace("\r\n", "\n")
    except OSError as error:
        raise AppFileRefused([Flaw(name, 0, "", f"can't be read: {error.strerror}")]) from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise AppFileRefused([Flaw(name, line, "", "is not in UTF-8, as TOML is")]) from None


def _not_toml(name: str, text: str, message: str) -> Flaw:
    found = _PLACE.search(message)
    line = int(found[1]) if found and found[1] else text.rstrip().count("\n") + 1
    return Flaw(name, line, "", f"is not TOML: {_PLACE.sub('', message)}")
