"""The config of a backend: one frozen record of flat options, checked when it is made.

It is flat, like Ray Serve's, so that a change names only what it changes, and every option has one
name in code, in a TOML file and on a command line. It remembers which options were given. A change
is merged into them, and the result is checked as a whole.
"""

from __future__ import annotations

import functools
import math
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Unpack, cast

from shoal.batching.handlers.handler import Fill
from shoal.core.json_text import exact_json
from shoal.core.options.option import (
    choice,
    defaults_of,
    mapping,
    more_than_0,
    named_values,
    option,
    options_of,
    plain_record,
    table,
    whole,
    yes_or_no,
)
from shoal.core.options.options import OPTIONS, BatchOptions
from shoal.core.replicas.autoscaling import AutoscalingOptions
from shoal.errors import NotDurable
from shoal.failures.held import held
from shoal.replicas.contract import Placement, ReplicaOptions
from shoal.replicas.gpus import VISIBLE
from shoal.replicas.placements import (
    BUILT_IN,
    check_placement_options,
    checked_placement,
    takes_open_batches,
)
from shoal.serving.backend_options import (
    MOST_REMOTE,
    MOST_REMOTE_CALLS,
    NAMES,
    RENAMED,
    SERVED_DEFAULTS,
    BackendKeywords,
    batch_size,
    check_remote,
    checked_batching,
    checked_converter,
    concurrency,
    fitted,
    loaded,
    one_at_a_time,
    renamed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


MOST_REPLICAS: Final = 4096
"""A greater number is most likely a typing error, and all would be started at once."""


def _as_it_is(*named: Any) -> Any:
    return named[-1]


def _replicas(name: str, value: Any) -> int:
    if isinstance(value, str) and value == "auto":  # Ray Serve's
        raise TypeError(
            f"{name} must be a whole number, not 'auto'; "
            "write autoscaling={'min_replicas': 1, 'max_replicas': 100}"
        )
    number = whole(name, value, least=1)
    if number > MOST_REPLICAS:
        raise ValueError(f"{name} must be at most {MOST_REPLICAS}, not {value!r}")
    return number


ONGOING_WHERE_CODE_GATHERS: Final = 100
"""The default of ``max_ongoing_requests`` for code that forms batches by itself."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class BackendConfig:
    """The options of a backend.

    Besides the options below it takes every option of `BatchOptions`, of `ReplicaOptions` and of
    its placement, by name. A function among them may be given as an import path
    ``"package.module:name"``, a record as a mapping of its fields. ``max_queued_requests`` is 1,024
    by default.

    Attributes:
        num_replicas: The number of replicas; with autoscaling, the number at the start, by default
            the greater of 1 and ``min_replicas``.
        placement: Where the replicas run: ``"task"``, ``"thread"``, ``"process"``, ``"ray"``,
            ``"remote"`` for the servers that ``model_servers`` names, or a function that makes a
            `Replica` of a `Blueprint`, or its import path.
        placement_options: The options of a placement of the user's own, which gets them in
            `Blueprint.placement_options`. Those of Shoal's placements are given by name.
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
            placement ``"task"`` or ``"process"``, or one of yours that takes open batches.
        streams: Whether calls to an open batch are answered by streams.
        decode: Makes the item of a call from a Starlette ``Request`` whose body has been read: a
            plain or async function. By default, the code's annotations say how an item is read.
            Such code can't be called over a WebSocket or with another protocol.
        encode: Makes the response to a call: a plain function of the result, or of the result and
            the ``Request``. It returns a Starlette ``Response``, or what is sent like any result.
            It gets each item of a stream. A WebSocket and other protocols do not use it.
        replica: The options that its replicas have with any placement.
        placed: The options of Shoal's placements that were given, and differ from the default.
        batching: The batch options that were given; import paths are not loaded.

    Raises:
        TypeError: An option is unknown, is given under two names, or has the wrong type.
        ValueError: A value is out of its range, or two options do not go together.
    """

    num_replicas: int = option(1, _replicas)
    placement: str | Placement = option(
        "task", lambda _, value: checked_placement(value), is_function=True
    )
    placement_options: Mapping[str, Any] = table(partial(named_values, example="slots"))
    max_ongoing_requests: int | None = option(None, partial(whole, least=1))
    retries: int = option(0, partial(whole, least=0))
    user_config: Any = option(None, _as_it_is, to_plain=_as_it_is)
    health_check_period_s: float = option(10.0, more_than_0)
    health_check_timeout_s: float = option(30.0, more_than_0)
    autoscaling: AutoscalingOptions | None = option(
        None, lambda _, value: AutoscalingOptions.of(value), to_plain=plain_record
    )
    max_batches_per_replica: int | None = option(None, partial(whole, least=1))
    fill: Fill = choice("closed", Fill)
    streams: bool = option(False, yes_or_no)
    decode: Callable[[Any], Any] | str | None = option(None, checked_converter, is_function=True)
    encode: Callable[..., Any] | str | None = option(None, checked_converter, is_function=True)
    replica: ReplicaOptions
    placed: Mapping[str, Any]
    batching: Mapping[str, Any]
    _given: Mapping[str, Any]

    def __init__(self, **given: Unpack[BackendKeywords]) -> None:
        values = _checked(renamed(given))
        defaults = _defaults()
        put = object.__setattr__  # the record is frozen; this is its own constructor
        put(self, "_given", values)
        for name in options_of(BackendConfig):
            put(self, name, values.get(name, defaults[name]))
        of_replicas = {name: values[name] for name in options_of(ReplicaOptions) if name in values}
        put(self, "replica", ReplicaOptions(**of_replicas))
        placed = {name: values[name] for name in _PLACED if name in values}
        put(self, "placed", {name: one for name, one in placed.items() if one != defaults[name]})
        put(self, "batching", {name: values[name] for name in OPTIONS if name in values})
        if self.autoscaling is not None and "num_replicas" not in values:
            put(self, "num_replicas", max(1, self.autoscaling.min_replicas))
        self._check_together({RENAMED.get(name, name): name for name in given})

    def _check_together(self, as_given: Mapping[str, str]) -> None:
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
        check_placement_options(self.placement, self.placed, self.placement_options, as_given)
        if self.is_remote:
            defaults = _defaults()
            differing = {
                name: one
                for name, one in self._given.items()
                if one is not defaults[name] and (name == "user_config" or one != defaults[name])
            }
            check_remote(differing)
        if "gpus" in self.placed:
            _check_gpus(self.placed)
        if self.fill != "closed" and not takes_open_batches(self.placement):
            raise ValueError(
                f"fill={self.fill!r} needs placement='task', 'process' or 'ray', "
                f"not {self.placement!r}, whose replicas can't take open batches"
            )
        if self.max_ongoing_requests is not None:
            fitted(self.batching, self.max_ongoing_requests)
        if self.batching.get("open") is not None and self.placement in ("process", "ray"):
            raise ValueError(
                f"open= is entered in the server's process, and placement={self.placement!r} runs "
                "the code in another one; connect in `async def warm_up(self)` of a class, and "
                "disconnect in `async def close(self)`"
            )

    @classmethod
    def of(cls, given: BackendConfig | Mapping[str, Any] | None) -> BackendConfig:
        """Makes a config from a config, a mapping of options, or None for the defaults.

        Raises:
            TypeError: An option is unknown, is given under two names, or has the wrong type.
            ValueError: A value is out of its range, or two options do not go together.
        """
        if isinstance(given, BackendConfig):
            return given
        return cls(**_keywords({} if given is None else given))

    def changed(self, changes: BackendConfig | Mapping[str, Any]) -> BackendConfig:
        """Returns a copy with the given options of `changes`, checked as a whole.

        Raises:
            TypeError: An option is unknown, is given under two names, or has the wrong type.
            ValueError: A value is out of its range, or two options do not go together.
        """
        new = changes.given() if isinstance(changes, BackendConfig) else _keywords(changes)
        return type(self)(**cast("BackendKeywords", {**self._given, **renamed(new)}))

    def batch_options(self, batched: bool) -> dict[str, Any]:
        """Returns keywords for `shoal.Batcher`, without ``max_concurrent_batches``.

        Batches are limited to ``max_ongoing_requests``, and to one item if the code takes no lists.

        Raises:
            TypeError: An import path leads to an object that can't be called.
            ValueError: An import path leads to nothing, or an option is only for code with lists.
            Exception: A module raised this when it was imported.
        """
        options = loaded(self._fitted(batched))
        options.pop("max_concurrent_batches", None)
        if self.is_remote and batched:
            options["max_batch_size"] = MOST_REMOTE
        # The size is always given, so that it replaces another one that a batcher may have.
        return {**SERVED_DEFAULTS, "max_batch_size": batch_size(options), **options}

    def slots(self, batched: bool, *, gathers: bool = False) -> float:
        """Returns how many batches a replica may have at once; infinity for no limit.

        This is ``max_concurrent_batches``, or fewer if that many full batches would exceed
        ``max_ongoing_requests``. For code that takes one item at a time it is the lesser of the two
        options, or the one that is given, or 1. For code that forms batches by itself (`gathers`)
        it is 100 if neither is given.

        Raises:
            ValueError: An option is only for code that takes lists.
        """
        if self.is_remote:  # what waits here would not count for the batches over there
            return MOST_REMOTE_CALLS
        options = self._fitted(batched)
        most = self.max_ongoing_requests
        is_given = "max_concurrent_batches" in options
        if most is None:
            return ONGOING_WHERE_CODE_GATHERS if gathers and not is_given else concurrency(options)
        fit = most // batch_size(options)
        return min(concurrency(options), fit) if is_given or self._takes_lists(batched) else fit

    @property
    def is_remote(self) -> bool:
        """Whether its replicas are other Shoal servers, which form the batches."""
        return self.placement == "remote"

    @property
    def most_requests(self) -> float:
        """How many requests a replica has at once, if its code forms batches."""
        try:
            return self.slots(batched=False, gathers=True)
        except ValueError:  # it is for code that takes lists
            return math.inf

    def oddity(self, batched: bool) -> str | None:
        """Returns a warning about options that are probably a mistake, or None."""
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
        """Returns the config for a method that takes one item, in code that takes lists."""
        options = {
            name: value
            for name, value in self._given.items()
            if name not in OPTIONS or not OPTIONS[name].for_lists
        }
        return type(self)(**cast("BackendKeywords", options))

    @functools.partial(held, name="the placement_options")
    def needs_new_replicas(self, before: BackendConfig) -> bool:
        """Returns whether replicas with the config `before` must be replaced.

        Changes of the batcher's and the supervisor's options, of ``user_config`` and of
        ``start_timeout_s`` need no new replicas.
        """
        return _replica_factory_args(self) != _replica_factory_args(before)

    def for_placement(self) -> dict[str, Any]:
        """Returns the options for `Blueprint.placement_options`."""
        return {**self.placed, **self.placement_options}

    def given(self) -> dict[str, Any]:
        """Returns the options that were given, with their checked values."""
        return dict(self._given)

    def as_dict(self) -> dict[str, Any]:
        """Returns all options with their values."""
        values = {**_defaults(), **self._given, "num_replicas": self.num_replicas}
        return {name: values[name] for name in NAMES}

    def durable(self) -> dict[str, Any]:
        """Returns the given options as JSON, from which `of` makes an equal config.

        Raises:
            NotDurable: The value of an option can't be written as JSON.
        """
        return {name: _durable(name, value) for name, value in self._given.items()}

    def durable_part(self) -> dict[str, Any]:
        """Returns the given options that can be written as JSON, in that form."""
        found: dict[str, Any] = {}
        for name, value in self._given.items():
            with suppress(NotDurable):
                found[name] = _durable(name, value)
        return found

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


_RECORDS: Final = (
    BackendConfig,
    ReplicaOptions,
    *(one.options for one in BUILT_IN.values()),
    BatchOptions,
)

BACKEND_OPTIONS: Final = {name: one for cls in _RECORDS for name, one in options_of(cls).items()}
"""All options of a backend, by their names."""

_PLACED: Final = tuple(name for one in BUILT_IN.values() for name in options_of(one.options))
"""The options of Shoal's placements."""


def _defaults() -> dict[str, Any]:
    found = {name: one for cls in _RECORDS for name, one in defaults_of(cls).items()}
    return {**found, **SERVED_DEFAULTS}


def _checked(given: Mapping[str, Any]) -> dict[str, Any]:
    """Takes options under Shoal's names, and keeps their order."""
    values = {
        name: one.checked(name, one.from_plain(name, given[name]))
        for name, one in BACKEND_OPTIONS.items()
        if name in given and name not in OPTIONS
    }
    values |= checked_batching(given, values.get("fill", BackendConfig.fill))
    return {name: values[name] for name in given}


def _durable(name: str, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, str):
        return str(value)  # an import path may be an `OwnPath`
    option = BACKEND_OPTIONS[name]
    if option.is_function and not isinstance(value, bool):
        raise NotDurable(
            f"{name}={value!r} is an object of this process, which can't be kept or sent; "
            f'give its import path: {name}="package.module:name"'
        )
    return exact_json(name, option.to_plain(value))


def _check_gpus(placed: Mapping[str, Any]) -> None:
    for name, key in (("env", VISIBLE), ("ray_options", "num_gpus")):
        if key in placed.get(name, {}):
            raise ValueError(
                f"gpus={placed['gpus']:g} and {key} in {name} say the same in two ways; "
                f"leave {key} out"
            )


def _replica_factory_args(config: BackendConfig) -> object:
    # The start timeout does not matter to a replica that has started.
    options = replace(config.replica, start_timeout_s=None)
    placed = {n: one for n, one in config.for_placement().items() if n != "model_servers"}
    return config.placement, config.fill, config.streams, options, placed


def _keywords(given: Any) -> Any:
    keywords = mapping("config", given, 'config={"num_replicas": 2}, or a BackendConfig')
    for name in keywords:
        if not isinstance(name, str):
            raise TypeError(f"{name!r} is not an option of a backend: an option has a name")
    return keywords


@functools.partial(held, name="the user_config")
def same_user_config(one: BackendConfig, other: BackendConfig) -> bool:
    first, second = one.user_config, other.user_config
    return first is second or bool(first == second)
