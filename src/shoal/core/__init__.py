"""What is decided, with no event loop in sight: pure state, with `now` as an argument."""
