"""A Ray Serve application with the routes of `pyllm serve`: replicas of the API, and of the cores that they use.

Knows no tokens and no requests: it composes the frontend and the cores' processes. The executor that runs ranks on
Ray's nodes is in `core/executors`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
