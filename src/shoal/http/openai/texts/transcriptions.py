"""``/v1/audio/transcriptions``: the text of a file with speech, whole or streamed.

Of the formats, ``json`` and ``text`` are made here. The others have times, which only a model
knows: one whose items have a field ``response_format`` gives the text or the record of a format.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException

from shoal.core.extras import advice
from shoal.http.json.content_coding import decompressed
from shoal.http.json.whole_request import WholeRequest
from shoal.http.openai.errors import LONGEST_NAME, refused
from shoal.http.openai.items import AudioMaker
from shoal.http.openai.texts.chats import EventStream, event
from shoal.http.openai.texts.text_job import Audio, TextJob
from shoal.http.requests.exchange import JSON, Exchange
from shoal.http.requests.plain import encoded
from shoal.http.requests.problem import Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.http.openai.models import OpenAIModels
    from shoal.http.openai.texts.results import TextOutput

_MOST_FIELDS: Final = 64
_PLAIN_TEXT: Final = b"text/plain; charset=utf-8"
_FORMATS: Final = {
    "json": JSON,
    "text": _PLAIN_TEXT,
    "srt": _PLAIN_TEXT,
    "vtt": b"text/vtt; charset=utf-8",
    "verbose_json": JSON,
    "diarized_json": JSON,
}
_YES_OR_NO: Final = {"true": True, "1": True, "false": False, "0": False, "": False}


async def read_transcription_request(
    models: OpenAIModels, exchange: Exchange, body: bytes
) -> TranscriptJob:
    params = await _read_form(exchange, body)
    content = params.pop("file", None)
    if not isinstance(content, bytes):
        raise refused("There must be a file", param="file")
    name = params.get("model") or None
    if name is not None and (not isinstance(name, str) or len(name) > LONGEST_NAME):
        raise refused("model must be a name", param="model")
    form = params.get("response_format") or "json"
    if form not in _FORMATS:
        formats = ", ".join(_FORMATS)
        raise refused(f"response_format must be one of {formats}", param="response_format")
    stream = params.get("stream", "")
    if stream not in _YES_OR_NO:
        raise refused("stream must be true or false", param="stream")
    params["stream"] = _YES_OR_NO[stream]
    model = models.of(name, AudioMaker)
    return TranscriptJob(exchange, model, params, Audio(content), file_form=form)


async def _read_form(exchange: Exchange, body: bytes) -> dict[str, Any]:
    """Returns the fields of a form; those whose names end with ``[]`` are lists."""
    media_type = exchange.headers.get(b"content-type", b"").lower()
    if not media_type.startswith(b"multipart/form-data"):
        raise Refused.of("unsupported-media-type", "Send a form, as multipart/form-data.")
    whole = WholeRequest(exchange.scope, decompressed(exchange, body))
    params: dict[str, Any] = {}
    try:
        form = whole.form(max_files=1, max_fields=_MOST_FIELDS)
        async with form as fields:
            for name, value in fields.multi_items():
                if isinstance(value, UploadFile):
                    params |= {name: await value.read(), "filename": value.filename}
                elif name.endswith("[]"):
                    params.setdefault(name[:-2], list[str]()).append(value)
                else:
                    params[name] = value
    except (MultiPartException, ValueError) as error:
        raise refused(f"The form is not accepted: {error}") from None
    except AssertionError:  # Starlette found no parser
        detail = f"The server needs {advice('bodies')} for forms."
        raise Refused.of("unsupported-media-type", detail) from None
    return params


@dataclass(eq=False)
class TranscriptJob(TextJob):
    special: ClassVar[frozenset[str]] = frozenset({"response_format"})
    passes: ClassVar[Sequence[str]] = (
        *("task", "language", "languages", "duration", "segments", "words", "usage"),
    )

    file_form: str = "json"

    @property
    def media_type(self) -> bytes:
        return _FORMATS[self.file_form]

    def changes_nothing(self, name: str) -> bool:
        return self.params[name] in ("", "json", "text")

    def form(self, output: TextOutput) -> _TranscriptEvents:
        return _TranscriptEvents(output)

    def whole(self, outputs: Sequence[TextOutput]) -> bytes:
        [output] = outputs
        if self.media_type is not JSON:
            return output.text.encode()
        logprobs = output.logprobs
        more = {} if logprobs is None else {"logprobs": logprobs.get("content", logprobs)}
        return encoded({"text": output.text, **output.fields, **more})


class _TranscriptEvents(EventStream):
    def __init__(self, output: TextOutput) -> None:
        self._output = output
        self.runs_users_code = output.end.counts

    def item(self, value: Any) -> bytes:
        piece = self._output.take(value)
        self._output.keep(piece)
        self.is_over = self._output.end.reason is not None
        if not piece.text:
            return b""
        return event({"type": "transcript.text.delta", "delta": piece.text})

    def end(self) -> bytes:
        return event({"type": "transcript.text.done", "text": self._output.text})
