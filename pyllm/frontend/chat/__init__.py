"""Conversations with tools, independent of the API: what the engine is asked for, and how its answer is read.

Knows no API's fields and no HTTP.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
