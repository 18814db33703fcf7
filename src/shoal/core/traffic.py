"""How the requests of an endpoint are divided among backends.

A request without a shard key goes wherever a random number points. One with a key goes where all
with that key go, in each process and on each run, as long as the weights stay: by weighted
rendezvous hashing (Thaler and Ravishankar 1998; the weights as in Schindelhauer and Schomaker
2005). Each backend draws for the key, as from a lottery whose prizes are in proportion to the
weights, and the best draw wins. There is no ring to build, no table to keep, and nothing that
processes would have to agree on.

When weights change, a key moves only to a backend that has gained on the one that it leaves. That
is as few as can be, the sum of what the backends gain, wherever one is added, removed, or raised or
lowered against all others in proportion: each step of a canary release. Where weights move in other
ways among three backends or more some further keys move: with a sum of gains of d, at most a share
of 2d / (1 + d). No rule without a memory of where each key has been can always do better (Bavarian
et al., "Optimality of Correlated Sampling Strategies", 2016), and with one a restart, or another
process, would send keys elsewhere.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import accumulate
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from shoal.errors import NoSuchName

if TYPE_CHECKING:
    from collections.abc import Collection

_TOLERANCE: Final = 1e-6
# Half a step above each of 2**52 numbers: never 0 nor 1, whose logarithms would be of no use.
_STEP: Final = 2.0**-52


@dataclass(frozen=True, slots=True)
class Traffic:
    """The share of the requests that each backend gets; false where there are no backends.

    Attributes:
        weights: The weights, by backend, as they were given. They sum to 1; a backend of weight 0
            gets nothing.
        only: The backend that gets all of it; None if several share it.
    """

    weights: Mapping[str, float]
    only: str | None = field(init=False, compare=False, repr=False)
    # Those that get something, by name, so that the order in which they were given is forgotten.
    _backends: tuple[str, ...] = field(init=False, compare=False, repr=False)
    _until: tuple[float, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        put = object.__setattr__  # the record is frozen; this is its own constructor
        put(self, "weights", MappingProxyType(dict(self.weights)))
        backends = tuple(sorted(tag for tag, weight in self.weights.items() if weight > 0))
        put(self, "only", backends[0] if len(backends) == 1 else None)
        put(self, "_backends", backends)
        # The last one's share ends where the points do, wherever rounding puts the sum.
        put(self, "_until", tuple(accumulate(self.weights[tag] for tag in backends[:-1])))

    @classmethod
    def checked(cls, weights: Any, known: Collection[str]) -> Traffic:
        """Makes traffic of what a user typed.

        Args:
            weights: Backends to weights.
            known: The backends there are.

        Raises:
            TypeError: It is no mapping of names to numbers.
            ValueError: There are none, one is negative or not finite, or they don't sum to 1.
            NoSuchName: There is no such backend.
        """
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
        """Chooses the backend of a request without a shard key.

        Args:
            point: A random number from [0, 1).
        """
        return self._backends[bisect_right(self._until, point)]

    def choose_for(self, shard_key: str | bytes) -> str:
        """Chooses the backend of a request with a shard key.

        Args:
            shard_key: The key; text stands for its UTF-8.
        """
        key = (
            shard_key
            if isinstance(shard_key, bytes)
            else shard_key.encode("utf-8", "surrogatepass")
        )
        best_draw, best = -math.inf, ""
        for tag in self._backends:
            draw = self.weights[tag] / -math.log(_drawn(tag, key))
            if draw > best_draw:
                best_draw, best = draw, tag
        return best


@dataclass(frozen=True, slots=True)
class Shadow:
    """A share of an endpoint's requests that is copied to a backend, whose answers are dropped.

    Attributes:
        backend: The backend.
        proportion: The share that is copied, from 0 to 1.
    """

    backend: str
    proportion: float

    def __post_init__(self) -> None:
        backend: Any = self.backend
        if not isinstance(backend, str):
            raise TypeError(f"the backend of shadow traffic must be a name, not {backend!r}")
        proportion: Any = self.proportion
        if isinstance(proportion, bool) or not isinstance(proportion, (int, float)):
            raise TypeError(
                f"the proportion of shadow traffic must be a number from 0 to 1, not {proportion!r}"
            )
        if not 0 <= proportion <= 1:
            raise ValueError(
                f"the proportion of shadow traffic must be from 0 to 1, not {proportion!r}"
            )
        object.__setattr__(self, "proportion", float(proportion))

    def takes(self, point: float) -> bool:
        """Says whether a request is copied.

        Args:
            point: A random number from [0, 1).
        """
        return point < self.proportion


def _drawn(tag: str, key: bytes) -> float:
    """Returns a number from (0, 1) that depends on a backend and a key alone."""
    name = tag.encode()
    # The length first, so that no other pair of name and key reads the same.
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
    if isinstance(weight, bool) or not isinstance(weight, (int, float)):
        raise TypeError(f"the weight of {tag} must be a number, such as 0.5, not {weight!r}")
    if not 0 <= weight <= sys.float_info.max:  # a whole number may be larger, and no infinity
        raise ValueError(f"the weight of {tag} must be at least 0, and finite, not {weight!r}")
    return float(weight)
