"""Values within the calls that a model writes: JSON, Python's and Gemma's literals, texts in tags, and what ends them.

Know characters only: no calls, no reasoning.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
