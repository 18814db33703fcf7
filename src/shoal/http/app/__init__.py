"""`App`: declarations, opening, and the pages beside the endpoints."""
