"""The gain of continuous batches over closed ones, beside a bare loop that does the same.

Five parts:

* *In virtual time*: a model whose step takes the same time for any number of texts, as on a GPU
  (`gpu_model.py`), behind Shoal's continuous batches and four rivals (`continuous_rivals.py`), with
  lengths that differ, under loads in loops and at random. Beside the gain stands its bound: how
  many times fewer steps a full continuous batch takes than a full closed one.
* *In real time*: the same model, whose steps really take 5 ms and 20 ms. The difference to the bare
  loop is what Shoal itself costs.
* *On a GPU*, where PyTorch finds one: a decoder of 7 billion weights (`torch_model.py`) in place of
  the fake model.
* *On the CPU*: the demo's language model, whose step takes longer with more texts
  (`continuous_cpu.py`).
* *In a process*: a model that holds the interpreter, in a process and in that of the server
  (`continuous_process.py`).

``--only virtual,real`` selects parts.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":  # else http.py here would shadow the standard library's
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from benchmarks import continuous_cpu, continuous_gpu, continuous_process, torch_model
from benchmarks.continuous_rivals import BARE, BY_LENGTH, CLOSED, CONTINUOUS
from benchmarks.gpu_model import GpuModel
from benchmarks.report import Panel, Report, parser, print_table, verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    Columns = dict[str, tuple[str, str]]

OF_BOUND: Final = 0.95
OF_BARE: Final = 0.95

BOUNDS: Final[Columns] = {
    "lengths": ("lengths", ""),
    "bound": ("bound", ".2f"),
    "drawn": ("bound of the drawn", ".2f"),
    "continuous": ("continuous", ".2f"),
    "bare": ("bare loop", ".2f"),
    "by_length": ("closed, by length", ".2f"),
    "sorted": ("all queued, sorted", ".2f"),
    "verdict": ("target", ""),
}
VIRTUAL: Final[Columns] = {
    "way": ("lengths, load and way", ""),
    "tokens_a_second": ("tokens/s", ",.0f"),
    "gain": ("gain", ".2f"),
    "steps": ("steps", ","),
    "occupancy_percent": ("full %", ".0f"),
    "first_p50_s": ("first p50 s", ".2f"),
    "first_p99_s": ("first p99 s", ".2f"),
    "whole_p50_s": ("whole p50 s", ".2f"),
    "whole_p99_s": ("whole p99 s", ".2f"),
}
REAL: Final[Columns] = {
    "way": ("step and way", ""),
    "tokens_a_second": ("tokens/s", ",.0f"),
    "gain": ("gain", ".2f"),
    "of_bare": ("of bare loop", ".3f"),
    "real_step_ms": ("step ms", ".2f"),
    "first_p50_ms": ("first p50 ms", ".0f"),
    "occupancy_percent": ("full %", ".0f"),
    "cpu_us": ("CPU us a token", ".1f"),
    "verdict": ("target", ""),
}


def _print(title: str, columns: Columns, rows: Sequence[dict[str, Any]]) -> None:
    print(f"{title}\n")
    print_table(
        [head for head, _ in columns.values()],
        [
            [format(row[key], how) if key in row else "-" for key, (_, how) in columns.items()]
            for row in rows
        ],
    )
    print()


def _named(row: dict[str, Any]) -> str:
    kind = f" ({row['kind']})" if "kind" in row else ""
    return f"{row['lengths']}, {row['load']}: {row['way']}{kind}"


def _virtual(quick: bool) -> list[dict[str, Any]]:
    """Measures in virtual time, prints the tables, and returns their rows."""
    count = 200 if quick else 700
    loads = continuous_gpu.QUICK_LOADS if quick else continuous_gpu.LOADS
    rows = continuous_gpu.in_virtual_time(count, loads)
    bounds = continuous_gpu.bounds(rows, count)
    for row in bounds:
        row["verdict"] = verdict(row["continuous"] / row["drawn"], at_least=OF_BOUND)
    places, step_ms = continuous_gpu.CAPACITY, continuous_gpu.STEP_S * 1e3
    _print(
        f"{count} texts in virtual time, {places} at once, {step_ms:g} ms a step for any number; "
        f"prefill: {step_ms:g} ms",
        VIRTUAL,
        [row | {"way": _named(row)} for row in rows],
    )
    _print(
        f"Tokens a second of {continuous_gpu.TWICE}, times those of closed batches; the target is "
        "for continuous / bound of the drawn texts",
        BOUNDS,
        bounds,
    )
    return [*bounds, *rows]


def _real(quick: bool) -> list[dict[str, Any]]:
    """Measures in real time, prints the table, and returns its rows."""
    runs = ((0.005, 48, 1),) if quick else ((0.005, 128, 3), (0.02, 80, 1))
    rows: list[dict[str, Any]] = []
    for step_s, count, rounds in runs:
        new_model = partial(GpuModel, continuous_gpu.CAPACITY, step_s)
        common: dict[str, Any] = {"part": "real", "step_ms": step_s * 1e3}
        rows += [common | row for row in continuous_gpu.in_real_time(new_model, count, rounds)]
    for row in rows:
        if row["way"] == CONTINUOUS:
            row["verdict"] = verdict(row["of_bare"], at_least=OF_BARE)
    _print(
        f"In real time, lengths {continuous_gpu.REAL_LENGTHS.name}, {continuous_gpu.TWICE}; the "
        "target is for the part of the bare loop's tokens a second",
        REAL,
        [row | {"way": f"{row['step_ms']:g} ms: {row['way']}"} for row in rows],
    )
    return rows


def _on_a_gpu(quick: bool) -> list[dict[str, Any]]:
    """Measures a decoder on a GPU, prints the tables, and returns their rows."""
    if (reason := torch_model.why_not()) is not None:
        print(f"On a GPU: left out, since {reason}.\n")
        return []
    decoder = torch_model.Decoder(continuous_gpu.CAPACITY)
    steps = [
        {
            "part": "gpu step",
            "texts": texts,
            "step_ms": decoder.step_ms(texts),
            "joining_ms": decoder.step_ms(texts, joining=texts),
        }
        for texts in decoder.sizes
    ]
    _print(
        f"A decoder of 7 billion weights on {decoder.name}: how long a step takes, and one before "
        f"which it reads a prompt of {torch_model.PROMPT} tokens for each text",
        {"texts": ("texts", ""), "step_ms": ("ms", ".2f"), "joining_ms": ("with prompts", ".2f")},
        steps,
    )
    new_model = partial(torch_model.DecoderModel, decoder)
    rows = continuous_gpu.in_real_time(new_model, *((48, 1) if quick else (128, 3)))
    _print(
        f"With that decoder, lengths {continuous_gpu.REAL_LENGTHS.name}, {continuous_gpu.TWICE}",
        {name: column for name, column in REAL.items() if name != "verdict"},
        rows,
    )
    return [*steps, *({"part": "gpu"} | row for row in rows)]


def _on_the_cpu(quick: bool) -> list[dict[str, Any]]:
    """Measures the demo's model, prints the table, and returns its rows."""
    count, texts = (1, 32) if quick else (3, 96)
    rows = continuous_cpu.rows_of(count, texts)
    columns = {"name": ("load and way", "")} | continuous_cpu.COLUMNS
    shortest, longest = continuous_cpu.SHORTEST, continuous_cpu.LONGEST
    _print(
        f"On the CPU, {texts} texts of {shortest} to {longest} characters, {count} rounds",
        columns,
        [row | {"name": continuous_cpu.named(row)} for row in rows],
    )
    return rows


