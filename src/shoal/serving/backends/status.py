"""Makes the status of a backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.replicas.placements import placement_name
from shoal.serving.status import BackendState, BackendStatus, ReplicaStatus

if TYPE_CHECKING:
    from shoal.serving.backends.backend import Backend


def state_of(backend: Backend) -> BackendState:
    if backend.is_closing:
        return "draining"
    if backend.failure is not None:
        return "unavailable"
    supervisor = backend.supervisor
    if not supervisor.wanted:
        return "ready"  # a request starts a replica
    if not supervisor.ready():
        return "unavailable" if supervisor.failures.deaths else "starting"
    return "degraded" if supervisor.is_missing_some() else "ready"


def status_of(backend: Backend) -> BackendStatus:
    supervisor = backend.supervisor
    failures = supervisor.failures
    failure = backend.failure or failures.last
    batchers = list(backend.statistics())
    return BackendStatus(
        tag=backend.tag,
        code=backend.definition.import_path or backend.definition.name,
        placement=placement_name(backend.config.placement),
        state=state_of(backend),
        wanted=supervisor.wanted,
        replicas=[
            ReplicaStatus(
                tag=managed.replica.tag,
                state=managed.state,
                ongoing=managed.ongoing,
                batches=0 if managed.member is None else managed.member.total,
                memory_bytes=managed.replica.memory_bytes(),
                gpus=managed.replica.blueprint.devices,
            )
            for managed in supervisor.managed
        ],
        queued=backend.queued,
        ongoing=backend.ongoing,
        requests=sum(
            [e.finished + e.failed + e.declined + e.cancelled + e.expired for e in batchers]
        ),
        errors=sum([each.failed for each in batchers]),
        starts=failures.starts,
        deaths=failures.deaths,
        restarts=failures.restarts,
        failure=None if failure is None else str(failure),
    )
