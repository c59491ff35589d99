"""Conversations with tools, independent of the API: the request that each becomes, and the parsing of its answer.

Knows no API's fields and no HTTP.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
