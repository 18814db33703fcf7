"""Replicas in actors of a Ray cluster."""
