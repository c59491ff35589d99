"""Weights from files: one reader for each format, each filling a rank's share of a tensor and no more.

Know no layer and no model.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
