from .core_metrics import figures_of_cores
from .http_counts import NO_ROUTE, HttpCounts
from .measured_sink import MeasuredSink
from .metrics import Metrics, RequestMetrics
from .metrics_history import Looks, MetricsHistory
from .metrics_snapshot import Counter, Gauge, Metric, read_families
from .request_log import RequestLog
from .stats_line import STATS_INTERVAL, StatsLine
from .summary import Percentiles, RecentRequests, Summary, check_window
from .trace_context import TraceContext, parse_trace_context
from .tracing import RequestTrace, Tracer

__all__ = [
    "NO_ROUTE",
    "STATS_INTERVAL",
    "Counter",
    "Gauge",
    "HttpCounts",
    "Looks",
    "MeasuredSink",
    "Metric",
    "Metrics",
    "MetricsHistory",
    "Percentiles",
    "RecentRequests",
    "RequestLog",
    "RequestMetrics",
    "RequestTrace",
    "StatsLine",
    "Summary",
    "TraceContext",
    "Tracer",
    "check_window",
    "figures_of_cores",
    "parse_trace_context",
    "read_families",
]
