"""When a replica is replaced though nothing is wrong with it: it leaks, or is thought to."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.serving.config.config import BackendConfig
    from shoal.serving.replica_set.pool import Member


def may_wear_out(config: BackendConfig) -> bool:
    """Says whether replicas are ever replaced for that."""
    return config.max_batches_per_replica is not None or config.replica.max_memory_bytes is not None


def worn_out(member: Member, config: BackendConfig) -> str | None:
    """Says why a replica is to be replaced; None if it is not."""
    most, cap = config.max_batches_per_replica, config.replica.max_memory_bytes
    if most is not None and member.total >= most:
        return f"has run {member.total} batches"
    memory = None if cap is None else member.replica.memory_bytes()
    if cap is not None and memory is not None and memory > cap:
        return f"has {memory} bytes of memory, more than max_memory_bytes={cap}"
    return None
