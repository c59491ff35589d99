"""Where attention comes from: our backends by name, and those that other packages offer."""

from importlib.metadata import EntryPoint

import pytest
import torch
from msgspec.structs import replace
from pyllm_kernels import select
from pyllm_kernels.gpu import sdpa
from pyllm_kernels.ops.paged_attention import paged_attention

from pyllm.checkpoint.reader import read_checkpoint
from pyllm.errors import ConfigError
from pyllm.workers.attention_backends import (
    BUILT_IN,
    GROUP,
    AttentionBackend,
    check_layers,
    find_attention_backend,
    load_attention_backend,
)
from pyllm.workers.devices.torch_device import TorchDevice
from pyllm.workers.step.attention_batch import AttentionBatch

CPU = TorchDevice(torch.device("cpu"))
HERE = "tests.workers.test_attention_backends"


def offered_backend(device: torch.device) -> AttentionBackend:
    return AttentionBackend(AttentionBatch.metadata, select("reference", device)[paged_attention])


def no_backend(device: torch.device) -> str:
    return str(device)


def entry(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, GROUP)


@pytest.mark.parametrize("name", BUILT_IN)
def test_our_own_need_no_package_and_cannot_be_replaced(name: str) -> None:
    assert find_attention_backend(name, [entry(name, "math:sqrt")]) is None


def test_sdpa_is_the_plain_torch_reference() -> None:
    backend = load_attention_backend("sdpa", CPU, "auto")
    assert backend.attend is select("reference", "cpu")[paged_attention]
    assert not backend.in_graphs


def test_sdpa_is_torchs_own_on_a_gpu() -> None:
    backend = load_attention_backend("sdpa", TorchDevice(torch.device("cuda")), "auto")
    assert backend.attend is sdpa.paged_attention
    assert not backend.in_graphs


def test_auto_follows_the_other_kernels() -> None:
    reference = load_attention_backend("auto", CPU, "reference")
    assert reference.attend is select("reference", "cpu")[paged_attention]


def test_one_that_does_not_run_here_says_so() -> None:
    with pytest.raises(ConfigError, match="attention_backend cpu: the cpu backend runs on cpu, not on cuda"):
        load_attention_backend("cpu", torch.device("cuda"), "auto")


def test_one_of_another_package_is_made_for_the_device() -> None:
    backend = load_attention_backend("theirs", CPU, "auto", [entry("theirs", f"{HERE}:offered_backend")])
    assert backend.attend is select("reference", "cpu")[paged_attention]


def test_a_layer_that_it_does_not_compute_is_named() -> None:
    spec = read_checkpoint().spec
    theirs = load_attention_backend("theirs", CPU, "auto", [entry("theirs", f"{HERE}:offered_backend")])
    check_layers("theirs", theirs, spec)
    windowed = replace(spec.layers[1], attention=replace(spec.layers[1].attention, window=512))
    spec = replace(spec, layers=(spec.layers[0], windowed))
    with pytest.raises(ConfigError, match="'theirs' does not compute layer 1: a window of 512 positions"):
        check_layers("theirs", theirs, spec)
    sinking = replace(spec.layers[1], attention=replace(spec.layers[0].attention, sinks=True))
    with pytest.raises(ConfigError, match="'theirs' does not compute layer 1: attention sinks"):
        check_layers("theirs", theirs, replace(spec, layers=(spec.layers[0], sinking)))
    sloping = replace(spec.layers[1], attention=replace(spec.layers[0].attention, slopes=(0.5, 0.25)))
    with pytest.raises(ConfigError, match=r"'theirs' does not compute layer 1: slopes \(ALiBi\)"):
        check_layers("theirs", theirs, replace(spec, layers=(spec.layers[0], sloping)))
    check_layers("sdpa", load_attention_backend("sdpa", CPU, "auto"), spec)


def test_an_unknown_name_lists_what_there_is() -> None:
    text = f"there is no attention backend 'flash'; there are auto, triton, cpu, sdpa, theirs; .* of group {GROUP}"
    with pytest.raises(ConfigError, match=text):
        find_attention_backend("flash", [entry("theirs", "math:sqrt")])


def test_two_of_one_name_are_refused() -> None:
    one = entry("theirs", "math:sqrt")
    assert find_attention_backend("theirs", [one, one]) == one
    with pytest.raises(ConfigError, match="cmath:sqrt and math:sqrt"):
        find_attention_backend("theirs", [one, entry("theirs", "cmath:sqrt")])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("no_such_module:make", "cannot be made: No module named 'no_such_module'"),
        ("math:sqrt", "cannot be made: must be real number"),
        (f"{HERE}:no_backend", "made 'cpu', not an AttentionBackend"),
    ],
)
def test_what_makes_no_backend_is_a_configuration_error(value: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        load_attention_backend("odd", CPU, "auto", [entry("odd", value)])
