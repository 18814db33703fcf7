"""A batcher in simulated time: the real rules, without an event loop."""
