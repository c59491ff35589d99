"""`pyllm bench`: load tests of servers and engines, measured from outside, and comparisons of their results.

Knows no server by name and no internals of the engine: servers are addresses, engines are `AsyncEngine`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
