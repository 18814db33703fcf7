"""Errors of user code: a copy for each caller, and limits on their effects."""
