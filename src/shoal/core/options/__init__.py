"""The options of a batcher: their names, their checks, and which can be combined."""
