"""Weights from files, by a reader for each format, and packed matrices that are kept on disk.

Know no layer and no model.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
