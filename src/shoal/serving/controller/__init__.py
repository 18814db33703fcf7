"""The controller: it owns backends and endpoints."""
