"""Load tests of these models: items a second by `max_batch_size`, and the advice of `shoal tune`.

    python -m examples.models.load file-types --json docs/pictures/models/results.json

The callers are tasks of this process. Each calls again as soon as it has its result.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio

import shoal
from examples.models import items

Results = Callable[[], AsyncGenerator[object]]
"""Calls a model with an item, and yields its result, or the tokens of a text."""


@dataclass(frozen=True)
class Case:
    """A model and its load. Without a rate, its handler takes no lists, which `tune` measures."""

    title: str
    handler: str
    item: str
    unit: str = "items"
    options: dict[str, str] = field(default_factory=dict)
    largest: int = 64
    rate: float = 0
    p99_s: float = 0


TOKENS = {"batch_size_fn": "sentences:count_tokens", "bucket_by": "sentences:length"}
WIDTH = {"bucket_by": "text_lines:width"}
CASES = {
    "file-types": Case("Magika", "file_types:FileTypes", "source_file", "files", {}, 16, 20, 0.5),
    "digits": Case("scikit-learn", "tables:Digits", "digit", "images", {}, 64, 2000, 0.05),
    "diabetes": Case("LightGBM", "tables:Diabetes", "patient", "rows", {}, 64, 2000, 0.05),
    "lines": Case("RapidOCR", "text_lines:Recognizer", "line", "lines", WIDTH, 16, 20, 0.5),
    "pages": Case("RapidOCR, two models", "text_lines:Reader", "page", "pages", {}, 16),
    "sentences": Case("BERT", "sentences:Embedder", "sentence", "texts", TOKENS, 32, 100, 0.5),
    "chat": Case("Llama", "chat:Chat", "prompt", "tokens", {}, 16),
}


def named(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(import_module(f"examples.models.{module}"), name)


@asynccontextmanager
async def opened(case: Case, size: int) -> AsyncGenerator[Results]:
    """Opens a model with batches of at most this size."""
    item = getattr(items, case.item)
    options: dict[str, Any] = {key: named(value) for key, value in case.options.items()}
    if "batch_size_fn" in options:
        options["max_batch_cost"] = 2048
    handler = named(case.handler)
    async with AsyncExitStack() as stack:
        if case.unit == "pages":
            lines = shoal.Batcher(named("text_lines:Recognizer")(), max_batch_size=size)
            read = handler(await stack.enter_async_context(lines))
        elif case.unit == "tokens":
            options |= {"fill": "continuous", "streams": True}
        if case.unit != "pages":
            batcher = shoal.Batcher(handler(), max_batch_size=size, **options)
            read = await stack.enter_async_context(batcher)

        async def results() -> AsyncGenerator[object]:
            if case.unit == "tokens":
                async with read(item()) as stream:
                    async for token in stream:
                        yield token
            else:
                yield await read(item())

        yield results


async def rate(case: Case, size: int, seconds: float) -> float:
    """Returns the results a second of callers that call again and again."""
    results = 0

    async def caller(results_of: Results) -> None:
        nonlocal results
        while True:
            async for _ in results_of():
                results += 1

    async with opened(case, size) as results_of, anyio.create_task_group() as tasks:
        for _ in range(case.largest):
            tasks.start_soon(caller, results_of)
        await anyio.sleep(seconds / 3)
        before, began = results, time.perf_counter()
        await anyio.sleep(seconds)
        found = (results - before) / (time.perf_counter() - began)
        tasks.cancel_scope.cancel()
    return found


def tuned(case: Case) -> dict[str, Any]:
    """Runs `shoal tune`; returns the best options, and whether batching helps."""
    command = [
        *(sys.executable, "-m", "shoal", "tune", f"examples.models.{case.handler}"),
        *("--item-from", f"examples.models.items:{case.item}", "--rate", f"{case.rate:g}"),
        *("--p99", f"{case.p99_s:g}", "--max-batch-size", str(case.largest)),
        *("--runs", "10", "--limit", "20", "--json"),
    ]
    output = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=False).stdout)
    best = output["candidates"][0]
    return {
        "rate": case.rate,
        "p99_s": case.p99_s,
        "batching_helps": output["batching_helps"],
        "meets_target": best["meets_target"],
        "max_batch_size": best["max_batch_size"],
        "batch_wait_timeout_s": best["batch_wait_timeout_s"],
    }


def rounded(found: float) -> float:
    return float(f"{found:.3g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("name", choices=CASES)
    parser.add_argument("--seconds", type=float, default=4, help="for each size (%(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help="of all sizes (%(default)s)")
    parser.add_argument("--json", type=Path, help="a file of results, to update")
    options = parser.parse_args()
    case = CASES[options.name]
    sizes = [2**power for power in range(7) if 2**power <= case.largest]
    # The sizes take turns, so that other load on the machine changes each alike.
    rounds: dict[int, list[float]] = {size: [] for size in sizes}
    for _ in range(options.rounds):
        for size, rates_of_size in rounds.items():
            rates_of_size.append(anyio.run(rate, case, size, options.seconds))
            found = f"{rates_of_size[-1]:,.3g} {case.unit}/s"
            print(f"{case.title}, max_batch_size={size}: {found}", flush=True)
    advice = tuned(case) if case.rate else None
    print(f"shoal tune: {advice}")
    if options.json:
        known = json.loads(options.json.read_text()) if options.json.exists() else {}
        known[options.name] = {
            "title": case.title,
            "unit": case.unit,
            "rates": {size: rounded(statistics.median(each)) for size, each in rounds.items()},
            "ranges": {
                size: [rounded(min(each)), rounded(max(each))] for size, each in rounds.items()
            },
            "tune": advice,
        }
        ordered = {name: known[name] for name in CASES if name in known}
        options.json.write_text(json.dumps(ordered, indent=2) + "\n")


if __name__ == "__main__":
    main()
