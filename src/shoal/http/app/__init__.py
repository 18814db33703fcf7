"""`App`: what an application declares, how it opens, and what it serves beside endpoints."""
