"""A backend: user code with a config, its batchers, and the replicas that run their batches."""
