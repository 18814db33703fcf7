"""`App`: what a program declares, the opening of it, and the pages beside the endpoints."""
