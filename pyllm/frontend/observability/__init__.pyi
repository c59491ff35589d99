from .measured_sink import MeasuredSink
from .metrics import Metrics, RequestMetrics
from .metrics_snapshot import Counter, Gauge, Metric, read_families
from .request_log import RequestLog
from .stats_line import STATS_INTERVAL, StatsLine
from .summary import Percentiles, RecentRequests, RequestTimes, Summary
from .trace_context import TraceContext, parse_trace_context
from .tracing import RequestTrace, Tracer

__all__ = [
    "STATS_INTERVAL",
    "Counter",
    "Gauge",
    "MeasuredSink",
    "Metric",
    "Metrics",
    "Percentiles",
    "RecentRequests",
    "RequestLog",
    "RequestMetrics",
    "RequestTimes",
    "RequestTrace",
    "StatsLine",
    "Summary",
    "TraceContext",
    "Tracer",
    "parse_trace_context",
    "read_families",
]
