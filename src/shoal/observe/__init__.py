"""Metrics of a running application. The batching engine does not depend on this package."""
