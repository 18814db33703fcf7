"""Requests with many inputs: each is a call of its own, which joins batches as any other."""

from __future__ import annotations

import base64
import math
import sys
import time
from abc import abstractmethod
from array import array
from collections.abc import Mapping, Sequence
from itertools import chain
from numbers import Real
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    NamedTuple,
    NotRequired,
    cast,
)

from orjson import Fragment
from pydantic import Field, with_config

from shoal.errors import ItemTooLarge
from shoal.http.openai.errors import OPEN, Body, read_body, refused, too_long
from shoal.http.openai.items import ItemMaker, PairMaker, Params, Prompt, TextMaker, prompts_of
from shoal.http.openai.models import OpenAIModel, OpenAIModels, OpenAIRoute
from shoal.http.requests.exchange import JSON, Exchange
from shoal.http.requests.plain import encoded

if TYPE_CHECKING:
    from shoal.http.requests.problem import Refused

    Pair = tuple[str, str]


_LISTS: Final = frozenset({list, tuple})
_IN_NULL: Final = ord("n")
_IS_LITTLE: Final = sys.byteorder == "little"


def in_json(result: Any) -> bytes:
    """Raises `Refused` if a result is no vector, or has a number that is not finite."""
    vector_of(result, "embeddings")
    written = encoded(result)
    if _IN_NULL in written:  # infinity and NaN are written as null; numbers have no letter n
        raise _not_finite("an embedding")
    return written


def in_base64(result: Any) -> bytes:
    """Returns the base64 of 32-bit floats; raises `Refused` as `in_json` does."""
    try:
        numbers = array("f", vector_of(result, "embeddings"))
    except OverflowError:
        raise _not_finite("an embedding") from None
    if not math.isfinite(sum(numbers)):  # the sum of finite 32-bit numbers fits into 64 bits
        raise _not_finite("an embedding")
    if not _IS_LITTLE:
        numbers.byteswap()
    return b'"%b"' % base64.b64encode(numbers.tobytes())


def vector_of(result: Any, what: str) -> Sequence[Any]:
    """Returns the numbers of a vector; raises `Refused` if it is none."""
    vector: object = result.tolist() if hasattr(result, "tolist") else result
    if type(vector) in _LISTS:
        values: Sequence[Any] = vector  # type: ignore[assignment]  # a list or a tuple
        if all(issubclass(kind, Real) for kind in set(map(type, values))):
            return values
    raise refused(
        f"The model gives no {what}: a result must be a vector of numbers, not {_form(vector)}",
        param="model",
    )


def finite_vector(result: Any, what: str) -> list[float]:
    return [finite(one, what) for one in vector_of(result, what)]


def number_of(result: Any, what: str) -> float:
    """Returns a number, alone or as the only one of a vector; raises `Refused` if it is none."""
    number: object = result.tolist() if hasattr(result, "tolist") else result
    if type(number) in _LISTS:
        values: Sequence[Any] = number  # type: ignore[assignment]  # a list or a tuple
        if len(values) == 1:
            number = values[0]
    if isinstance(number, Real):
        return finite(number, what)
    raise refused(
        f"The model gives no {what}: a result must be a number, not {_form(number)}", param="model"
    )


def finite(number: Any, what: str) -> float:
    try:
        value = float(number)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise _not_finite(what)
    return value


def _not_finite(what: str) -> Refused:
    return refused(f"The model gave {what} with a number that is not finite", status=500)


def _form(value: object) -> str:
    shape: list[str] = []
    while type(value) in _LISTS:
        values: Sequence[Any] = value  # type: ignore[assignment]  # a list or a tuple
        shape.append(str(len(values)))
        value = values[0] if values else 0.0
    if shape and isinstance(value, Real):
        return f"of shape ({', '.join(shape)}); return one row for each input"
    return "text" if isinstance(value, str) else f"{type(value).__name__}"


