"""Policies: how batches are formed, and the base classes of your own."""

from shoal.core.policy import BatchPolicy, Dispatch, Pressure, Wait, WholeQueuePolicy

__all__ = ["BatchPolicy", "Dispatch", "Pressure", "Wait", "WholeQueuePolicy"]
