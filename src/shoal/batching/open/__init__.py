"""Batches that requests join while their handler runs."""
