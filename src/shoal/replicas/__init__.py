"""Replicas, which run user code: in this event loop, in threads, in processes, in Ray actors."""
