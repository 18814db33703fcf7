"""A backend: user code with a config, and the batchers in which its requests wait."""