class Asked(NamedTuple):
    model: OpenAIModel
    request_id: str
    params: Params
    inputs: Sequence[Any]  # prompts, or pairs of texts

    @property
    def tokens(self) -> int:
        parts: list[Any] = [one if type(one) is tuple else (one,) for one in self.inputs]
        return sum(map(self.model.tokens_in, chain.from_iterable(parts)))

    def listed(self, kind: str, **more: Any) -> bytes:
        """Returns the response of a kind, with further members."""
        return encoded({"id": f"{kind}-{self.request_id}", **self.about, **more})

    @property
    def about(self) -> dict[str, Any]:
        usage = {"prompt_tokens": self.tokens, "total_tokens": self.tokens}
        return {"object": "list", "model": self.model.name, "usage": usage}


class InputsRoute(OpenAIRoute):
    body: ClassVar[type[Mapping[str, Any]]]
    make: ClassVar[type[ItemMaker]] = TextMaker
    # The client's name of the inputs.
    param = "input"
    # What the results are.
    gives: ClassVar[str]

    def __init__(self, models: OpenAIModels, most: int) -> None:
        super().__init__()
        self._models = models
        self._most = most

    async def handle(self, exchange: Exchange) -> None:
        params = read_body(self.body, exchange, await exchange.body())
        inputs = self.inputs(params)
        if not 0 < len(inputs) <= self._most:
            detail = f"There must be 1 to {self._most} inputs, and there are {len(inputs)}"
            raise refused(detail, param=self.param)
        model = self._models.of(params.get("model"), self.make)
        exchange.count_under(model.calls)
        call = await model.calls.call_for(exchange)
        if call.batcher.streams:
            raise refused(f"The model gives texts, no {self.gives}", param="model")
        maker = model.maker(call.batcher, self.make)
        items = [self.item(model, maker, one, params) for one in inputs]
        try:
            results = await call.results(items)
        except ItemTooLarge as error:
            raise too_long("An input", error, param=self.param) from None
        asked = Asked(model, exchange.request_id, params, inputs)
        await exchange.respond(200, JSON, self.written(asked, results))

    @abstractmethod
    def inputs(self, params: Params) -> Sequence[Any]: ...

    @abstractmethod
    def item(self, model: OpenAIModel, maker: Any, one: Any, params: Params) -> Any:
        """Returns the item of an input; `maker` is one of `make`."""

    @abstractmethod
    def written(self, asked: Asked, results: Sequence[Any]) -> bytes: ...


class TextsRoute(InputsRoute):
    def inputs(self, params: Params) -> Sequence[Prompt]:
        return prompts_of(params["input"], "input")

    def item(self, model: OpenAIModel, maker: TextMaker, one: Prompt, params: Params) -> Any:
        return maker.item((model.fitting(maker, one, "input"),), params, ("input",))


@with_config(OPEN)
class _Embeddings(Body):
    input: str | list[Any]
    encoding_format: NotRequired[Literal["float", "base64"] | None]
    dimensions: NotRequired[Annotated[int, Field(ge=1)] | None]


class EmbeddingsRoute(TextsRoute):
    body: ClassVar[type[Mapping[str, Any]]] = _Embeddings
    gives: ClassVar[str] = "embeddings"

    def item(self, model: OpenAIModel, maker: TextMaker, one: Prompt, params: Params) -> Any:
        if params.get("dimensions") is not None and "dimensions" not in maker.fields:
            detail = "The model does not take dimensions: its items have no field 'dimensions'"
            raise refused(detail, param="dimensions", code="unsupported")
        return super().item(model, maker, one, params)

    def written(self, asked: Asked, results: Sequence[Any]) -> bytes:
        written = in_base64 if asked.params.get("encoding_format") == "base64" else in_json
        data = [
            {"object": "embedding", "index": nth, "embedding": Fragment(written(one))}
            for nth, one in enumerate(results)
        ]
        return encoded({**asked.about, "data": data})


@with_config(OPEN)
class _Classify(Body):
    input: str | list[Any]


class ClassifyRoute(TextsRoute):
    body: ClassVar[type[Mapping[str, Any]]] = _Classify
    gives: ClassVar[str] = "classes"

    def written(self, asked: Asked, results: Sequence[Any]) -> bytes:
        data = [{"index": nth, **_classes(one)} for nth, one in enumerate(results)]
        return asked.listed("classify", created=int(time.time()), data=data)


