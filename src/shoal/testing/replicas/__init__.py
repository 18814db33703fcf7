"""The check that a placement's replicas keep the promises of `Replica`."""
