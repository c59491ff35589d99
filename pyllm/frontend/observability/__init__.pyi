from .metrics import Metrics, RequestMetrics
from .summary import Percentiles, RecentRequests, RequestTimes, Summary
from .trace_context import TraceContext, parse_trace_context
from .tracing import RequestTrace, Tracer

__all__ = [
    "Metrics",
    "Percentiles",
    "RecentRequests",
    "RequestMetrics",
    "RequestTimes",
    "RequestTrace",
    "Summary",
    "TraceContext",
    "Tracer",
    "parse_trace_context",
]
