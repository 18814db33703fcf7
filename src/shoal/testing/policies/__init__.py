"""The check that a policy keeps the promises of `BatchPolicy`."""
