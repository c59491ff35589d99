"""Conversations in a terminal: where answers come from, how they are shown, what the commands do, and completions.

Knows neither HTTP routes nor the engine's parts: it is a client of a server, or of an `AsyncEngine`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
