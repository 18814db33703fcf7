"""``/v1/embeddings``: each input is a call of its own, whose result is a vector."""

from __future__ import annotations

import base64
from array import array
from functools import partial
from numbers import Real
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired

import anyio
import orjson
from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict, override

from shoal.batching.calls.leaving import run_unless_left
from shoal.errors import ItemTooLarge
from shoal.http.openai.errors import of_invalid_item, refused
from shoal.http.openai.messages import usage_json
from shoal.http.openai.models import OpenAIRoute
from shoal.http.openai.text import count_words
from shoal.http.openai.text_calls import UnwatchedCaller
from shoal.http.openai.text_request import LONGEST_NAME
from shoal.http.requests.call import EndpointCall
from shoal.http.requests.endpoint import call_headers
from shoal.http.requests.exchange import JSON
from shoal.http.requests.json_type import JsonType, adapter_of
from shoal.http.requests.metadata import HttpMetadata
from shoal.http.requests.problem import Refused
from shoal.http.requests.results import encoded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.http.openai.models import Model, Models, TokenCount
    from shoal.http.requests.exchange import Exchange


@with_config(ConfigDict(extra="allow", strict=True))
class _Embeddings(TypedDict):
    model: Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]
    input: str | list[Any]
    encoding_format: NotRequired[Literal["float", "base64"] | None]
    dimensions: NotRequired[Annotated[int, Field(ge=1)] | None]


class EmbeddingsRoute(OpenAIRoute):
    """Answers requests for embeddings.

    Args:
        models: The models.
        most_inputs: The most inputs of a request.
        count: Counts the tokens of a text; None to count words and marks.
    """

    def __init__(self, models: Models, most_inputs: int, count: TokenCount | None) -> None:
        super().__init__()
        self._models = models
        self._most = most_inputs
        self._count = count or count_words
        self._type = JsonType(adapter_of(_Embeddings))

    @override
    async def answer(self, exchange: Exchange) -> None:
        body = await exchange.body()
        try:
            given: dict[str, Any] = self._type.parsed(exchange, body)
        except Refused as refusal:
            raise of_invalid_item(refusal) from None
        inputs = self._inputs(given["input"])
        model = self._models.of(given["model"])
        exchange.endpoint = model.endpoint.name
        values = {name: value for name, value in given.items() if value is not None}
        results = await run_unless_left(
            exchange.departure, partial(_results, exchange, model, inputs, values)
        )
        as_text = given.get("encoding_format") == "base64"
        vectors = [_vector(result, as_text=as_text) for result in results]
        tokens = sum(map(self._count, inputs))
        data = b",".join(
            [
                b'{"object":"embedding","index":%d,"embedding":%b}' % pair
                for pair in enumerate(vectors)
            ]
        )
        usage = usage_json(tokens, 0).replace(b',"completion_tokens":0', b"")
        answer = b'{"object":"list","data":[%b],"model":%b,"usage":%b}'
        await exchange.answer(200, JSON, answer % (data, orjson.dumps(model.name), usage))

    def _inputs(self, given: str | list[Any]) -> Sequence[str]:
        inputs = [given] if isinstance(given, str) else given
        if not inputs or len(inputs) > self._most:
            raise refused(f"There must be 1 to {self._most} inputs", param="input")
        if not all(isinstance(one, str) for one in inputs):
            raise refused("Inputs must be texts; tokens are not supported", param="input")
        return inputs


async def _results(
    exchange: Exchange, model: Model, inputs: Sequence[str], values: dict[str, Any]
) -> list[Any]:
    """Makes the calls of all inputs at once; returns their results.

    Raises:
        Exception: The first one of a call that failed; the others are cancelled.
    """
    results: list[Any] = [None] * len(inputs)
    failures: list[Exception] = []
    metadata = HttpMetadata(model.endpoint.name, exchange)
    headers = call_headers(exchange.headers)

    async def run(nth: int, text: str) -> None:
        try:
            with EndpointCall(model.calls, UnwatchedCaller(exchange)) as call:
                maker = model.maker(await call.find(headers))
                if call.streams:
                    raise refused("The model gives texts, no embeddings", param="model")
                if "dimensions" in values and "dimensions" not in maker.fields:
                    raise refused(
                        "The model does not take dimensions",
                        param="dimensions",
                        code="unsupported",
                    )
                results[nth] = await call.result(maker.item(text, values), metadata)
        except Exception as error:
            failures.append(error)
            tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for nth, text in enumerate(inputs):
            tasks.start_soon(run, nth, text)
    try:
        if failures:
            if isinstance(failures[0], ItemTooLarge):
                raise refused("An input is too long", code="context_length_exceeded", param="input")
            raise failures[0]
    finally:
        failures.clear()  # their tracebacks hold this frame
    return results


def _vector(result: Any, *, as_text: bool) -> bytes:
    """Returns the JSON of a vector: a list of numbers, or the base64 of their 32 bits each.

    Raises:
        Refused: It is none.
    """
    values: Any = result.tolist() if hasattr(result, "tolist") else result
    if not _is_vector(values):
        raise refused("The model gives no embeddings, perhaps texts", param="model")
    if not as_text:
        return encoded(result)
    numbers = array("f", values)
    if not _IS_LITTLE:
        numbers.byteswap()
    return b'"%b"' % base64.b64encode(numbers.tobytes())


def _is_vector(values: Any) -> bool:
    if type(values) not in (list, tuple):
        return False
    kinds: set[type] = set(map(type, values))
    return all(issubclass(kind, Real) for kind in kinds)


_IS_LITTLE = array("H", [1]).tobytes() == b"\1\0"
