"""Records torch's ops and the GPU's kernels by torch's profiler. Knows no steps."""

import os
from collections.abc import Iterable
from typing import Any

from torch._C._autograd import DeviceType
from torch.autograd.profiler import profile as torch_profile

from pyllm.workers.trace_events import Span, Track


class TorchRecorder:
    """Records from its creation on, until `stop`."""

    def __init__(self, on_gpu: bool) -> None:
        # Kineto writes a line for each profile to stderr, and an error if there is no GPU.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        # Not `torch.profiler.profile`: its first use imports torch's compiler, which takes seconds.
        self._profile = torch_profile(use_device="cuda" if on_gpu else None, use_kineto=True, acc_events=False)
        self._profile.__enter__()  # type: ignore[no-untyped-call]  # torch gives it no types

    def stop(self) -> None:
        """Stop recording."""
        self._profile.__exit__(None, None, None)  # type: ignore[no-untyped-call]  # as above

    def tracks(self, first: int, last: int) -> list[Track]:
        """The recorded events from `first` to `last`, see `tracks_of`."""
        results = self._profile.kineto_results
        return [] if results is None else tracks_of(results.events(), first, last)


def tracks_of(events: Iterable[Any], first: int, last: int) -> list[Track]:
    """Kineto's events from `first` to `last`, nanoseconds of Unix time: each host thread, each stream of a GPU."""
    tracks: dict[Any, Track] = {}
    for event in events:
        start, duration = event.start_ns(), event.duration_ns()
        # An annotation may contain ops of Rust, whose time would count twice.
        if start < first or start + duration > last or event.is_user_annotation() or event.is_hidden_event():
            continue
        if event.device_type() == DeviceType.CPU:
            track = Track("torch", f"torch ops, thread {event.start_thread_id()}", [])
        else:
            track = Track("gpu", f"GPU {event.device_index()}, stream {event.device_resource_id()}", [])
        tracks.setdefault(track.label, track).spans.append(Span(event.name(), start, duration))
    return sorted(tracks.values(), key=lambda track: track.kind, reverse=True)  # torch before gpu
