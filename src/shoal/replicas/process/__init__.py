"""Replicas in processes of their own: the parent's side."""
