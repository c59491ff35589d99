"""Anthropic's Messages API.

Its routes use the engine through `requests` and `answers`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
