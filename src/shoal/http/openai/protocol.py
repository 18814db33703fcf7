"""The protocol: its options, and its routes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from shoal.core.options.option import whole
from shoal.http.openai.errors import PREFIX, no_such_path
from shoal.http.openai.inputs import ClassifyRoute, EmbeddingsRoute, RerankRoute, ScoreRoute
from shoal.http.openai.models import ModelsPage, OpenAIModels, OpenAIRoute, Tokens
from shoal.http.openai.texts.chats import read_text_request
from shoal.http.openai.texts.responses_request import read_response_request
from shoal.http.openai.texts.text_route import TextRoute
from shoal.http.openai.texts.transcriptions import read_transcription_request
from shoal.http.requests.dispatch import ProblemRoute, Route
from shoal.http.requests.protocol import HttpProtocol, ProtocolRoutes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from shoal.asgi.http_options import HttpOptions
    from shoal.http.openai.texts.text_route import ReadJob
    from shoal.serving.controller.controller import Controller


def chat_prompt(messages: Sequence[Mapping[str, Any]]) -> str:
    """Makes lines ``role: content``, then ``assistant:``, if no template is given."""
    lines = [f"{one['role']}: {one['content']}" for one in messages]
    lines.append("assistant:")
    return "\n".join(lines)


class OpenAI(HttpProtocol):
    """OpenAI's HTTP API, under ``/v1/``: the endpoints that take text are its models.

    ::

        app = shoal.App(protocols=[OpenAI(chat_template=template)])

        @app.endpoint("/llama", name="llama", fill="continuous", streams=True)
        async def llama(batch: shoal.OpenBatch[str, str]) -> None: ...

    A model is an endpoint by its name. Its handler takes prompts (``list[str]``), or records with a
    field ``prompt``, ``text`` or ``input``, and fields for those parameters of a request that it
    knows, such as ``max_tokens`` or ``temperature``. A model of texts gives a text, or a stream of
    its pieces; one of embeddings or classes gives a vector. A model that ranks documents takes
    pairs of texts, and gives a number. One that transcribes takes the bytes of a file.

    Args:
        models: The name of the endpoint of each model, if only some endpoints are models, or
            if they have other names.
        chat_template: Makes a prompt from the messages of a chat: dicts with ``role`` and
            ``content``, which is text, and other keys of the client. If it raises an
            exception, the client gets its text with status 400. It is not used where the handler's
            record has a field ``messages``. Further parameters get the request's parameters of
            their names, such as ``tools``.
        count_tokens: Returns the number of tokens of a text. By default a piece of a stream is a
            token, and in prompts and whole texts words and marks are counted.
        decode_tokens: Returns the text of tokens, for clients that send lists of integers to a
            model of texts. A handler of ``list[list[int]]`` takes them as they are.
        max_choices: The most texts of a response: ``n`` for each prompt.
        max_messages: The most messages of a chat.
        max_inputs: The most inputs of a request for embeddings, classes or scores, such as the
            documents to rank.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: A limit is below 1.
    """

    title = "OpenAI's HTTP API"
    start = f"{PREFIX}/models"

    def __init__(
        self,
        *,
        models: Mapping[str, str] | None = None,
        chat_template: Callable[..., str] = chat_prompt,
        count_tokens: Callable[[str], int] | None = None,
        decode_tokens: Callable[[Sequence[int]], str] | None = None,
        max_choices: int = 128,
        max_messages: int = 1024,
        max_inputs: int = 2048,
    ) -> None:
        functions = {
            "chat_template": chat_template,
            "count_tokens": count_tokens,
            "decode_tokens": decode_tokens,
        }
        for name, function in functions.items():
            if function is not None and not callable(function):
                raise TypeError(f"{name} must be a function, not {function!r}")
        names: Sequence[Any] = () if models is None else [*models, *models.values()]
        if not all(isinstance(name, str) for name in names):
            raise TypeError(f"models must map names of models to those of endpoints, not {models}")
        self._names = None if models is None else dict(models)
        self._tokens = Tokens(chat_template, count_tokens, decode_tokens)
        self._max_choices = whole("max_choices", max_choices, least=1)
        self._max_messages = whole("max_messages", max_messages, least=1)
        self._max_inputs = whole("max_inputs", max_inputs, least=1)

    def routes(self, controller: Controller, options: HttpOptions) -> ProtocolRoutes:
        models = OpenAIModels(controller, options, self._names, self._tokens)
        page = ModelsPage(models)
        most = self._max_inputs
        routes: list[tuple[str, str, Route]] = [
            (f"{PREFIX}/models", "GET", page),
            (f"{PREFIX}/models/{{model:path}}", "GET", page),
            (f"{PREFIX}/embeddings", "POST", EmbeddingsRoute(models, most)),
            (f"{PREFIX}/classify", "POST", ClassifyRoute(models, most)),
            (f"{PREFIX}/score", "POST", ScoreRoute(models, most)),
            (f"{PREFIX}/rerank", "POST", RerankRoute(models, most, returns_documents=True)),
            # Cohere's second version, whose client has a base URL without a version.
            ("/v2/rerank", "POST", RerankRoute(models, most, returns_documents=False)),
        ]
        read = partial(read_text_request, models, self._max_messages, self._max_choices)
        texts: dict[str, ReadJob] = {
            "completions": partial(read, chat=False),
            "chat/completions": partial(read, chat=True),
            "responses": partial(read_response_request, models, self._max_messages),
            "audio/transcriptions": partial(read_transcription_request, models),
        }
        for path, read_job in texts.items():
            routes.append((f"{PREFIX}/{path}", "POST", TextRoute(read_job)))
        return _Routes(routes)


class _Routes(ProtocolRoutes):
    def __init__(self, routes: Sequence[tuple[str, str, Route]]) -> None:
        self._routes = routes

    def besides(self) -> Iterable[tuple[str, str, Route]]:
        return self._routes

    def elsewhere(self, path: str) -> Route | None:
        refusal = no_such_path(path)
        return None if refusal is None else _NotFound(refusal.problem)


class _NotFound(ProblemRoute, OpenAIRoute):
    """Answers at unknown paths of the protocol."""