def _in_a_process(quick: bool) -> list[dict[str, Any]]:
    """Measures a model in a process, prints the table, and returns its rows."""
    rows = continuous_process.rows_of(*((1, 2.0) if quick else (5, 3.0)))
    columns = {"name": ("load and placement", "")} | continuous_process.COLUMNS
    _print(
        f"A step that holds the interpreter for {continuous_process.STEP_S * 1e3:g} ms, "
        f"{continuous_process.PLACES} places; busy: while the server is sent "
        f"{continuous_process.RATE:,} other requests/s",
        columns,
        [row | {"name": f"{row['load']}: {row['placement']}"} for row in rows],
    )
    return rows


PARTS: Final = {
    "virtual": _virtual,
    "real": _real,
    "gpu": _on_a_gpu,
    "cpu": _on_the_cpu,
    "process": _in_a_process,
}


def _sentence(rows: Sequence[dict[str, Any]]) -> str:
    said = []
    if bounds := [row for row in rows if row["part"] == "bound" and row["bound"] > 1]:
        said.append(_gains(bounds))
    if real := [row for row in rows if row["part"] == "real" and row["way"] == CONTINUOUS]:
        parts = (f"{row['of_bare']:.1%} at {row['step_ms']:g} ms a step" for row in real)
        said.append(f"in real time they write {' and '.join(parts)} of the bare loop's tokens")
    if gpu := [row for row in rows if row["part"] == "gpu" and row["way"] == CONTINUOUS]:
        said.append(
            f"on a GPU they write {gpu[0]['gain']:.2f} times the tokens of closed ones, "
            f"{gpu[0]['of_bare']:.1%} of the bare loop's"
        )
    if cpu := [row for row in rows if row["part"] == "cpu"]:
        said.append(continuous_cpu.sentence(cpu))
    if process := [row for row in rows if row["part"] == "process"]:
        said.append(continuous_process.sentence(process))
    return "; ".join(said) + "."


