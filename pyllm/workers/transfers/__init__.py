"""KV blocks between a rank's cache and the connector: copies beside the steps, and the connector's calls in a step.

Knows neither how a connector keeps blocks nor what a step computes.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
