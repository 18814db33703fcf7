"""Process replicas: the parent's side."""
