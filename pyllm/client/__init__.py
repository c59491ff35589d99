"""The ZeroMQ SDK, which orchestrators embed: `EngineClient` sends requests to a core and survives its death.

Knows token ids only: no text, no tokenizer, no HTTP.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
