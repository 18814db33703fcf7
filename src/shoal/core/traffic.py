"""How the requests of an endpoint are divided among backends.

A request without a shard key goes to a random backend, by weight. Requests with the same shard key
go to the same backend, in every process and on every run, as long as the weights stay the same.
This uses weighted rendezvous hashing (Thaler and Ravishankar 1998; the weights as in Schindelhauer
and Schomaker 2005): each backend gets a score from a hash of its name and the key, scaled by its
weight, and the highest score wins. There is no hash ring to build, no table to keep, and no state
to share between processes.

When weights change, a key moves only to a backend with a weight that has grown relative to that of
its old backend. If one backend is added, removed, or changed while the others keep their
proportions, as in each step of a canary release, the share of keys that move is the minimum: the
sum of the gains. If the weights of three or more backends change in other ways, some further
keys move: with a sum of gains of d, at most a share of 2d / (1 + d). No rule without a memory of
the place of each key can always do better (Bavarian et al., "Optimality of Correlated Sampling
Strategies", 2016). With a memory, keys would move on a restart, or differ between processes.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import accumulate
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from shoal.core.options.option import number
from shoal.errors import NoSuchName

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

_TOLERANCE: Final = 1e-6
# Hashes become 2**52 numbers, each half a step above a multiple of this: never 0 or 1, since their
# logarithms can't be used.
_STEP: Final = 2.0**-52


@dataclass(frozen=True, slots=True)
class Traffic:
    """The share of the requests that each backend gets; false if there are no backends."""

    # Sum to 1; a backend of weight 0 gets no requests.
    weights: Mapping[str, float]
    # The backend that gets all requests; None if several share them.
    only: str | None = field(init=False, compare=False, repr=False)
    # The backends with a weight above 0, sorted, so that the order of the mapping does not matter.
    _backends: tuple[str, ...] = field(init=False, compare=False, repr=False)
    _until: tuple[float, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        put = object.__setattr__  # the record is frozen
        put(self, "weights", MappingProxyType(dict(self.weights)))
        backends = tuple(sorted(tag for tag, weight in self.weights.items() if weight > 0))
        put(self, "only", backends[0] if len(backends) == 1 else None)
        put(self, "_backends", backends)
        # The last share has no upper bound, so rounding errors of the sum do not matter.
        put(self, "_until", tuple(accumulate(self.weights[tag] for tag in backends[:-1])))

    @classmethod
    def checked(cls, weights: Any, known: Collection[str]) -> Traffic:
        """Checks weights that a user passed (`TypeError`, `ValueError`, `NoSuchName`)."""
        if not isinstance(weights, Mapping):
            raise TypeError(
                f"traffic must map backends to weights, not {weights!r}; "
                "write {'embed': 0.9, 'embed-new': 0.1}"
            )
        given: Mapping[Any, Any] = weights  # pyright: ignore[reportUnknownVariableType]
        if not given:
            raise ValueError("traffic must name at least one backend; write {'embed': 1}")
        checked = {_known(tag, known): _weight(tag, weight) for tag, weight in given.items()}
        total = math.fsum(checked.values())
        if abs(total - 1) > _TOLERANCE:
            raise ValueError(
                f"the weights of traffic must sum to 1, not to {total:.10g}: {given!r}"
            )
        return cls(checked)

    def __bool__(self) -> bool:
        return bool(self._backends)

    def choose(self, point: float) -> str:
        """Chooses a backend with a random number from [0, 1)."""
        return self._backends[bisect_right(self._until, point)]

    def choose_for(self, shard_key: str) -> str:
        key = shard_key.encode("utf-8", "surrogatepass")
        best_draw, best = -math.inf, ""
        for tag in self._backends:
            draw = self.weights[tag] / -math.log(drawn(tag, key))
            if draw > best_draw:
                best_draw, best = draw, tag
        return best


@dataclass(frozen=True, slots=True)
class Shadow:
    """A share of an endpoint's requests that is copied to a backend; its results are dropped."""

    proportion: float
    # A function that compares the results with those of the requests, or its import path.
    compare: Callable[[Any, Any], bool] | str | None = None

    def __post_init__(self) -> None:
        name = "the proportion of shadow traffic"
        proportion = number(name, self.proportion, "a number from 0 to 1")
        if not 0 <= proportion <= 1:
            raise ValueError(f"{name} must be from 0 to 1, not {self.proportion!r}")
        object.__setattr__(self, "proportion", proportion)

    def takes(self, point: float) -> bool:
        """Returns whether a request is copied; `point` is a random number from [0, 1)."""
        return point < self.proportion


def drawn(tag: str, key: bytes) -> float:
    """Returns a number from (0, 1) that depends only on the backend and the key."""
    name = tag.encode()
    # The length comes first, so that different pairs of name and key have different encodings.
    digest = blake2b(len(name).to_bytes(4, "big") + name + key, digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 12) * _STEP + _STEP / 2


def _known(tag: Any, known: Collection[str]) -> str:
    if not isinstance(tag, str):
        raise TypeError(f"traffic must map the names of backends to weights, not {tag!r}")
    if tag not in known:
        there = ", ".join(sorted(known)) or "none"
        raise NoSuchName(f"there is no backend {tag!r} to send traffic to; there are: {there}")
    return tag


def _weight(tag: str, weight: Any) -> float:
    checked = number(f"the weight of {tag}", weight, "a number, such as 0.5")
    if not 0 <= checked < math.inf:
        raise ValueError(f"the weight of {tag} must be at least 0, and finite, not {weight!r}")
    return checked
