"""``/v1/embeddings``: each input is a call of its own, whose result is a vector."""

from __future__ import annotations

import base64
import math
import sys
from array import array
from functools import cache
from numbers import Real
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NotRequired

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict, override

from shoal.errors import ItemTooLarge
from shoal.http.openai.errors import of_invalid_item, refused, too_long
from shoal.http.openai.models import BodyRoute
from shoal.http.openai.text import count_words
from shoal.http.openai.text_request import LONGEST_NAME
from shoal.http.requests.call import EndpointCall
from shoal.http.requests.call_route import answered
from shoal.http.requests.endpoint import call_headers
from shoal.http.requests.exchange import JSON
from shoal.http.requests.json_type import JsonType, adapter_of
from shoal.http.requests.metadata import HttpMetadata
from shoal.http.requests.plain import encoded
from shoal.http.requests.problem import Refused

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from shoal.batching.batcher import Batcher
    from shoal.http.openai.models import Model, Models
    from shoal.http.requests.exchange import Exchange


@with_config(ConfigDict(extra="allow", strict=True))
class _Embeddings(TypedDict):
    model: Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]
    input: str | list[Any]
    encoding_format: NotRequired[Literal["float", "base64"] | None]
    dimensions: NotRequired[Annotated[int, Field(ge=1)] | None]


@cache
def _type() -> JsonType:
    """Returns the type of the bodies, once for all applications: it takes milliseconds to build."""
    return JsonType(adapter_of(_Embeddings))


class EmbeddingsRoute(BodyRoute):
    """Answers requests for embeddings.

    Args:
        models: The models.
        most_inputs: The most inputs of a request.
    """

    def __init__(self, models: Models, most_inputs: int) -> None:
        super().__init__()
        self._models = models
        self._most = most_inputs
        self._type = _type()

    @override
    def _begin(self, exchange: Exchange, body: bytes) -> Coroutine[Any, Any, None] | None:
        try:
            given: dict[str, Any] = self._type.parsed(exchange, body)
        except Refused as refusal:
            raise of_invalid_item(refusal) from None
        inputs = self._inputs(given["input"])
        model = self._models.of(given["model"])
        exchange.counted = model.counted
        job = _Job(exchange, model, inputs, given)
        call = EndpointCall(model.calls, exchange)
        call.now = exchange.arrived_at
        try:
            batcher = call.found(call_headers(exchange.headers))
            if batcher is None:
                rest: Coroutine[Any, Any, None] | None = _find(call, job)
            else:
                rest = self._make(call, job, batcher)
        except ItemTooLarge as error:
            raise too_long("An input", error, param="input") from None
        except BaseException:
            with call:
                raise
        return None if rest is None else _within(call, rest)

    def _make(
        self, call: EndpointCall, job: _Job, batcher: Batcher[Any]
    ) -> Coroutine[Any, Any, None] | None:
        items = job.items(call, batcher)
        if len(items) == 1:
            if call.is_suspended(items[0], job.metadata):
                job.exchange.suspend(self, _resumed, (call, job))
                return None
            if call.has_ended:
                return job.answer([call.pending_result()])
        return _wait(call, job, items)

    def _inputs(self, given: str | list[Any]) -> Sequence[str]:
        inputs = [given] if isinstance(given, str) else given
        if not inputs or len(inputs) > self._most:
            detail = f"There must be 1 to {self._most} inputs, and there are {len(inputs)}"
            raise refused(detail, param="input")
        if not all(isinstance(one, str) for one in inputs):
            raise refused("Inputs must be texts; tokens are not supported", param="input")
        return inputs


class _Job:
    """One request for embeddings.

    Args:
        exchange: The request.
        model: The model that is asked.
        inputs: The texts.
        given: The parameters of the request.

    Attributes:
        exchange: As above.
        metadata: The metadata of the calls.
    """

    __slots__ = ("_given", "_inputs", "_model", "exchange", "metadata")

    def __init__(
        self,
        exchange: Exchange,
        model: Model,
        inputs: Sequence[str],
        given: dict[str, Any],
    ) -> None:
        self.exchange = exchange
        self.metadata = HttpMetadata(model.endpoint.name, exchange)
        self._model = model
        self._inputs = inputs
        self._given = given

    def items(self, call: EndpointCall, batcher: Batcher[Any]) -> list[Any]:
        """Returns the item of each input.

        Raises:
            Refused: The model does not take them.
        """
        if call.streams:
            raise refused("The model gives texts, no embeddings", param="model")
        maker = self._model.maker(batcher)
        given = self._given
        if given.get("dimensions") is not None and "dimensions" not in maker.fields:
            raise refused(
                "The model does not take dimensions", param="dimensions", code="unsupported"
            )
        return [maker.item(text, given) for text in self._inputs]

    def answer(self, results: list[Any]) -> Coroutine[Any, Any, None] | None:
        """Answers with the results; returns what must be awaited for that.

        Raises:
            Refused: A result is no vector of finite numbers.
        """
        written = _in_base64 if self._given.get("encoding_format") == "base64" else _in_json
        data = b",".join([_ONE % (nth, written(result)) for nth, result in enumerate(results)])
        tokens = sum(map(self._model.count or count_words, self._inputs))
        body = _ANSWER % (data, self._model.name_json, tokens, tokens)
        return answered(self.exchange, JSON, body)


