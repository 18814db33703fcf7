"""The config of a backend: its options, their checks, and their form as JSON."""
