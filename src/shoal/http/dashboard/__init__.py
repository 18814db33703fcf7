"""The live page about a running server: its files, its feed, and who may see it."""
