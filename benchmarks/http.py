"""Shoal's server and Shoal over HTTP, compared with bare loops and with other servers.

Each server is a process of its own on 127.0.0.1. The servers of a part run all the time and are
loaded in turn; each figure is the median of the rounds, and each ratio the median of the ratios of
a round. ``make bench-peers`` installs the other servers; those that are missing are left out.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":  # else it would shadow the standard library's http
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import argparse
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from benchmarks import http_idle, http_load, http_parts, http_servers, http_start
from benchmarks.http_rounds import Effort, take_turns
from benchmarks.report import Report, parser

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.http_parts import Part
    from benchmarks.http_servers import Server
    from benchmarks.http_tables import Table

LOADED: Final[dict[str, Callable[[Effort], Part]]] = {
    "echo": http_parts.echo,
    "noop": http_parts.noop,
    "hosts": http_parts.hosts,
    "streams": http_parts.streams,
    "model": http_parts.model,
}
PARTS: Final = (*LOADED, "idle", "start")


def main() -> None:
    """Runs the benchmark."""
    arguments = _arguments()
    if not Path("/proc/self/stat").exists():
        raise SystemExit("This benchmark reads what servers use from /proc, so it needs Linux.")
    began = time.perf_counter()
    report = Report("http", arguments.json, tuple(http_servers.own_versions()))
    report.print_environment()
    wrk = http_load.wrk_path()
    _print_peers(wrk)
    effort = Effort(wrk, 1, 1, 1, 1, 0.2) if arguments.quick else Effort(wrk, 15, 1, 8, 2, 0.5)
    if arguments.rounds is not None:
        effort = replace(effort, rounds=arguments.rounds, slow_rounds=arguments.rounds)
    tables: list[Table] = []
    for name in arguments.only:
        found = _measure(name, effort, arguments.servers, is_quick=arguments.quick)
        for table in found:
            table.print()
        tables += found
    report.rows = [row for table in tables for row in table.rows()]
    missed = [one for table in tables for one in table.missed()]
    met = sum(table.met() for table in tables)
    for one in missed:
        print(f"MISSED  {one}")
    print(f"\nIt took {time.perf_counter() - began:.0f} s.")
    sentence = f"{met} of the {met + len(missed)} targets that were measured are met"
    report.finish(
        f"{sentence}; those that are missed are named above." if missed else f"{sentence}.",
        [table.panel() for table in tables],
    )


def _arguments() -> argparse.Namespace:
    def parts(given: str) -> list[str]:
        names = given.split(",")
        if not set(names) <= set(PARTS):
            raise argparse.ArgumentTypeError(f"{given!r}; there are {', '.join(PARTS)}")
        return [name for name in PARTS if name in names]

    made = parser("Shoal's server and Shoal over HTTP, compared with others.", "http")
    made.add_argument(
        "--only",
        metavar="PART,...",
        type=parts,
        default=list(PARTS),
        help=f"measure these parts only, of {', '.join(PARTS)}",
    )
    made.add_argument(
        "--servers",
        metavar="NAME,...",
        type=lambda given: given.split(","),
        help="of the loaded parts, measure these servers only, by the names in their tables",
    )
    made.add_argument(
        "--rounds", metavar="N", type=int, help="the number of rounds of each loaded part"
    )
    return made.parse_args()


def _print_peers(wrk: str | None) -> None:
    versions = http_servers.peer_versions()
    print(f"{'peers':10} {', '.join(f'{name} {each}' for name, each in versions.items()) or '-'}")
    if missing := [name for name in http_servers.PEER_PACKAGES if name not in versions]:
        print(f"{'missing':10} {', '.join(missing)}; install them with: make bench-peers")
    if wrk is None:
        print(
            f"{'missing':10} wrk; install it with: apt install wrk\n"
            f"{'':10} Without it the benchmark's own client limits the rates; read the CPU times."
        )
    print()


def _measure(
    name: str, effort: Effort, servers: Sequence[str] | None, *, is_quick: bool
) -> list[Table]:
    if name in LOADED:
        part = LOADED[name](effort)
        if servers is not None:
            chosen = [server for server in part.servers if server.name in servers]
            if len(chosen) < len(servers):
                known = ", ".join(server.name for server in part.servers)
                raise SystemExit(f"{name} has no such server as {servers}; it has {known}")
            part = replace(part, servers=chosen)
        clients = ", ".join(dict.fromkeys(load.clients for load in part.loads))
        print(f"== {name}: {part.about}")
        print(f"rounds: {part.rounds} of {part.seconds} s, by {clients}")
        return take_turns(_present(part.servers), part.loads, part.rounds)
    if name == "start":
        print("== start: from the start of the process to the first answer")
        return [
            http_start.measure_start(_present(http_start.start_servers()), 1 if is_quick else 5)
        ]
    wanted = 1000 if is_quick else http_idle.CONNECTIONS
    connections = http_idle.allow_connections(wanted)
    print("== idle: open connections, each of which has had one request answered")
    if connections < wanted:
        print(f"{wanted:,} wanted, but the limit on open files allows {connections:,} (ulimit -Hn)")
    idle = http_idle.IdleEffort(connections, *((1, 1, 0.5) if is_quick else (3, 3, 0.5)))
    return [http_idle.measure_idle(_present(http_idle.idle_servers(connections)), idle)]


def _present(servers: Sequence[Server]) -> list[Server]:
    """Prints the commands of the servers; returns those that are installed."""
    for server in servers:
        if missing := server.missing:
            print(f"  {server.name}: left out, lacks {', '.join(missing)}: {server.how_to_install}")
        else:
            print(f"  {server.name}: {server.shown_command}")
    print(flush=True)
    return [server for server in servers if not server.missing]


if __name__ == "__main__":
    main()
