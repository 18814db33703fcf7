"""The replicas of a backend: started, watched, replaced, and given work."""
