"""Replicas in this process: in tasks of the event loop, or in a thread."""
