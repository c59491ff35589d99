"""Executors of plans: worker processes on this machine or on a Ray cluster, or the core's own process.

Knows no client, no request and no scheduling.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
