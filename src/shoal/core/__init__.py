"""The decisions of a batcher, without an event loop: pure state, with `now` as an argument."""
