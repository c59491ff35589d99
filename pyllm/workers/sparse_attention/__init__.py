"""Sparse attention: our own selectors of KV blocks, which use summaries of keys, and those of other packages.

Knows neither how attention is computed nor which steps there are.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
