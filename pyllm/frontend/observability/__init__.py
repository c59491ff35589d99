"""Metrics in Prometheus' format, and traces in OpenTelemetry's.

Knows no route; the counted code calls it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
