"""What needs the extra is collected where it is installed: `make ray` does that."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("ray") else ["test_ray_application.py", "test_ray_executor.py", "test_ray_serve.py"]
