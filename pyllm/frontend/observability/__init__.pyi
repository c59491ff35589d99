from .metrics import Metrics, RequestMetrics
from .summary import Percentiles, RecentRequests, RequestTimes, Summary
from .request_log import RequestLog
from .stats_line import STATS_INTERVAL, StatsLine
from .trace_context import TraceContext, parse_trace_context
from .tracing import RequestTrace, Tracer

__all__ = [
    "STATS_INTERVAL",
    "Metrics",
    "Percentiles",
    "RecentRequests",
    "RequestLog",
    "RequestMetrics",
    "RequestTimes",
    "RequestTrace",
    "Summary",
    "StatsLine",
    "TraceContext",
    "Tracer",
    "parse_trace_context",
]
