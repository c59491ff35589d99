"""Model families: which layers, and which tensors fill them.

Know no step and no cache but what layers are given.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
