"""The number of a backend's replicas, and the life cycle of each."""
