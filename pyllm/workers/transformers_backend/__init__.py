"""Models that transformers computes, with pyllm's paged attention and linear layers in place of its own.

Only workers of such a model and the probe import this.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
