"""Transfers of KV blocks between a rank's cache and the KV connector: copies, and calls of the connector in a step.

Knows neither the storage of a connector nor the computation of a step.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
