"""OpenAI's Responses API: routes, items, stored and background responses.

The engine's side is `requests` and `answers`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
