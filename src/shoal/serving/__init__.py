"""Backends, endpoints and traffic, and the controller that owns them."""
