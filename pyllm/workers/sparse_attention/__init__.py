"""Sparse attention: built-in selectors of KV blocks, which use summaries of keys, and those of other packages.

Knows neither the computation of attention nor the steps.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
