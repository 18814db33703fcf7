"""The status of a controller and of everything that it serves."""

from shoal.serving.status import (
    BackendStatus,
    EndpointStatus,
    GpuStatus,
    ModelServerStatus,
    ReplicaStatus,
    ShadowStatus,
    Status,
)

__all__ = [
    "BackendStatus",
    "EndpointStatus",
    "GpuStatus",
    "ModelServerStatus",
    "ReplicaStatus",
    "ShadowStatus",
    "Status",
]
