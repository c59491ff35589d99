"""`pyllm bench`: loads on servers and engines, measured from outside, and what follows from the measurements.

Knows no server by name and nothing of the engine's inside: servers are addresses, engines are `AsyncEngine`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
