"""The metrics of a catalogue: those of each loaded model, by `model_name`, and its own. Knows no route."""

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from pyllm.frontend.catalogue.catalogue import Catalogue
from pyllm.frontend.observability.core_metrics import figures_of_cores
from pyllm.frontend.observability.metric_families import OURS, Families, merged
from pyllm.frontend.observability.process_metrics import families_of_processes
from pyllm.supervision.process_samples import ProcessSample


class _Collected(Collector):
    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


async def expose(catalogue: Catalogue, processes: Sequence[ProcessSample], *, shows_fields: bool) -> bytes:
    """Prometheus' text. Names that requests chose are left out without `shows_fields`."""
    found: list[Metric] = []
    for service in catalogue.services:
        state = service.state
        cores = await figures_of_cores(state.client)
        totals = await state.shared.totals(state.metrics.counted())
        shown = state.metrics.shown(cores, totals, state.condition())
        if not shows_fields:
            shown.ignored_fields.counts = {}
        found += shown.collect()
    found += _own_families(catalogue)
    found += families_of_processes(Families({}), processes)
    found += catalogue.http.collect()
    registry = CollectorRegistry()
    registry.register(_Collected(merged(found)))
    return generate_latest(registry)


def _own_families(catalogue: Catalogue) -> Iterator[Metric]:
    families, models = Families({}), catalogue.models.values()

    def by_model(values: Iterable[float]) -> dict[str, float]:
        return dict(zip(catalogue.models, values, strict=True))

    loaded = by_model(model.service is not None for model in models)
    yield families.gauges(OURS, "model_loaded", "1 while a model is loaded.", "model_name", loaded)
    num_bytes = by_model(model.news.num_bytes if model.service else 0 for model in models)
    yield families.gauges(OURS, "model_memory_bytes", "Memory that a loaded model may take.", "model_name", num_bytes)
    waiting = by_model(model.num_waiting for model in models)
    text = "Requests that wait until their model is loaded."
    yield families.gauges(OURS, "model_waiting_requests", text, "model_name", waiting)
    loads = by_model(model.num_loads for model in models)
    yield families.counters(OURS, "model_loads", "Times that a model was loaded.", "model_name", loads)
    failures = by_model(model.num_failures for model in models)
    yield families.counters(OURS, "model_failures", "Times that it could not be loaded.", "model_name", failures)
    seconds = by_model(model.load_seconds for model in models)
    text = "Seconds from the first request to the loaded model, the last time."
    yield families.gauges(OURS, "model_load_seconds", text, "model_name", seconds)
