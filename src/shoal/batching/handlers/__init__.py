"""The user's function as a handler: its signature, its items, and its kind."""
