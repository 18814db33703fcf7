"""The stderr of a server: its log, as lines of text or JSON, and its progress while it loads."""

from __future__ import annotations

import json
import logging
import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Self

from shoal.batching.current import trace_ids
from shoal.commands.support.output import indented, printable, say

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.asgi.http_options import HttpOptions


LOG_FORMATS: Final = ("text", "json")

_OWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_PLAIN: Final = (str, int, float, bool, type(None))


def configure_logging(level: str, form: str, options: HttpOptions) -> None:
    """Sets up the logs; called again after the start, since the application may change logging."""
    root = logging.getLogger()
    if all(isinstance(handler, logging.NullHandler) for handler in root.handlers):
        handler = logging.StreamHandler()
        handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
        root.addHandler(handler)
        root.setLevel(level.upper())
    if options.access_log:
        from shoal.server.access_log import LOGGER

        access_log = logging.getLogger(LOGGER)
        if not access_log.handlers:
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("%(message)s"))
            access_log.addHandler(handler)
        access_log.setLevel(logging.INFO)
        access_log.propagate = False


class TextFormatter(logging.Formatter):
    """Lines for people, with the ids of the trace and span, if any."""

    # Messages and exceptions may quote text of a client. Therefore control characters are escaped,
    # and each line of a record after the first is indented.

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return indented(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - of logging
        line = super().formatMessage(record)
        ids = _ids_of(record)
        return line if ids is None else f"{line} trace_id={ids[0]} span_id={ids[1]}"


class JsonFormatter(logging.Formatter):
    """A JSON object in each line; omits fields that are unknown or not plain values."""

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
    own: Any = getattr(record, "trace_id", None), getattr(record, "span_id", None)
    return own if all(isinstance(one, str) for one in own) else trace_ids()


def _is_plain(value: Any) -> bool:
    if type(value) in (list, tuple):
        return all(type(one) in _PLAIN for one in value)
    return type(value) in _PLAIN


_QUIET_S: Final = 1.0
_LOOKS_EACH_S: Final = 1.0


class Progress:
    """Reports what a block does, if it takes longer than a second."""

    # There is a line whenever the parts change. A thread writes the lines, since the block may hold
    # this one.
    # `doing` is like "importing my_module:app"; `parts` returns the names that are still loading.
    def __init__(self, doing: str, parts: Callable[[], Sequence[str]] = tuple) -> None:
        self._doing = doing
        self._parts = parts
        self._began = time.monotonic()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._speak, name="shoal-progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._is_over.set()
        self._thread.join()

    def finish(self, done: str) -> None:
        """Ends the lines, and reports how long it took: `done` is like "imported my_module:app"."""
        self.__exit__()
        took_s = time.monotonic() - self._began
        if took_s > _QUIET_S:
            say(f"Shoal {done} in {took_s:.1f} s")

    def _speak(self) -> None:
        last = ""
        self._is_over.wait(_QUIET_S)
        while not self._is_over.is_set():
            names = ", ".join(self._parts())
            text = f"Shoal is {self._doing}{f': {names}' if names else ''}"
            if text != last:
                say(text)
            last = text
            self._is_over.wait(_LOOKS_EACH_S)
