"""The log of a server on stderr: lines for people, or a JSON object in each line."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from shoal.batching.trace import trace_ids
from shoal.commands.support.mistake import indented, printable

if TYPE_CHECKING:
    from shoal.asgi.http_options import HttpOptions

LOG_FORMATS: Final = ("text", "json")

_OWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_PLAIN: Final = (str, int, float, bool, type(None))


def write_logs(level: str, form: str, options: HttpOptions) -> None:
    """Sets up the logs; called again after the start, since the application may change logging."""
    root = logging.getLogger()
    if all(isinstance(handler, logging.NullHandler) for handler in root.handlers):
        handler = logging.StreamHandler()
        handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
        root.addHandler(handler)
        root.setLevel(level.upper())
    if options.access_log:
        from shoal.server.access_log import LOGGER

        _write_plainly(logging.getLogger(LOGGER))


def _write_plainly(logger: logging.Logger) -> None:
    """Makes a logger write bare messages from level INFO on, to stderr by default."""
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


class TextFormatter(logging.Formatter):
    """Lines for people, with the ids of the trace and span, if any."""

    # Messages and exceptions may quote text of a client. Therefore control characters are escaped,
    # and each line of a record after the first is indented.

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    @override
    def format(self, record: logging.LogRecord) -> str:
        return indented(super().format(record))

    @override
    def formatMessage(self, record: logging.LogRecord) -> str:
        line = super().formatMessage(record)
        ids = _ids_of(record)
        return line if ids is None else f"{line} trace_id={ids[0]} span_id={ids[1]}"


class JsonFormatter(logging.Formatter):
    """A JSON object in each line; omits fields that are unknown or not plain values."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        found: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in vars(record).items():
            if name not in _OWN and name not in found and _is_plain(value):
                found[name] = value
        if record.exc_info is not None and record.exc_info[0] is not None:
            found["error"] = record.exc_info[0].__qualname__
            found["traceback"] = self.formatException(record.exc_info)
        if (ids := _ids_of(record)) is not None:
            found["trace_id"], found["span_id"] = ids
        return printable(json.dumps(found))


def _ids_of(record: logging.LogRecord) -> tuple[str, str] | None:
    """Returns the ids of the trace and span of a record: its own, or the current ones."""
    own: Any = getattr(record, "trace_id", None), getattr(record, "span_id", None)
    return own if all(isinstance(one, str) for one in own) else trace_ids()


def _is_plain(value: Any) -> bool:
    if type(value) in (list, tuple):
        return all(type(one) in _PLAIN for one in value)
    return type(value) in _PLAIN
