"""The application for `serve run pyllm.ray:app` and for config files.

Sets the default options of the deployments, which a config file can override. Starts nothing itself.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from pyllm.config.engine_settings import EngineConfig
from pyllm.config.rank_coordinates import num_ranks
from pyllm.config.server_settings import ServerConfig
from pyllm.errors import ConfigError
from pyllm.flags.keyword_settings import server_settings
from pyllm.machine.extras import missing_extra
from pyllm.ray import api_replica, core_replica

# Seconds that a replica has to end once Ray Serve has asked it to: for the API, until its streams finish; for a core,
# until its streams move to others.
API_GRACE, CORE_GRACE = 600.0, 60.0
CORE_LEAVE_TIMEOUT = 20.0  # seconds that clients have to move their streams
MAX_ONGOING_REQUESTS = 10_000  # per replica of the API, which bounds its queue itself
# Settings of Ray Serve's proxies, given in `http_options` of its config file.
PROXY_SETTINGS = ("host", "port", "uds", "ssl_certfile", "ssl_keyfile", "ssl_ca_certs", "root_path", "api_server_count")


def app(args: Mapping[str, Any]) -> Any:
    """The application with the settings of `pyllm serve`, by the names of its flags: `{"model": ...}`.

    Ray Serve calls it with the arguments of its command line, if any. The arguments `cores` and `api` are options of
    these deployments, by the names in Ray Serve's config files.

    Raises:
        ConfigError: Ray is not installed, or a setting is unknown, wrong, or belongs to Ray Serve.
    """
    try:
        from ray import serve
    except ImportError as error:
        raise ConfigError(f"pyllm.ray runs on Ray Serve ({error}), and {missing_extra('ray', 'ray[serve]')}") from None
    of_cores, of_api = (_deployment_options(args, name) for name in ("cores", "api"))
    engine, server = server_settings({name: value for name, value in args.items() if name not in {"cores", "api"}})
    defaults = ServerConfig()
    if given := [name for name in PROXY_SETTINGS if getattr(server, name) != getattr(defaults, name)]:
        raise ConfigError(f"{given[0]} is of Ray Serve's proxies here: set it in http_options of its config file")
    # Ray Serve's proxies listen on their own addresses, and take requests from other machines.
    server = msgspec.structs.replace(server, host="0.0.0.0")  # noqa: S104
    cores = serve.deployment(
        core_replica.deployment_class(),
        name="Cores",
        ray_actor_options=_needs(engine),
        autoscaling_config={
            "min_replicas": 1,
            "max_replicas": 1,
            "upscale_delay_s": 10.0,
            "downscale_delay_s": 300.0,
            "look_back_period_s": 15.0,
            "policy": {"policy_function": "pyllm.ray.scaling_policy:CoreScaling"},
        },
        max_surge_percent=100,
        graceful_shutdown_timeout_s=CORE_GRACE,
        health_check_period_s=2.0,
    )
    api = serve.deployment(
        api_replica.deployment_class(),
        name="Api",
        ray_actor_options={"num_cpus": 1},
        max_ongoing_requests=MAX_ONGOING_REQUESTS,
        max_surge_percent=100,
        graceful_shutdown_timeout_s=API_GRACE,
        health_check_period_s=2.0,
    )
    bound = cores.options(**of_cores).bind(engine, server.ready_timeout, CORE_LEAVE_TIMEOUT)
    return api.options(**of_api).bind(engine, server, bound)


def _needs(engine: EngineConfig) -> dict[str, float]:
    """The resources of a core's replica, with those of its ranks unless Ray places them apart."""
    parallel = engine.parallel
    if parallel.distributed_executor_backend == "ray":
        return {"num_cpus": 0}
    ranks = num_ranks(parallel)
    return {"num_cpus": ranks, "num_gpus": ranks if engine.device.device == "cuda" else 0}


def _deployment_options(args: Mapping[str, Any], name: str) -> dict[str, Any]:
    options = args.get(name, {})
    if not isinstance(options, Mapping):
        raise ConfigError(f"{name} is {options!r:.80}: expected options of a deployment, as {{'num_replicas': 2}}")
    return dict(options)
