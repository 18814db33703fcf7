"""Large requests: images of 150 KB, as raw bytes, from 64 clients to a model that batches.

The model is a fake of one on an accelerator, which sleeps; or with ``--model resnet50`` ResNet-50
with random weights on a GPU, which needs PyTorch and torchvision. `shoal serve` runs it in a
process, one image at a time and in batches of up to 32, and in a thread of its own; mosec runs it
in a process. Beside them stands the model in a loop of its own, without a server.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

if __name__ == "__main__":  # else http.py here would shadow the standard library's
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import http_load, http_servers, torch_model
from benchmarks.http_process import ROOT
from benchmarks.images_handlers import FAKE, IMAGE_BYTES, LARGEST, RESNET, WHICH
from benchmarks.report import Panel, Report, parser, print_table

if TYPE_CHECKING:
    from benchmarks.http_process import ServerProcess

CLIENTS: Final = 64
RAW: Final = "application/octet-stream"
SHOAL: Final = http_servers.shoal_serve("shoal serve", "benchmarks.images_app:app")
MOSEC: Final = http_servers.mosec("mosec", "benchmarks.http_peers.mosec_images")
WAYS: Final = (
    ("shoal serve, a process, one at a time", SHOAL, "/one", 1),
    ("shoal serve, a process", SHOAL, "/process", LARGEST),
    ("shoal serve, a thread", SHOAL, "/thread", LARGEST),
    ("mosec, a process", MOSEC, "/inference", LARGEST),
)
COLUMNS: Final = {
    "images_a_second": ("images/s", ",.0f"),
    "of_model": ("of the model alone", ".2f"),
    "times_mosec": ("times mosec's", ".2f"),
    "p50_ms": ("p50 ms", ".1f"),
    "p99_ms": ("p99 ms", ".1f"),
    "cpu_us": ("CPU us an image", ",.0f"),
}


def request_of(path: str) -> bytes:
    """Returns the request of an image."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {RAW}\r\n"
        f"Content-Length: {IMAGE_BYTES}\r\n\r\n"
    )
    return head.encode() + bytes(IMAGE_BYTES)


def alone() -> dict[int, float]:
    """Returns how many images a second the model does without a server, by size of batches."""
    command = [sys.executable, "-m", "benchmarks.images_handlers"]
    ran = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return {int(size): rate for size, rate in json.loads(ran.stdout).items()}


def started(stack: ExitStack, server: http_servers.Server) -> ServerProcess:
    """Starts a server, which ends with the stack, and waits until each of its paths answers."""
    process = stack.enter_context(server.start())
    for _, of, path, _ in WAYS:
        if of is server:
            process.wait_answer(partial(_is_answered, path))
    return process


def _is_answered(path: str, port: int) -> bool:
    return http_load.ask(port, "POST", path, bytes(IMAGE_BYTES), RAW)[0] == 200


def main() -> None:
    """Runs the benchmark."""
    made = parser("Images of 150 KB in batches.", "images")
    made.add_argument("--model", choices=(FAKE, RESNET), default=FAKE)
    given = made.parse_args()
    if given.model == RESNET and (reason := torch_model.why_not()) is not None:
        raise SystemExit(f"{RESNET} needs a GPU: {reason}.")
    os.environ[WHICH] = given.model
    report = Report("images", given.json, ("shoal", "anyio", "trio"))
    report.print_environment()
    if MOSEC.missing:
        print(f"Without mosec; to install it: {MOSEC.how_to_install}\n")
    by_itself = alone()
    seen: dict[str, list[http_load.Load]] = {}
    with ExitStack() as stack:
        processes = {one.name: started(stack, one) for one in (SHOAL, MOSEC) if not one.missing}
        for _ in range(1 if given.quick else 5):
            for name, server, path, _ in WAYS:
                if server.name not in processes:
                    continue
                print(f"{name} ...", file=sys.stderr)
                load = http_load.drive(
                    processes[server.name],
                    request_of(path),
                    clients=CLIENTS,
                    warm_up_s=0.5,
                    seconds=2,
                )
                if load.failures or not load.requests:
                    raise SystemExit(f"{name}: {load.failures} requests failed")
                seen.setdefault(name, []).append(load)
    report.rows = [
        _row(name, loads, by_itself, seen.get(WAYS[-1][0])) for name, loads in seen.items()
    ]
    sizes = ", ".join(f"{rate:,.0f} in batches of {size}" for size, rate in by_itself.items())
    print(f"{given.model}: the model alone does {sizes} images a second\n")
    print_table(
        ["", *(head for head, _ in COLUMNS.values())],
        [
            [
                row["name"],
                *(
                    format(row[key], how) if key in row else "-"
                    for key, (_, how) in COLUMNS.items()
                ),
            ]
            for row in report.rows
        ],
    )
    report.finish(_sentence(report.rows), [_panel(report.rows)])


def _row(
    name: str,
    loads: list[http_load.Load],
    by_itself: dict[int, float],
    of_mosec: list[http_load.Load] | None,
) -> dict[str, Any]:
    rates = [load.requests / load.seconds for load in loads]
    size = next(size for of, _, _, size in WAYS if of == name)
    row = {
        "name": name,
        "images_a_second": median(rates),
        "of_model": median(rates) / by_itself[size],
        "p50_ms": median(load.p50_ms for load in loads),
        "p99_ms": median(load.p99_ms for load in loads),
        "cpu_us": median(load.cpu_s / load.requests * 1e6 for load in loads),
    }
    if of_mosec:
        others = [load.requests / load.seconds for load in of_mosec]
        row["times_mosec"] = median(a / b for a, b in zip(rates, others, strict=True))
    return row


def _sentence(rows: list[dict[str, Any]]) -> str:
    one, process = rows[:2]
    gain = process["images_a_second"] / one["images_a_second"]
    said = f"in batches `shoal serve` answers {gain:.1f} times as many images as one at a time"
    if "times_mosec" in process:
        said += f", {process['times_mosec']:.2f} times as many as mosec"
    return f"{said}."


def _panel(rows: list[dict[str, Any]]) -> Panel:
    series = {row["name"]: [row["images_a_second"]] for row in rows}
    return Panel("Images of 150 KB", "images/s", [f"{CLIENTS} clients"], series)


if __name__ == "__main__":
    main()
