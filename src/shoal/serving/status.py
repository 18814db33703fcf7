"""What a controller says of itself: frozen snapshots, of what JSON can carry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

BackendState = Literal["starting", "ready", "degraded", "unavailable", "draining"]
"""``degraded`` has fewer replicas than it should, ``unavailable`` none, and can't start one."""

ReplicaState = Literal["starting", "ready", "draining", "stopping"]


@dataclass(frozen=True, kw_only=True)
class ReplicaStatus:
    """One replica.

    Attributes:
        tag: Its tag.
        state: Where it is in its life.
        ongoing: How many requests it runs.
        batches: How many batches it has run.
        memory_bytes: Its resident memory; None where it shares the server's.
    """

    tag: str
    state: ReplicaState
    ongoing: int
    batches: int
    memory_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class BackendStatus:
    """One backend.

    Attributes:
        tag: Its tag.
        code: What it runs: an import path, or the name of an object.
        placement: Where its replicas run.
        state: How it is.
        wanted: How many replicas it should have.
        replicas: Those it has.
        queued: Requests in line.
        ongoing: Requests in replicas.
        requests: Requests that have come to an end, by whatever end.
        errors: Those that failed.
        starts: Replicas that were started.
        deaths: Replicas that died, or were killed.
        restarts: Replicas that were started in place of one that died.
        failure: Why the last replica died or could not be started; None if all is well.
    """

    tag: str
    code: str
    placement: str
    state: BackendState
    wanted: int
    replicas: Sequence[ReplicaStatus]
    queued: int
    ongoing: int
    requests: int
    errors: int
    starts: int
    deaths: int
    restarts: int
    failure: str | None = None


@dataclass(frozen=True, kw_only=True)
class ShadowStatus:
    """One endpoint's shadow traffic to one backend.

    Attributes:
        backend: The backend.
        proportion: The share of the requests that is copied, from 0 to 1.
        compare: What compares the answers: an import path, or the name of an object; None without.
        sent: Requests that were copied.
        dropped: Those that were not, since too many copies were under way.
        failed: Copies that failed.
        agreed: Answers that were found to be alike.
        disagreed: Answers that were not.
        latency_s: The sum of the copies' latencies, in seconds.
    """

    backend: str
    proportion: float
    compare: str | None = None
    sent: int = 0
    dropped: int = 0
    failed: int = 0
    agreed: int = 0
    disagreed: int = 0
    latency_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class EndpointStatus:
    """One endpoint.

    Attributes:
        name: Its name.
        route: Its path; None if it is for handles alone.
        methods: The HTTP methods that it answers.
        traffic: The share of each backend; empty while it holds its requests.
        shadows: Its shadow traffic.
        held: Requests that wait for traffic to be set.
        requests: Requests that came.
        errors: Those that failed.
    """

    name: str
    route: str | None
    methods: Sequence[str]
    traffic: Mapping[str, float]
    shadows: Sequence[ShadowStatus] = ()
    held: int = 0
    requests: int = 0
    errors: int = 0


@dataclass(frozen=True, kw_only=True)
class Status:
    """All of a controller.

    Attributes:
        backends: Its backends, by tag.
        endpoints: Its endpoints, by name.
    """

    backends: Mapping[str, BackendStatus] = field(default_factory=dict[str, BackendStatus])
    endpoints: Mapping[str, EndpointStatus] = field(default_factory=dict[str, EndpointStatus])
