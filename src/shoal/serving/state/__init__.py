"""The state file: a controller's declarations, kept for its next start."""
