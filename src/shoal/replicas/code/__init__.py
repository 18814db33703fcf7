"""The user's code that a replica runs: its definition, its instance, and its description."""
