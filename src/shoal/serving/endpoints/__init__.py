"""Endpoints: where requests go, and which are copied to a shadow."""
