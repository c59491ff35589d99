"""Metrics in Prometheus' format, and traces in OpenTelemetry's.

Knows no route; the counted code calls it.
"""
