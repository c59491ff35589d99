"""Parsers of streamed answers: reasoning, tool calls and text, each in the form that a model family writes.

Know characters only: no tokens, no API.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
