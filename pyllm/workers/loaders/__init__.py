"""Readers of weights, one for each file format, and the cache of packed matrices on disk.

They know no layer and no model.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