_ONE: Final = b'{"object":"embedding","index":%d,"embedding":%b}'
_ANSWER: Final = (
    b'{"object":"list","data":[%b],"model":%b,"usage":{"prompt_tokens":%d,"total_tokens":%d}}'
)


async def _find(call: EndpointCall, job: _Job) -> None:
    batcher = await call.find(call_headers(job.exchange.headers))
    await _wait(call, job, job.items(call, batcher))


async def _wait(call: EndpointCall, job: _Job, items: list[Any]) -> None:
    """Makes the calls of all inputs at once, and answers with their results."""
    if len(items) == 1:
        results = [await call.result(items[0], job.metadata)]
    else:
        results = await call.results(items, job.metadata)
    rest = job.answer(results)
    if rest is not None:
        await rest


async def _within(call: EndpointCall, rest: Coroutine[Any, Any, None]) -> None:
    with call:
        try:
            await rest
        except ItemTooLarge as error:
            raise too_long("An input", error, param="input") from None


def _resumed(exchange: Exchange) -> Coroutine[Any, Any, None] | None:
    """Answers a request whose call has ended meanwhile; returns what must be awaited for that."""
    call: EndpointCall
    job: _Job
    (call, job), exchange.kept = exchange.kept, None
    try:
        return job.answer([call.pending_result()])
    except BaseException:
        with call:
            raise


def _in_json(result: Any) -> bytes:
    """Returns the JSON of a vector: a list of numbers.

    Raises:
        Refused: It is none, or has a number that is not finite.
    """
    _check_vector(result)
    written = encoded(result)
    if _IN_NULL in written:  # as which such a number is written; numbers have no letter n
        raise _not_finite()
    return written


def _in_base64(result: Any) -> bytes:
    """Returns the JSON of a vector: the base64 of its numbers, in 32 bits each.

    Raises:
        Refused: It is none, or has a number that is not finite.
    """
    try:
        numbers = array("f", _check_vector(result))
    except OverflowError:
        raise _not_finite() from None
    if not math.isfinite(sum(numbers)):  # the sum of finite ones of 32 bits fits into 64
        raise _not_finite()
    if not _IS_LITTLE:
        numbers.byteswap()
    return b'"%b"' % base64.b64encode(numbers.tobytes())


def _not_finite() -> Refused:
    return refused("The model gave an embedding with a number that is not finite", status=500)


def _check_vector(result: Any) -> Sequence[Any]:
    """Returns the numbers of a vector.

    Raises:
        Refused: It is none.
    """
    given: object = result.tolist() if hasattr(result, "tolist") else result
    if type(given) in _LISTS:
        values: Sequence[Any] = given  # type: ignore[assignment]  # a list or a tuple
        kinds: set[type] = set(map(type, values))
        if kinds == _FLOATS or all(issubclass(kind, Real) for kind in kinds):
            return values
    raise refused(
        f"The model gives no embeddings: a result must be a vector of numbers, not {_form(given)}",
        param="model",
    )


def _form(given: object) -> str:
    """Returns a description of what is not a vector."""
    shape: list[str] = []
    while type(given) in _LISTS:
        values: Sequence[Any] = given  # type: ignore[assignment]  # a list or a tuple
        shape.append(str(len(values)))
        given = values[0] if values else 0.0
    if shape and isinstance(given, Real):
        return f"of shape ({', '.join(shape)}); return one row for each input"
    return "text" if isinstance(given, str) else f"{type(given).__name__}"


_LISTS: Final = frozenset({list, tuple})
_FLOATS: Final = {float}
_IN_NULL: Final = ord("n")
_IS_LITTLE: Final = sys.byteorder == "little"
