"""``shoal why``: looks at a running server, and says why its batches have the size they have."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from shoal.commands.server.client import add_server_arguments, ask
from shoal.commands.support.arguments import add, describe, more_than_0_seconds
from shoal.commands.support.output import CommandError, show
from shoal.planning.batch_sizes import PAGE, BatcherFigures, explain, figures_of
from shoal.planning.figures import duration, percent, three_digits
from shoal.planning.recordings import RecordedBatcher
from shoal.serving.names import not_there

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Collection, Mapping

    from shoal.serving.clients.remote_client import RemoteClient
    from shoal.serving.status import Status

_DESCRIPTION: Final = f"""\
Watch a running server for some seconds, and say why its batches are as small as they are: what it
found, in numbers, and what to change. It reads times and options only, never payloads.
The page {PAGE!r} explains each finding.
"""

_EXAMPLE: Final = """\
  shoal why
  shoal why classify --seconds 60
  shoal why --url https://models.example.com --token-file token

  It needs the admin API, as `shoal trace` does.
"""


def add_arguments(parser: ArgumentParser) -> None:
    describe(parser, _run, _DESCRIPTION, _EXAMPLE)
    add(
        parser,
        "target ENDPOINT|BACKEND",
        "look at this backend, or at those of this endpoint; by default, at all backends",
        nargs="?",
    )
    add(parser, "--seconds SECONDS", "for how long to watch", more_than_0_seconds, 10.0)
    add_server_arguments(parser)


def _run(arguments: Namespace) -> int:
    found = ask(
        arguments,
        lambda client: _watch(client, arguments),
        waits_for=f"the requests of {duration(arguments.seconds)}",
    )
    data = [_as_data(name, figures) for name, figures in found.items()]
    text = "\n\n".join([_as_text(name, figures) for name, figures in found.items()])
    return show(arguments, data, text or "no backends")


async def _watch(client: RemoteClient, arguments: Namespace) -> dict[str, BatcherFigures]:
    tags = _backends_of(await client.status(), arguments.target)
    only = next(iter(tags)) if len(tags) == 1 else None
    async with client.recording(arguments.seconds, backend=only) as lines:
        return _read([json.loads(line) async for line in lines], tags)


def _backends_of(status: Status, target: str | None) -> Collection[str]:
    if target is None or target in status.backends:
        return status.backends if target is None else (target,)
    if target not in status.endpoints:
        known = {**status.endpoints, **status.backends}
        raise CommandError(not_there("endpoint or backend", target, known), 1)
    return status.endpoints[target].traffic


def _read(rows: list[dict[str, Any]], tags: Collection[str]) -> dict[str, BatcherFigures]:
    batchers: dict[str, RecordedBatcher] = {}
    requests: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        kind, name = row.get("record"), row.get("batcher", "")
        if name.partition("/")[0] not in tags:
            continue
        if kind == "batcher":
            batchers.setdefault(name, RecordedBatcher(name)).describe(row)
        elif kind == "batch":
            batchers[name].add_batch(row)
        elif kind is None:
            requests[name].append(row)
    if not rows or rows[-1].get("record") != "end":
        raise CommandError("the server has ended", 1)
    seconds = rows[-1]["at"]
    return {name: figures_of(one, requests[name], seconds) for name, one in batchers.items()}


def _as_data(name: str, figures: BatcherFigures) -> dict[str, Any]:
    return {
        "batcher": name,
        "seconds": figures.seconds,
        "requests": figures.requests,
        "batches": figures.batches,
        "mean_batch": figures.mean_size if figures.batches else None,
        "max_batch_size": figures.most,
        "reasons": {str(reason): count for reason, count in figures.reasons.items()},
        "findings": [{**asdict(one), "more": one.more} for one in explain(figures)],
    }


def _as_text(name: str, figures: BatcherFigures) -> str:
    reasons = ", ".join(
        f"{reason} {percent(count / figures.batches)}"
        for reason, count in sorted(figures.reasons.items(), key=lambda one: -one[1])
    )
    head = (
        f"{name}: {three_digits(figures.mean_size)} requests a batch, at most "
        f"{figures.options['max_batch_size']:,}\n"
        f"{figures.requests:,} requests in {figures.batches:,} batches in "
        f"{duration(figures.seconds)}{f'; dispatched because {reasons}' if reasons else ''}"
    )
    return "\n\n".join(
        [
            head,
            *(
                f"- {one.symptom}\n  evidence  {one.evidence}\n  change    {one.change}\n"
                f"  more      {one.more}"
                for one in explain(figures)
            ),
        ]
    )
