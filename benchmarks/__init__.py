"""Benchmarks of speed and memory; see README.md."""