def _classes(result: Any) -> dict[str, Any]:
    labels: list[str] = []
    given: Any = result
    if isinstance(result, Mapping):
        of_labels = cast("Mapping[str, Any]", result)
        given = [of_labels] if "label" in of_labels else [*of_labels.values()]
        labels = [*map(str, of_labels)]
    if type(given) in (list, tuple) and _are_records(given):
        labels = [str(one.get("label")) for one in given]
        given = [one.get("score") for one in given]
    probs = finite_vector(given, "classes")
    labels = labels or [f"LABEL_{nth}" for nth in range(len(probs))]
    best = max(range(len(probs)), key=probs.__getitem__, default=None)
    label = None if best is None else labels[best]
    return {"label": label, "probs": probs, "num_classes": len(probs), "labels": labels}


def _are_records(entries: Sequence[Any]) -> bool:
    return len(entries) > 0 and all(isinstance(one, Mapping) for one in entries)


@with_config(OPEN)
class _Rerank(Body):
    query: str
    documents: list[str | dict[str, Any]]
    top_n: NotRequired[Annotated[int, Field(ge=1)] | None]
    return_documents: NotRequired[bool | None]
    rank_fields: NotRequired[list[str] | None]


class _PairsRoute(InputsRoute):
    make: ClassVar[type[ItemMaker]] = PairMaker
    gives: ClassVar[str] = "scores"
    # The client's names of the two texts.
    names: ClassVar[tuple[str, str]]

    def item(self, model: OpenAIModel, maker: PairMaker, one: Pair, params: Params) -> Any:
        return maker.item(one, params, self.names)


class RerankRoute(_PairsRoute):
    body: ClassVar[type[Mapping[str, Any]]] = _Rerank
    param = "documents"
    names = ("query", "documents")

    def __init__(self, models: Any, most: int, *, returns_documents: bool) -> None:
        super().__init__(models, most)
        # Unless the client says so.
        self._returns_documents = returns_documents

    def inputs(self, params: Params) -> Sequence[Pair]:
        if params.get("rank_fields") not in (None, [], ["text"]):
            detail = "Documents are ranked by the field 'text' only"
            raise refused(detail, param="rank_fields", code="unsupported")
        texts: list[str] = []
        for nth, document in enumerate(params["documents"]):
            text = document if isinstance(document, str) else document.get("text")
            if not isinstance(text, str):
                detail = "A document is a text, or an object with a text under the key 'text'"
                raise refused(detail, param=f"documents.{nth}")
            texts.append(text)
        return [(params["query"], text) for text in texts]

    def written(self, asked: Asked, results: Sequence[Any]) -> bytes:
        scores = [number_of(result, "scores") for result in results]
        most = asked.params.get("top_n")
        order = sorted(range(len(scores)), key=lambda nth: -scores[nth])[:most]
        ranked: list[dict[str, Any]] = [
            {"index": nth, "relevance_score": scores[nth]} for nth in order
        ]
        returns = asked.params.get("return_documents")
        if self._returns_documents if returns is None else returns:
            for one in ranked:
                document = asked.params["documents"][one["index"]]
                one["document"] = {"text": document} if isinstance(document, str) else document
        meta = {
            "api_version": {"version": "1" if self._returns_documents else "2"},
            "billed_units": {"search_units": 1},
            "tokens": {"input_tokens": asked.tokens},
        }
        return asked.listed("rerank", results=ranked, meta=meta)


@with_config(OPEN)
class _Score(Body):
    text_1: str | list[str]
    text_2: str | list[str]


class ScoreRoute(_PairsRoute):
    body: ClassVar[type[Mapping[str, Any]]] = _Score
    param = "text_2"
    names = ("text_1", "text_2")

    def inputs(self, params: Params) -> Sequence[Pair]:
        first, second = params["text_1"], params["text_2"]
        second = [second] if isinstance(second, str) else second
        if isinstance(first, str):
            first = [first]
        if len(first) == 1:
            first = first * len(second)
        if len(first) != len(second):
            detail = f"text_1 has {len(first)} texts and text_2 {len(second)}: send one, or as many"
            raise refused(detail, param="text_1")
        return [*zip(first, second, strict=True)]

    def written(self, asked: Asked, results: Sequence[Any]) -> bytes:
        scores = [number_of(result, "scores") for result in results]
        data = [{"index": nth, "object": "score", "score": one} for nth, one in enumerate(scores)]
        return asked.listed("score", created=int(time.time()), data=data)
