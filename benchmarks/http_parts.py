"""The parts of http.py in which servers take turns under load: who serves what, and the targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from benchmarks.http_batches import GENERATE, PREDICT
from benchmarks.http_handlers import MAX_BATCH_SIZE, MODEL_TOKENS, PACE_S, TOKENS
from benchmarks.http_rounds import UNARY_CLIENTS, results, streams_of, with_mean_batch
from benchmarks.http_servers import Server, floor, granian, hypercorn, mosec, shoal_serve, uvicorn
from benchmarks.http_tables import Target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.http_rounds import Effort, Load

ECHO_APP: Final = "benchmarks.http_peers.echo:app"

SHOAL: Final = "shoal serve"
SHOAL_ASYNCIO: Final = "shoal serve (asyncio)"
ONE_READER: Final = "floor (one reader)"
READER_EACH: Final = "floor (reader each)"
UVICORN: Final = "uvicorn"
HYPERCORN: Final = "Hypercorn (trio)"
GRANIAN: Final = "Granian"
MOSEC: Final = "mosec"
BARE_BATCHER: Final = "Batcher (floor)"
BARE_LOOP: Final = "bare loop (floor)"
FASTAPI: Final = "FastAPI (uvicorn)"
BARE_MODEL: Final = "bare loop (Hypercorn)"

MODEL_CLIENTS: Final = (8, 64, 256)
FILLED: Final = 56 / 64
"""How full the batches of clients in closed loops should be."""


@dataclass(frozen=True)
class Part:
    """Servers that take turns.

    Attributes:
        about: What is measured.
        servers: The servers.
        loads: The loads of one turn.
        rounds: How many rounds to measure.
        seconds: How long a round of one server takes.
    """

    about: str
    servers: Sequence[Server]
    loads: Sequence[Load]
    rounds: int
    seconds: int


def echo(effort: Effort) -> Part:
    """The cost of the server itself: a plain ASGI application that answers with its body."""
    servers = [
        shoal_serve(SHOAL, ECHO_APP),
        shoal_serve(SHOAL_ASYNCIO, ECHO_APP, "--event-loop", "asyncio"),
        floor(ONE_READER, ECHO_APP, "one-reader"),
        floor(READER_EACH, ECHO_APP, "reader-each"),
        uvicorn(UVICORN, ECHO_APP),
        hypercorn(HYPERCORN, ECHO_APP),
        granian(GRANIAN, ECHO_APP),
    ]
    targets = [
        Target("rate", SHOAL, ONE_READER, at_least=0.85),
        Target("rate", SHOAL, UVICORN, at_least=1.5),
        Target("rate", SHOAL_ASYNCIO, UVICORN, at_least=1.5),
        Target("rate", SHOAL, READER_EACH),
        Target("rate", SHOAL, HYPERCORN),
        Target("rate", SHOAL, GRANIAN),
    ]
    about = "a plain ASGI application that answers with its body"
    return Part(
        about, servers, [results(effort, "echo", "/echo", targets)], effort.rounds, effort.seconds
    )


def noop(effort: Effort) -> Part:
    """The cost of batching over HTTP: JSON in batches, and a handler that does nothing."""
    shoal_app = "benchmarks.http_app:noop_app"
    servers = [
        shoal_serve(SHOAL, shoal_app),
        shoal_serve(SHOAL_ASYNCIO, shoal_app, "--event-loop", "asyncio"),
        floor(BARE_BATCHER, "benchmarks.http_bare:noop_app", "one-reader"),
        uvicorn(FASTAPI, "benchmarks.http_peers.fastapi_app:app"),
    ]
    targets = [
        Target("cpu_us", SHOAL, BARE_BATCHER, at_most=1.35),
        Target("rate", SHOAL, FASTAPI, at_least=3.5),
        Target("cpu_us", SHOAL, at_most=70),
        Target("rate", SHOAL_ASYNCIO, FASTAPI, at_least=3.5),
    ]
    about = "JSON in batches, and a handler that returns its items"
    return Part(
        about, servers, [results(effort, "noop", "/noop", targets)], effort.rounds, effort.seconds
    )


def hosts(effort: Effort) -> Part:
    """The same application on Shoal's own server and on Hypercorn, as ``shoal serve`` starts it."""
    app = "benchmarks.http_app:noop_app"
    servers = [
        shoal_serve(f"{host} ({loop})", app, "--server", host, "--event-loop", loop)
        for host in ("shoal", "hypercorn")
        for loop in ("trio", "asyncio")
    ]
    loads = [
        results(
            effort,
            f"hosts, {clients} clients",
            "/noop",
            [
                Target("rate", f"shoal ({loop})", f"hypercorn ({loop})")
                for loop in ("trio", "asyncio")
            ],
            clients,
        )
        for clients in (4, UNARY_CLIENTS)
    ]
    about = "JSON in batches, on Shoal's own server and on Hypercorn"
    return Part(about, servers, loads, effort.rounds, effort.seconds)


