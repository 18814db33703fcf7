"""The state file: what a controller was told, kept for its next start."""
