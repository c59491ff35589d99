"""The life of one HTTP request in the engine: admitted, submitted, measured, ended.

Knows no API's fields and no shape of an answer.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
