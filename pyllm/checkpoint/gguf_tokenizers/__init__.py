"""Builds a `tokenizers` JSON from a GGUF file's fields, so that a text gets the same ids as with llama.cpp.

Opens no file and knows no model.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
