"""One step's arrays: the plan as tensors, the KV cache, the state of slots, the inputs of a forward pass.

Knows no layer and no sampling rule.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
