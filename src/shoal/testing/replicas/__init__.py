"""The check of a placement's replicas."""
