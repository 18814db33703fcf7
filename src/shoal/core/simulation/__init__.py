"""Simulation of a batcher: the real rules in simulated time, without an event loop."""
