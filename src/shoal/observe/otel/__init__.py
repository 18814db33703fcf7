"""Traces for OpenTelemetry, of programs that ask for them; the extra ``otel``."""
