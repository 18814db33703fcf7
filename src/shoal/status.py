"""The status of a controller: frozen snapshots of values that JSON can represent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

BackendState = Literal["starting", "ready", "degraded", "unavailable", "draining"]
"""``degraded``: fewer replicas are ready than wanted. ``unavailable``: none is ready after one has
died or could not be started, or a batcher broke."""

ReplicaState = Literal["starting", "ready", "draining", "stopping"]
ModelState = Literal["loading", "loaded"]


@dataclass(frozen=True, kw_only=True)
class ReplicaStatus:
    """One replica.

    Attributes:
        tag: The replica's tag.
        state: The stage of its life.
        ongoing: The number of requests that it runs.
        batches: How often its code was run: the batches, or calls of code that takes no lists.
        memory_bytes: Its resident memory; None if it runs in the server's process.
        gpus: The GPUs that it was given.
        address: The address of its model server, with ``placement="remote"``.
        models: Its models with their states, with the option ``models``; the least recently used
            one first.
    """

    tag: str
    state: ReplicaState
    ongoing: int
    batches: int
    memory_bytes: int | None = None
    gpus: Sequence[str] = ()
    address: str | None = None
    models: Mapping[str, ModelState] = field(default_factory=dict[str, ModelState])


@dataclass(frozen=True, kw_only=True)
class GpuStatus:
    """One GPU that the server may use.

    Attributes:
        name: Its kind, such as ``"NVIDIA L4"``; None if NVML does not report it.
        replicas: The share of it that each replica has, from 0 to 1, by the replica's tag.
        memory_used_bytes: The memory in use, by all programs; None if NVML does not report it.
        memory_total_bytes: Its memory; None if NVML does not report it.
        utilization: The share of the last moment in which it was busy, from 0 to 1; None if NVML
            does not report it.
    """

    name: str | None = None
    replicas: Mapping[str, float] = field(default_factory=dict[str, float])
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    utilization: float | None = None


@dataclass(frozen=True, kw_only=True)
class BackendStatus:
    """One backend.

    Attributes:
        tag: The backend's tag.
        code: The code that it runs: an import path, or the name of an object.
        placement: Where its replicas run.
        state: Its state.
        wanted: The number of replicas that it should have.
        replicas: The replicas that it has.
        queued: The number of requests in the queue.
        ongoing: The number of requests in replicas.
        requests: The number of requests that have ended, in whatever way.
        errors: The number of requests that failed in the code, or with their replica or batcher.
        starts: The number of replicas that were started.
        deaths: The number of replicas that died, or were killed.
        restarts: The number of replicas that were started in place of one that died.
        model_loads: How many times a replica began to load a model.
        model_load_failures: How many of these loads failed.
        model_unloads: How many times a replica unloaded a model for another one.
        model_load_s: How long all loads took, in seconds.
        failure: Why the last replica died or could not be started; None if nothing is wrong.
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
    model_loads: int = 0
    model_load_failures: int = 0
    model_unloads: int = 0
    model_load_s: float = 0.0
    failure: str | None = None


@dataclass(frozen=True, kw_only=True)
class ShadowStatus:
    """One endpoint's shadow traffic to one backend.

    Attributes:
        backend: The backend.
        proportion: The share of the requests that is copied, from 0 to 1.
        compare: The function that compares the answers, as an import path or the name of an object;
            None if they are not compared.
        sent: The number of requests that were copied.
        dropped: The number that were not copied since too many copies were running.
        failed: The number of copies that failed.
        agreed: The number of comparisons that found the answers equal.
        disagreed: The number of comparisons that found them different.
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
        name: The endpoint's name.
        route: Its path; None if only handles can call it.
        methods: The HTTP methods that it accepts.
        traffic: The share of each backend; empty if none is set, and requests wait.
        shadows: Its shadow traffic.
        held: The number of requests that wait for traffic to be set.
        requests: The number of requests received.
        errors: The number of requests that failed, were late, or met a full queue.
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
class ModelServerStatus:
    """The address for other Shoal servers (``--model-server``), and what has arrived there.

    Attributes:
        connections: The number of open connections.
        accepted: The number of connections that were accepted, before their handshake.
        refused: The number of refused connections by reason: ``"token"``, ``"version"``,
            ``"not shoal"``, ``"timeout"``, ``"broken"`` (the connection, or TLS), ``"too many"``.
        messages: The number of messages with requests.
        requests: The number of requests in them.
    """

    connections: int
    accepted: int
    refused: Mapping[str, int]
    messages: int
    requests: int


@dataclass(frozen=True, kw_only=True)
class Status:
    """The status of a controller.

    Attributes:
        backends: The status of each backend, by tag.
        endpoints: The status of each endpoint, by name.
        gpus: The GPUs that the server may use, by their names in ``CUDA_VISIBLE_DEVICES``: those
            that NVML reports, and those that are given to replicas.
        model_server: Its address for other Shoal servers; None without one.
    """

    backends: Mapping[str, BackendStatus] = field(default_factory=dict[str, BackendStatus])
    endpoints: Mapping[str, EndpointStatus] = field(default_factory=dict[str, EndpointStatus])
    gpus: Mapping[str, GpuStatus] = field(default_factory=dict[str, GpuStatus])
    model_server: ModelServerStatus | None = None
