"""Options of a batcher as they are given: checked, adapted, and changed while it runs."""
