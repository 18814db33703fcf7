"""The page that shows a running server: its files, its feed, and who may see it."""
