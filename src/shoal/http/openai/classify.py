"""``/v1/classify``, in vLLM's form: each input is a call of its own, whose result has classes.

A result is a dict of the probabilities of labels, a list of dicts with ``label`` and ``score``, or
a vector of probabilities, whose labels are then ``LABEL_0`` and so on.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast

from pydantic import with_config
from typing_extensions import override

from shoal.http.openai.bodies import OPEN, Body
from shoal.http.openai.inputs import TextsRoute, usage
from shoal.http.openai.vectors import finite_vector
from shoal.http.requests.plain import encoded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.http.openai.inputs import Asked


@with_config(OPEN)
class _Classify(Body):
    input: str | list[Any]


class ClassifyRoute(TextsRoute):
    body: ClassVar[type[Mapping[str, Any]]] = _Classify
    gives: ClassVar[str] = "classes"

    @override
    def written(self, asked: Asked, results: Sequence[Any]) -> bytes:
        tokens = sum(map(asked.model.tokens_in, asked.params["input"]))
        return encoded(
            {
                "id": f"classify-{asked.request_id}",
                "object": "list",
                "created": int(time.time()),
                "model": asked.model.name,
                "data": [{"index": nth, **_classes(one)} for nth, one in enumerate(results)],
                "usage": usage(tokens),
            }
        )


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
