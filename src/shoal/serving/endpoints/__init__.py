"""Endpoints: the routing of requests to backends, and shadow traffic."""
