"""Conversations in a terminal: sources of answers, their display, the commands of a chat, and completions.

Knows no parts of the engine: it is a client of a server, or of an `AsyncEngine`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
