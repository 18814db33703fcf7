"""Clients: what drives a controller and calls its endpoints, from here or over HTTP."""
