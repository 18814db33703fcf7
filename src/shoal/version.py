"""The version of Shoal. The build reads it here."""

__version__ = "0.1.0.dev0"
