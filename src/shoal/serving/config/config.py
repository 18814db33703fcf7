"""The config of a backend: one frozen record of flat options, checked when it is made.

It is flat, like Ray Serve's, so that a change names only what it changes, and every option has one
name in code, in a TOML file and on a command line. It remembers which options were given. A change
is merged into them, and the result is checked as a whole.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final, cast, get_args

from shoal.batching.failures.held import held
from shoal.batching.handlers.handler import Fill
from shoal.core.options.checks import one_of, whole, yes_or_no
from shoal.core.options.options import OPTIONS
from shoal.core.replicas.autoscaling import AutoscalingOptions
from shoal.replicas.contract import ReplicaOptions
from shoal.serving.config.batching import (
    DEFAULTS,
    SERVED_DEFAULTS,
    batch_size,
    checked_batching,
    concurrency,
    fitted,
    loaded,
    one_at_a_time,
)
from shoal.serving.config.durable import durable_options
from shoal.serving.config.keywords import NAMES, BackendKeywords, renamed
from shoal.serving.config.replicas import (
    checked_mapping,
    checked_placement,
    checked_replica_options,
    more_than_0,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Unpack

    from shoal.replicas.contract import Placement

OWN_DEFAULTS: Final[Mapping[str, Any]] = {
    "num_replicas": 1,
    "placement": "task",
    "max_ongoing_requests": None,
    "retries": 0,
    "user_config": None,
    "health_check_period_s": 10.0,
    "health_check_timeout_s": 30.0,
    "autoscaling": None,
    "max_batches_per_replica": None,
    "fill": "closed",
    "streams": False,
}
"""The defaults of the options that are neither a batcher's nor a replica's."""


def checked(given: Mapping[str, Any]) -> dict[str, Any]:
    """Checks options that are given under Shoal's names.

    Returns:
        Their checked values, in the order in which they were given.

    Raises:
        TypeError: A value has the wrong type.
        ValueError: A value is out of its range, or two options do not go together.
    """
    own = {name: _CHECKS[name](name, given[name]) for name in OWN_DEFAULTS if name in given}
    values = {
        **own,
        **checked_replica_options(given, own.get("placement", OWN_DEFAULTS["placement"])),
        **checked_batching(given, own.get("fill", OWN_DEFAULTS["fill"])),
    }
    return {name: values[name] for name in given}


MOST_REPLICAS: Final = 4096
"""A greater number is most likely a typing error, and all would be started at once."""


def _at_least(least: int) -> Callable[[str, Any], int]:
    return lambda name, value: whole(name, value, least=least)


def _replicas(name: str, value: Any) -> int:
    number = whole(name, value, least=1)
    if number > MOST_REPLICAS:
        raise ValueError(f"{name} must be at most {MOST_REPLICAS}, not {value!r}")
    return number


def _at_least_1_or_none(name: str, value: Any) -> int | None:
    return None if value is None else whole(name, value, least=1)


def _autoscaling(_: str, value: Any) -> AutoscalingOptions | None:
    return None if value is None else AutoscalingOptions.of(value)


_CHECKS: Final[Mapping[str, Callable[[str, Any], Any]]] = {
    "num_replicas": _replicas,
    "placement": lambda _, value: checked_placement(value),
    "max_ongoing_requests": _at_least_1_or_none,
    "retries": _at_least(0),
    "user_config": lambda _, value: value,
    "health_check_period_s": more_than_0,
    "health_check_timeout_s": more_than_0,
    "autoscaling": _autoscaling,
    "max_batches_per_replica": _at_least_1_or_none,
    "fill": lambda name, value: one_of(name, value, get_args(Fill)),
    "streams": yes_or_no,
}


ONGOING_WHERE_CODE_GATHERS: Final = 100
"""The default of ``max_ongoing_requests`` for code that forms batches by itself."""

_REPLICA_NAMES: Final = tuple(field.name for field in fields(ReplicaOptions))


@dataclass(frozen=True, init=False, repr=False, eq=False)
class BackendConfig:
    """The options of a backend.

    Besides the options below it takes every option of `BatchOptions` and of `ReplicaOptions`, by
    name. A function among them may be given as an import path ``"package.module:name"``, a record
    as a mapping of its fields. ``max_queued_requests`` is 1,024 by default.

    Attributes:
        num_replicas: The number of replicas; with autoscaling, the number at the start, by default
            the greater of 1 and ``min_replicas``.
        placement: Where the replicas run: ``"task"``, ``"thread"``, ``"process"``, ``"ray"``, or a
            function that makes a `Replica` of a `Blueprint`, or its import path.
        max_ongoing_requests: The most requests that a replica may have at once; None leaves that to
            ``max_batch_size`` and ``max_concurrent_batches``. Ray Serve's older name for it,
            ``max_concurrent_queries``, is accepted too.
        retries: How many times a batch may run again after its replica died; requests that have had
            a part of their answer do not run again.
        user_config: The argument of the code's ``reconfigure``; None for no call.
        health_check_period_s: The pause between two health checks, in seconds.
        health_check_timeout_s: How long a health check may take, in seconds.
        autoscaling: How the number of replicas is chosen; None for a fixed number.
        max_batches_per_replica: After how many batches a replica is replaced; None for never.
        fill: When a batch is complete, as in `shoal.Batcher`; other than ``"closed"`` only with the
            placement ``"task"``, or one that takes open batches.
        streams: Whether calls to an open batch are answered by streams.
        replica: The options of its replicas.
        batching: The batch options that were given; import paths are not loaded.

    Raises:
        TypeError: An option is unknown, is given under two names, or has the wrong type.
        ValueError: A value is out of its range, or two options do not go together.
    """

    num_replicas: int
    placement: str | Placement
    max_ongoing_requests: int | None
    retries: int
    user_config: Any
    health_check_period_s: float
    health_check_timeout_s: float
    autoscaling: AutoscalingOptions | None
    max_batches_per_replica: int | None
    fill: Fill
    streams: bool
    replica: ReplicaOptions
    batching: Mapping[str, Any]
    _given: Mapping[str, Any]

    def __init__(self, **given: Unpack[BackendKeywords]) -> None:
        values = checked(renamed(given))
        replicas = {name: values[name] for name in _REPLICA_NAMES if name in values}
        batching = {name: values[name] for name in OPTIONS if name in values}
        put = object.__setattr__  # the record is frozen; this is its own constructor
        put(self, "_given", values)
        put(self, "replica", ReplicaOptions(**replicas))
        put(self, "batching", batching)
        for name, default in OWN_DEFAULTS.items():
            put(self, name, values.get(name, default))
        if self.autoscaling is not None and "num_replicas" not in values:
            put(self, "num_replicas", max(1, self.autoscaling.min_replicas))
        self._check_together()

    def _check_together(self) -> None:
        scaling = self.autoscaling
        if scaling and not scaling.min_replicas <= self.num_replicas <= scaling.max_replicas:
            raise ValueError(
                f"num_replicas={self.num_replicas} must be from min_replicas="
                f"{scaling.min_replicas} to max_replicas={scaling.max_replicas}, or left out"
            )
        if self.streams and self.fill == "closed":
            raise TypeError(
                "streams=True is for fill='open' and fill='continuous'; "
                "code that streams to closed batches is a generator function"
            )
        if self.fill != "closed" and not (
            self.placement == "task" or getattr(self.placement, "takes_open_batches", False)
        ):
            raise ValueError(
                f"fill={self.fill!r} needs placement='task', not {self.placement!r}: "
                "an open batch can't leave this event loop"
            )
        if self.max_ongoing_requests is not None:
            fitted(self.batching, self.max_ongoing_requests)

    @classmethod
    def of(cls, given: BackendConfig | Mapping[str, Any] | None) -> BackendConfig:
        """Makes a config from what a user gave.

        Args:
            given: A config, which is returned as it is; a mapping of option names to values; or
                None for the defaults.

        Raises:
            TypeError: It is none of these, an option is unknown, is given under two names, or has
                the wrong type.
            ValueError: A value is out of its range, or two options do not go together.
        """
        if isinstance(given, BackendConfig):
            return given
        return cls(**_keywords({} if given is None else given))

    def changed(self, changes: BackendConfig | Mapping[str, Any]) -> BackendConfig:
        """Makes the config that results from merging `changes` into this one.

        Args:
            changes: A mapping of option names to new values, or a config, of which the options
                that it was given count.

        Returns:
            The new config, checked as a whole; this one stays as it is.

        Raises:
            TypeError: See `of`.
            ValueError: See `of`.
        """
        new = changes.given() if isinstance(changes, BackendConfig) else _keywords(changes)
        return type(self)(**cast("BackendKeywords", {**self._given, **renamed(new)}))

    def batch_options(self, batched: bool) -> dict[str, Any]:
        """Returns keywords for `shoal.Batcher`, with functions loaded.

        ``max_concurrent_batches`` is not among them; see `slots`. Batches are no larger than
        ``max_ongoing_requests``, and have one item if the code takes one item at a time.

        Args:
            batched: Whether the code takes lists.

        Raises:
            TypeError: An import path leads to something that can't be called.
            ValueError: An import path leads to nothing, or an option is only for code that takes
                lists.
            Exception: A module raised this when it was imported.
        """
        options = loaded(self._fitted(batched))
        options.pop("max_concurrent_batches", None)
        # The size is always given, so that it replaces another one that a batcher may have.
        return {**SERVED_DEFAULTS, "max_batch_size": batch_size(options), **options}

    def slots(self, batched: bool, *, gathers: bool = False) -> float:
        """Returns how many batches a replica may have at once; infinity for no limit.

        This is ``max_concurrent_batches``, or fewer if so many full batches would exceed
        ``max_ongoing_requests``. Code that takes one item at a time has batches of one item. For
        it the result is the lesser of the two options, the one that is given if only one is, and 1
        if neither is. For code that forms batches by itself it is 100 if neither is given.

        Args:
            batched: Whether the code takes lists.
            gathers: Whether it is async code that takes one item and forms batches by itself.

        Raises:
            ValueError: An option is only for code that takes lists.
        """
        options = self._fitted(batched)
        most = self.max_ongoing_requests
        is_given = "max_concurrent_batches" in options
        if most is None:
            return ONGOING_WHERE_CODE_GATHERS if gathers and not is_given else concurrency(options)
        fit = most // batch_size(options)
        return min(concurrency(options), fit) if is_given or self._takes_lists(batched) else fit

    def oddity(self, batched: bool) -> str | None:
        """Returns a warning if the options are allowed but probably a mistake; None if not.

        Args:
            batched: Whether the code takes lists.

        Raises:
            ValueError: An option is only for code that takes lists.
        """
        most = self.max_ongoing_requests
        options = self.batching if self._takes_lists(batched) else one_at_a_time(self.batching)
        wanted = batch_size(options) * concurrency(options)
        if most is None or most >= wanted or wanted == math.inf:
            return None
        return (
            f"max_ongoing_requests={most} is below max_batch_size * max_concurrent_batches = "
            f"{wanted}, so a replica's batches are of at most "
            f"{batch_size(self._fitted(batched))}, and {self.slots(batched)} at once"
        )

    def of_one(self) -> BackendConfig:
        """Returns the config for a method that takes one item, of code whose calls take lists."""
        kept = {
            name: value
            for name, value in self._given.items()
            if name not in OPTIONS or not OPTIONS[name].for_lists
        }
        return type(self)(**cast("BackendKeywords", kept))

    def needs_new_replicas(self, before: BackendConfig) -> bool:
        """Returns whether replicas with the config `before` must be replaced for this config.

        They need not if it differs only in options of the batcher or of the supervisor, in
        ``user_config``, or in ``start_timeout_s``, which concerns only replicas yet to start.
        """
        return _what_replicas_are_made_with(self) != _what_replicas_are_made_with(before)

    def given(self) -> dict[str, Any]:
        """Returns the options that were given, with their checked values."""
        return dict(self._given)

    def as_dict(self) -> dict[str, Any]:
        """Returns all options with their values."""
        return {name: self._value(name) for name in NAMES}

    def durable(self) -> dict[str, Any]:
        """Returns the options that were given as JSON, from which `of` makes an equal config.

        Raises:
            NotDurable: The value of an option can't be written as JSON.
        """
        return durable_options(self._given)

    def _value(self, name: str) -> Any:
        if name in _REPLICA_NAMES:
            return getattr(self.replica, name)
        if name in OPTIONS:
            return self.batching.get(name, getattr(DEFAULTS, name))
        return getattr(self, name)

    def _takes_lists(self, batched: bool) -> bool:
        return batched or self.fill != "closed"

    def _fitted(self, batched: bool) -> dict[str, Any]:
        if not self._takes_lists(batched):
            return one_at_a_time(self.batching)
        most = self.max_ongoing_requests
        return dict(self.batching) if most is None else fitted(self.batching, most)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BackendConfig):
            return NotImplemented
        return self.as_dict() == other.as_dict()

    __hash__ = None  # type: ignore[assignment]  # it holds dicts

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self._given.items())
        return f"BackendConfig({given})"


def _what_replicas_are_made_with(config: BackendConfig) -> object:
    # The start timeout does not matter to a replica that has started.
    options = replace(config.replica, start_timeout_s=None)
    return config.placement, config.fill, config.streams, options


def _keywords(given: Any) -> Any:
    keywords = checked_mapping("config", given, 'config={"num_replicas": 2}, or a BackendConfig')
    for name in keywords:
        if not isinstance(name, str):
            raise TypeError(f"{name!r} is not an option of a backend: an option has a name")
    return keywords


@functools.partial(held, name="the user_config")
def same_user_config(one: BackendConfig, other: BackendConfig) -> bool:
    """Returns whether two configs have equal user configs.

    Raises:
        Exception: The comparison of the user configs raised this.
    """
    first, second = one.user_config, other.user_config
    return first is second or bool(first == second)