def streams(effort: Effort) -> Part:
    """The cost of a token, where the handler costs nothing."""
    shoal_app = "benchmarks.http_app:tokens_app"
    servers = [
        shoal_serve(SHOAL, shoal_app),
        shoal_serve(SHOAL_ASYNCIO, shoal_app, "--event-loop", "asyncio"),
        floor(BARE_LOOP, "benchmarks.http_bare:tokens_app", "reader-each"),
    ]
    paced = [
        Target("cpu_us", SHOAL, BARE_LOOP, at_most=1.3),
        Target("cpu_us", SHOAL_ASYNCIO, BARE_LOOP),
    ]
    # The bare loop sends all tokens of a stream at once here, so this has no target.
    at_once = [Target("cpu_us", SHOAL, BARE_LOOP), Target("cpu_us", SHOAL_ASYNCIO, BARE_LOOP)]
    loads = [
        streams_of(effort, f"a token each {PACE_S * 1e3:g} ms", "/paced", TOKENS, paced),
        streams_of(effort, "tokens at once", "/at-once", TOKENS, at_once),
    ]
    about = f"{TOKENS} tokens for each request, as server-sent events"
    return Part(about, servers, loads, effort.slow_rounds, effort.slow_seconds)


def model(effort: Effort) -> Part:
    """A model that blocks: Shoal's application on several servers, mosec, and bare loops."""
    shoal_app = "benchmarks.http_app:model_app"
    on_hypercorn, on_uvicorn = "App (Hypercorn)", "App (uvicorn)"
    servers = [
        shoal_serve(SHOAL, shoal_app),
        shoal_serve(SHOAL_ASYNCIO, shoal_app, "--event-loop", "asyncio"),
        mosec(MOSEC, "benchmarks.http_peers.mosec_app"),
        floor(BARE_LOOP, "benchmarks.http_bare_model:floor_app", "one-reader"),
        hypercorn(BARE_MODEL, "benchmarks.http_bare_model:app"),
        hypercorn(on_hypercorn, shoal_app),
        uvicorn(on_uvicorn, shoal_app, is_peer=False),
    ]
    loads = [
        with_mean_batch(
            results(
                effort,
                f"model, {clients} clients",
                "/predict",
                [
                    Target("rate", SHOAL, MOSEC, at_least=1),
                    Target("p99_ms", SHOAL, MOSEC, at_most=1),
                    Target("mean_batch", SHOAL, at_least=FILLED * min(clients, MAX_BATCH_SIZE)),
                    Target("rate", SHOAL, BARE_MODEL, at_least=0.85),
                    Target(
                        *("rate", on_hypercorn, BARE_MODEL),
                        at_least=0.85 if clients == UNARY_CLIENTS else None,
                    ),
                    Target("rate", SHOAL, BARE_LOOP),
                    Target("rate", SHOAL_ASYNCIO, MOSEC, at_least=1),
                    Target("rate", on_uvicorn, BARE_MODEL),
                ],
                clients,
            ),
            PREDICT,
        )
        for clients in MODEL_CLIENTS
    ]
    of_streams = [
        Target("token_rate", SHOAL, MOSEC, at_least=1.5),
        Target("token_rate", SHOAL, BARE_LOOP, at_least=0.95),
        Target("token_rate", SHOAL, BARE_MODEL, at_least=0.95),
        Target("first_p50_ms", SHOAL, at_most=8),
        Target("token_rate", SHOAL_ASYNCIO, MOSEC, at_least=1.5),
        Target("token_rate", on_hypercorn, BARE_MODEL, at_least=0.85),
        Target("token_rate", on_uvicorn, BARE_MODEL),
    ]
    streamed = streams_of(effort, "model, streams", "/generate", MODEL_TOKENS, of_streams)
    loads.append(with_mean_batch(streamed, GENERATE))
    about = "a model that blocks for 2 ms and 0.05 ms an item, or 2 ms a token"
    return Part(about, servers, loads, effort.slow_rounds, effort.slow_seconds)
