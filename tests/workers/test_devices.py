"""Which kernels fit a graph, by device and backend."""

import pytest
import torch
from pyllm_kernels import select

from pyllm.workers.attention_backends import load_attention_backend
from pyllm.workers.devices import fits_graphs


@pytest.mark.parametrize(
    ("device", "backend", "attention_backend", "fits"),
    [
        ("cuda", "triton", "auto", True),
        ("cuda", "triton", "sdpa", False),
        ("cuda", "reference", "triton", False),  # The reference asks which rows are written at all.
        ("cuda", "reference", "auto", False),
        ("cpu", "cpu", "auto", True),
        ("cpu", "cpu", "sdpa", False),
        ("cpu", "reference", "auto", False),
    ],
)
def test_graphs_hold_no_op_that_waits_for_the_device(
    device: str, backend: str, attention_backend: str, fits: bool
) -> None:
    attention = load_attention_backend(attention_backend, torch.device(device), backend)
    assert fits_graphs(device, select(backend, device), attention) == fits
