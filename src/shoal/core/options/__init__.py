"""The options of a batcher: their names, their checks, and which go together."""
