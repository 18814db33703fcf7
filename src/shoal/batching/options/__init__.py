"""The options of a batcher: checked, adapted to the handler, and changed while it runs."""
