"""The parts of every HTTP answer: streams, event ids, errors, fields that have no effect, the OpenAPI document.

Knows no route by name and no engine.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
