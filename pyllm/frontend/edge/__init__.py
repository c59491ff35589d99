"""The checks in front of the application: keys, request ids, sizes, time limits, origins.

Knows no route's body and no engine.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
