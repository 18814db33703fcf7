"""How many replicas a backend has, and what becomes of each."""