def _gains(bounds: Sequence[dict[str, Any]]) -> str:
    gains = ", ".join(
        f"{row['continuous']:.2f} (bound {row['bound']:.2f}, {row['lengths']})" for row in bounds
    )
    by_length = ", ".join(f"{row['by_length']:.2f}" for row in bounds)
    return (
        "where a step costs the same for any number of texts, continuous batches write "
        f"{gains} times the tokens of closed ones, and closed batches by known lengths {by_length} "
        "times"
    )


def _panels(rows: Sequence[dict[str, Any]]) -> list[Panel]:
    panels = []
    if bounds := [row for row in rows if row["part"] == "bound"]:
        panels += _virtual_panels(bounds, [row for row in rows if row["part"] == "virtual"])
    if cpu := [row for row in rows if row["part"] == "cpu"]:
        panels.append(continuous_cpu.panel(cpu))
    if real := [row for row in rows if row["part"] == "real"]:
        steps = list(dict.fromkeys(f"{row['step_ms']:g} ms" for row in real))
        series = {
            way: [row["tokens_a_second"] for row in real if row["way"] == way]
            for way in continuous_gpu.REAL_WAYS
        }
        panels.append(Panel("In real time", "tokens/s", steps, series))
    if process := [row for row in rows if row["part"] == "process"]:
        loads = list(continuous_process.TARGETS)
        series = {
            place: [row["tokens_a_second"] for row in process if row["placement"] == place]
            for place in continuous_process.PLACEMENTS
        }
        panels.append(Panel("In a process", "tokens/s", loads, series))
    if gpu := [row for row in rows if row["part"] == "gpu"]:
        series = {row["way"]: [row["tokens_a_second"]] for row in gpu}
        panels.append(Panel("On a GPU", "tokens/s", [str(continuous_gpu.TWICE)], series))
    return panels


def _virtual_panels(
    bounds: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]]
) -> list[Panel]:
    names = [row["lengths"].replace(" ", "\n", 1) for row in bounds]
    gains = {
        CLOSED: [1.0] * len(bounds),
        BY_LENGTH: [row["by_length"] for row in bounds],
        BARE: [row["bare"] for row in bounds],
        CONTINUOUS: [row["continuous"] for row in bounds],
        "bound": [row["bound"] for row in bounds],
    }
    at_half = [row for row in rows if row.get("load") == "load 0.5"]
    first: dict[str, list[float]] = {way: [] for way in continuous_gpu.WAYS}
    for row in at_half:
        first[row["way"]].append(row["first_p99_s"])
    return [
        Panel(f"{continuous_gpu.TWICE}", "tokens/s, times those of closed batches", names, gains),
        Panel("load 0.5", "first token, p99 s", names[: len(first[CLOSED])], first),
    ]


def main() -> None:
    """Runs the benchmark."""
    made = parser(
        "Continuous batches compared with closed ones, and with a bare loop.", "continuous"
    )
    made.add_argument(
        "--only",
        metavar="PARTS",
        default=",".join(PARTS),
        help="the parts to run, of %(default)s",
    )
    arguments = made.parse_args()
    parts = arguments.only.split(",")
    if unknown := set(parts) - set(PARTS):
        made.error(f"--only takes {', '.join(PARTS)}; not {', '.join(sorted(unknown))}")
    report = Report("continuous", arguments.json, ("shoal", "anyio", "trio", "numpy"))
    report.print_environment()
    report.rows = [row for part in parts for row in PARTS[part](arguments.quick)]
    if not report.rows:
        return
    report.finish(_sentence(report.rows), _panels(report.rows))


if __name__ == "__main__":
    main()
