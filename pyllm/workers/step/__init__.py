"""One step's arrays: the plan as tensors, the KV cache, what each slot keeps, what a forward pass reads.

Knows no layer and no sampling rule.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
