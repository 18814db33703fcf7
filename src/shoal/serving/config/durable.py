"""A backend's options as JSON, for state files and for requests to a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from shoal.core.options.option import plain_record
from shoal.core.options.options import OPTIONS
from shoal.errors import NotDurable
from shoal.serving.config.json import exact_json

if TYPE_CHECKING:
    from collections.abc import Mapping


def durable_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns checked options as JSON, from which the same options can be made.

    Raises:
        NotDurable: The value of an option can't be written as JSON.
    """
    return {name: exact_json(name, _plain(name, value)) for name, value in given.items()}


def _plain(name: str, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, str):
        return str(value)  # an import path may be an `OwnPath`
    option = OPTIONS.get(name)
    if name == "placement" or (option is not None and option.is_function):
        raise NotDurable(
            f"{name}={value!r} is an object of this process, which can't be kept or sent; "
            f'give its import path: {name}="package.module:name"'
        )
    if option is not None:
        return option.to_plain(value)
    if name == "autoscaling":
        return plain_record(value)
    return _lists(value) if name == "cpu_affinity" else value


def _lists(value: Any) -> Any:
    # They come back from JSON as lists; the checks of options make them tuples again.
    if not isinstance(value, tuple):
        return value
    entries: tuple[Any, ...] = cast("Any", value)
    return [_lists(entry) for entry in entries]
