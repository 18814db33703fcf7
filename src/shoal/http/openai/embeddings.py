"""``/v1/embeddings``: each input is a call of its own, whose result is a vector."""

from __future__ import annotations

import base64
import math
import sys
from array import array
from numbers import Real
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NotRequired

from pydantic import Field, with_config
from typing_extensions import override

from shoal.errors import ItemTooLarge
from shoal.http.json.endpoint import call_headers
from shoal.http.openai.bodies import OPEN, Body, read_body
from shoal.http.openai.errors import refused, too_long
from shoal.http.openai.items import TextMaker, prompts_of
from shoal.http.openai.models import OpenAIRoute
from shoal.http.requests.call import EndpointCall
from shoal.http.requests.exchange import JSON
from shoal.http.requests.plain import encoded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.http.openai.models import Models
    from shoal.http.requests.exchange import Exchange
    from shoal.http.requests.problem import Refused


@with_config(OPEN)
class _Embeddings(Body):
    input: str | list[Any]
    encoding_format: NotRequired[Literal["float", "base64"] | None]
    dimensions: NotRequired[Annotated[int, Field(ge=1)] | None]


class EmbeddingsRoute(OpenAIRoute):
    def __init__(self, models: Models, most_inputs: int) -> None:
        super().__init__()
        self._models = models
        self._most = most_inputs

    @override
    async def answer(self, exchange: Exchange) -> None:
        params = read_body(_Embeddings, exchange, await exchange.body())
        inputs = prompts_of(params["input"], "input")
        if len(inputs) > self._most:
            detail = f"There must be 1 to {self._most} inputs, and there are {len(inputs)}"
            raise refused(detail, param="input")
        model = self._models.of(params.get("model"), TextMaker)
        exchange.counted = model.counted
        with EndpointCall(model.calls, exchange) as call:
            batcher = await call.find(call_headers(exchange.headers))
            if call.streams:
                raise refused("The model gives texts, no embeddings", param="model")
            maker = model.maker(batcher, TextMaker)
            if params.get("dimensions") is not None and "dimensions" not in maker.fields:
                raise refused(
                    "The model does not take dimensions", param="dimensions", code="unsupported"
                )
            fitting = [model.fitting(maker, one, "input") for one in inputs]
            try:
                results = await call.results([maker.item(one, params, "input") for one in fitting])
            except ItemTooLarge as error:
                raise too_long("An input", error, param="input") from None
            written = _in_base64 if params.get("encoding_format") == "base64" else _in_json
            data = b",".join([_ONE % (nth, written(result)) for nth, result in enumerate(results)])
            tokens = sum(map(model.tokens_in, inputs))
            await exchange.answer(200, JSON, _ANSWER % (data, model.name_json, tokens, tokens))


_ONE: Final = b'{"object":"embedding","index":%d,"embedding":%b}'
_ANSWER: Final = (
    b'{"object":"list","data":[%b],"model":%b,"usage":{"prompt_tokens":%d,"total_tokens":%d}}'
)


def _in_json(result: Any) -> bytes:
    """Raises `Refused` if a result is no vector, or has a number that is not finite."""
    _check_vector(result)
    written = encoded(result)
    if _IN_NULL in written:  # infinity and NaN are written as null; numbers have no letter n
        raise _not_finite()
    return written


def _in_base64(result: Any) -> bytes:
    """Returns the base64 of 32-bit floats; raises `Refused` as `_in_json` does."""
    try:
        numbers = array("f", _check_vector(result))
    except OverflowError:
        raise _not_finite() from None
    if not math.isfinite(sum(numbers)):  # the sum of finite 32-bit numbers fits into 64 bits
        raise _not_finite()
    if not _IS_LITTLE:
        numbers.byteswap()
    return b'"%b"' % base64.b64encode(numbers.tobytes())


def _not_finite() -> Refused:
    return refused("The model gave an embedding with a number that is not finite", status=500)


def _check_vector(result: Any) -> Sequence[Any]:
    """Returns the numbers of a vector; raises `Refused` if it is none."""
    vector: object = result.tolist() if hasattr(result, "tolist") else result
    if type(vector) in _LISTS:
        values: Sequence[Any] = vector  # type: ignore[assignment]  # a list or a tuple
        if all(issubclass(kind, Real) for kind in set(map(type, values))):
            return values
    raise refused(
        f"The model gives no embeddings: a result must be a vector of numbers, not {_form(vector)}",
        param="model",
    )


def _form(value: object) -> str:
    """Describes a result that is not a vector."""
    shape: list[str] = []
    while type(value) in _LISTS:
        values: Sequence[Any] = value  # type: ignore[assignment]  # a list or a tuple
        shape.append(str(len(values)))
        value = values[0] if values else 0.0
    if shape and isinstance(value, Real):
        return f"of shape ({', '.join(shape)}); return one row for each input"
    return "text" if isinstance(value, str) else f"{type(value).__name__}"


_LISTS: Final = frozenset({list, tuple})

_IN_NULL: Final = ord("n")
_IS_LITTLE: Final = sys.byteorder == "little"
