"""Rotary embedding and the cache write, against a rotation of one complex number at a time."""

import cmath

import pytest
import torch
from pyllm_kernels import Kernels, KVScales, QKNorm
from pyllm_kernels.ops.rope_and_kv_write import rope, rope_and_kv_write
from torch import Tensor

from tests.kernels.paged import Shape

TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
MAX_POSITION = 64
NUM_BLOCKS = 5
SENTINEL = -7.0


def angle(position: int, pair: int, head_dim: int) -> float:
    return position * 10000.0 ** (-2 * pair / head_dim)


def cos_sin_table(head_dim: int) -> Tensor:
    rows = [[angle(p, i, head_dim) for i in range(head_dim // 2)] for p in range(MAX_POSITION)]
    angles = torch.tensor(rows, dtype=torch.float64)  # [positions, head_dim / 2]
    return torch.cat((angles.cos(), angles.sin()), dim=-1).float()


def rotated(heads: Tensor, positions: Tensor) -> Tensor:
    """Pair i of a head is (x[i], x[i + head_dim / 2]), turned by `angle`."""
    output = heads.double().clone()
    half = heads.shape[2] // 2
    for token, position in enumerate(positions.tolist()):
        for head in output[token]:
            for pair in range(half):
                turned = complex(head[pair], head[pair + half]) * cmath.rect(1, angle(position, pair, 2 * half))
                head[pair], head[pair + half] = turned.real, turned.imag
    return output


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize(
    ("tokens", "shape"),
    [
        (1, Shape(heads=4, kv_heads=4, head_dim=64)),
        (5, Shape(heads=9, kv_heads=3, head_dim=64)),
        (3, Shape(heads=7, kv_heads=1, head_dim=80, block_size=32)),
        (2, Shape(heads=4, kv_heads=2, head_dim=128)),
        (4, Shape(heads=6, kv_heads=2, head_dim=96, block_size=1)),
    ],
)
def test_rotates_in_place_and_writes_the_cache(
    kernels: Kernels, tokens: int, shape: Shape, dtype: torch.dtype, device: torch.device
) -> None:
    kv_heads, head_dim, block_size = shape.kv_heads, shape.head_dim, shape.block_size
    # Query, key and value are views of one projection, as a model makes them.
    widths = [shape.heads * head_dim, kv_heads * head_dim, kv_heads * head_dim]
    projected = torch.randn((tokens, sum(widths)), dtype=dtype, device=device)
    query, key, value = (part.view(tokens, -1, head_dim) for part in projected.split(widths, dim=-1))
    positions = torch.randint(MAX_POSITION, (tokens,), dtype=torch.int32, device=device)
    expected_query, expected_key, expected_value = (
        rotated(query.cpu(), positions),
        rotated(key.cpu(), positions),
        value.double().cpu().clone(),
    )
    cells = torch.randperm(NUM_BLOCKS * block_size)[:tokens].to(torch.int32)
    cells[tokens // 2] = -1  # This token is rotated, but not cached.
    key_cache, value_cache = torch.full(
        (2, NUM_BLOCKS, block_size, kv_heads, head_dim), SENTINEL, dtype=dtype, device=device
    )

    kernels[rope_and_kv_write](
        query, key, value, positions, cos_sin_table(head_dim).to(device), cells.to(device), key_cache, value_cache
    )

    tolerance = {"atol": TOLERANCE[dtype], "rtol": TOLERANCE[dtype]}
    torch.testing.assert_close(query.double().cpu(), expected_query, **tolerance)
    torch.testing.assert_close(key.double().cpu(), expected_key, **tolerance)
    assert torch.equal(value.double().cpu(), expected_value)
    expected_keys, expected_values = torch.full(
        (2, NUM_BLOCKS * block_size, kv_heads, head_dim), SENTINEL, dtype=dtype, device=device
    )
    for token, cell in enumerate(cells.tolist()):
        if cell >= 0:
            expected_keys[cell], expected_values[cell] = key[token], value[token]
    assert torch.equal(key_cache.flatten(0, 1), expected_keys)
    assert torch.equal(value_cache.flatten(0, 1), expected_values)


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("has_norm", [False, True])
@pytest.mark.parametrize(("head_dim", "rotary_size"), [(64, 64), (64, 32), (80, 20), (128, 96), (48, 0), (33, 6)])
def test_only_the_first_dimensions_rotate_and_queries_are_scaled(
    kernels: Kernels, head_dim: int, rotary_size: int, has_norm: bool, dtype: torch.dtype, device: torch.device
) -> None:
    query = torch.randn(5, 3, head_dim, dtype=dtype, device=device) * 3
    key, value = torch.randn(2, 5, 1, head_dim, dtype=dtype, device=device)
    weights = torch.rand(2, head_dim, dtype=dtype, device=device) + 0.5
    norm = QKNorm(*weights, epsilon=1e-5) if has_norm else None
    positions = torch.randint(MAX_POSITION, (5,), dtype=torch.int32, device=device)
    query_scales = torch.rand(MAX_POSITION, device=device) + 0.5
    expected = []
    for heads, weight in zip((query, key), weights, strict=True):
        wide = heads.double()
        if has_norm:
            wide = torch.nn.functional.rms_norm(wide, (head_dim,), weight.double(), 1e-5).to(dtype).double()
        turned, rest = rotated(wide[..., :rotary_size].cpu(), positions), wide[..., rotary_size:].cpu()
        expected.append(torch.cat((turned, rest), dim=-1))
    expected[0] *= query_scales[positions.long()].double().cpu()[:, None, None]
    cells = torch.tensor([7, -1, 30, 2, 79], dtype=torch.int32, device=device)
    key_cache, value_cache = torch.full((2, NUM_BLOCKS, 16, 1, head_dim), SENTINEL, dtype=dtype, device=device)

    table = cos_sin_table(rotary_size).to(device)
    tensors = query, key, value, positions, table, cells, key_cache, value_cache
    kernels[rope_and_kv_write](*tensors, norm, KVScales(), query_scales)

    tolerance = {"atol": 2 * TOLERANCE[dtype], "rtol": 2 * TOLERANCE[dtype]}
    torch.testing.assert_close(query.double().cpu(), expected[0], **tolerance)
    torch.testing.assert_close(key.double().cpu(), expected[1], **tolerance)
    written = [0, 2, 3, 4]
    assert torch.equal(key_cache.flatten(0, 1)[cells[written].long()], key[written])
    assert torch.equal(value_cache.flatten(0, 1)[cells[written].long()], value[written])


def test_position_zero_changes_nothing(kernels: Kernels, device: torch.device) -> None:
    query, key, value = torch.randn(3, 2, 2, 64, device=device)
    before = query.clone()
    zeros = torch.zeros(2, dtype=torch.int32, device=device)
    nowhere = torch.full((2,), -1, dtype=torch.int32, device=device)
    key_cache, value_cache = torch.full((2, NUM_BLOCKS, 16, 2, 64), SENTINEL, device=device)
    kernels[rope_and_kv_write](query, key, value, zeros, cos_sin_table(64).to(device), nowhere, key_cache, value_cache)
    assert torch.equal(query, before)
    assert (key_cache == SENTINEL).all()
    assert (value_cache == SENTINEL).all()


def test_a_norm_after_the_rotation_has_no_query_scales(kernels: Kernels, device: torch.device) -> None:
    if kernels.backend == "reference":
        return  # It computes what does not make sense.
    query, key, value = torch.randn(3, 2, 2, 64, device=device)
    zeros, scales = torch.zeros(2, dtype=torch.int32, device=device), torch.ones(MAX_POSITION, device=device)
    caches = torch.zeros(2, NUM_BLOCKS, 16, 2, 64, device=device)
    norm = QKNorm(query[0, 0], key[0, 0], 1e-5, after_rotation=True)
    with pytest.raises(ValueError, match="a norm after the rotation would undo query_scales"):
        kernels[rope_and_kv_write](
            query, key, value, zeros, cos_sin_table(64).to(device), zeros, *caches, norm, KVScales(), scales
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("after_rotation", [False, True])
def test_a_norm_of_each_head_comes_before_the_rotation_or_after_it(
    kernels: Kernels, dtype: torch.dtype, after_rotation: bool, device: torch.device
) -> None:
    query = torch.randn(5, 6, 80, dtype=dtype, device=device) * 3
    key, value = torch.randn(2, 5, 2, 80, dtype=dtype, device=device)
    norm = QKNorm(*(torch.rand(2, 80, dtype=dtype, device=device) + 0.5), 1e-5, after_rotation)
    positions = torch.randint(MAX_POSITION, (5,), dtype=torch.int32, device=device)
    expected = []
    for heads, weight in ((query, norm.query_weight), (key, norm.key_weight)):
        numbers, wide_weight = heads.cpu(), weight.double().cpu()
        if not after_rotation:
            numbers = torch.nn.functional.rms_norm(numbers.double(), (80,), wide_weight, 1e-5).to(dtype)
        numbers = rotated(numbers, positions)
        if after_rotation:
            numbers = torch.nn.functional.rms_norm(numbers.to(dtype).double(), (80,), wide_weight, 1e-5)
        expected.append(numbers)
    cells = torch.tensor([7, -1, 30, 2, 79], dtype=torch.int32, device=device)
    key_cache, value_cache = torch.full((2, NUM_BLOCKS, 16, 2, 80), SENTINEL, dtype=dtype, device=device)

    table = cos_sin_table(80).to(device)
    tensors = query, key, value, positions, table, cells, key_cache, value_cache
    kernels[rope_and_kv_write](*tensors, norm)

    tolerance = {"atol": 2 * TOLERANCE[dtype], "rtol": 2 * TOLERANCE[dtype]}
    torch.testing.assert_close(query.double().cpu(), expected[0], **tolerance)
    torch.testing.assert_close(key.double().cpu(), expected[1], **tolerance)
    written = [0, 2, 3, 4]
    assert torch.equal(key_cache.flatten(0, 1)[cells[written].long()], key[written])
    assert torch.equal(value_cache.flatten(0, 1)[cells[written].long()], value[written])
    assert (key_cache.flatten(0, 1)[0] == SENTINEL).all()


def test_an_fp8_cache_keeps_scaled_numbers_and_saturates(kernels_with_fp8: Kernels, device: torch.device) -> None:
    # Numbers that fp8 holds as they are: Triton's interpreter does not round others as hardware does.
    exact = torch.randn(2, 3, 2, 64).to(torch.float8_e4m3fn).float().to(device)
    key, value = exact[0] * 0.5, exact[1] * 2
    query = torch.randn(3, 4, 64, device=device)
    zeros = torch.zeros(3, dtype=torch.int32, device=device)
    cells = torch.tensor([17, -1, 3], dtype=torch.int32, device=device)
    caches = [torch.zeros(NUM_BLOCKS, 16, 2, 64, dtype=torch.uint8, device=device) for _ in range(2)]
    key_cache, value_cache = (cache.view(torch.float8_e4m3fn) for cache in caches)
    scales = KVScales(key=0.5, value=2.0)
    value[2, 0, 0], value[2, 1, 5] = 5000.0, -5000.0
    exact[1, 2, 0, 0], exact[1, 2, 1, 5] = 448.0, -448.0

    table = cos_sin_table(64).to(device)
    kernels_with_fp8[rope_and_kv_write](query, key, value, zeros, table, cells, key_cache, value_cache, None, scales)

    for row, cell in ((0, 17), (2, 3)):
        assert torch.equal(key_cache.flatten(0, 1)[cell].float(), exact[0, row])
        assert torch.equal(value_cache.flatten(0, 1)[cell].float(), exact[1, row])


@pytest.mark.parametrize("heads", [3, 144])
def test_a_query_alone_is_rotated(kernels: Kernels, heads: int, device: torch.device) -> None:
    """A program has some of 144 heads."""
    wide = torch.randn((5, heads * 80 + 16), device=device)
    query = wide[:, 16:].view(5, heads, 80)
    positions = torch.randint(MAX_POSITION, (5,), dtype=torch.int32, device=device)
    before, expected = wide.clone(), rotated(query[..., :64].cpu(), positions)
    kernels[rope](query, positions, cos_sin_table(64).to(device))
    torch.testing.assert_close(query[..., :64].double().cpu(), expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(wide[:, :16], before[:, :16])
    assert torch.equal(query[..., 64:], before[:, 16:].view(5, heads, 80)[..., 64:])


def test_blocks_of_the_cache_may_be_apart(kernels: Kernels, device: torch.device) -> None:
    query, key, value = torch.randn(3, 4, 2, 64, device=device)
    positions, cells = torch.tensor([[3, 4, 5, 6], [15, -1, 40, 16]], dtype=torch.int32, device=device)
    caches = torch.full((2, NUM_BLOCKS, 3, 16, 2, 64), SENTINEL, device=device)
    table = cos_sin_table(64).to(device)
    kernels[rope_and_kv_write](query, key, value, positions, table, cells, caches[0, :, 2], caches[1, :, 2])
    for cache, numbers in zip(caches, (key, value), strict=True):
        for token, cell in ((0, 15), (2, 40), (3, 16)):
            assert torch.equal(cache[cell // 16, 2, cell % 16], numbers[token])
        assert (cache[:, :2] == SENTINEL).all()
        assert int((cache[:, 2] != SENTINEL).flatten(2).any(2).sum()) == 3


@pytest.mark.parametrize("rotary_size", [24, 48])
def test_a_value_may_be_narrower_than_its_place(kernels: Kernels, rotary_size: int, device: torch.device) -> None:
    query, key, value = torch.randn(4, 4, 48), torch.randn(4, 2, 48), torch.randn(4, 2, 32)
    query, key, value = (part.to(device) for part in (query, key, value))
    positions, cells = torch.tensor([[3, 4, 5, 6], [15, -1, 40, 16]], dtype=torch.int32, device=device)
    key_cache, value_cache = torch.full((2, NUM_BLOCKS, 16, 2, 48), SENTINEL, device=device)
    table = cos_sin_table(rotary_size).to(device)
    kernels[rope_and_kv_write](query, key, value, positions, table, cells, key_cache, value_cache)
    for token, cell in ((0, 15), (2, 40), (3, 16)):
        assert torch.equal(value_cache[cell // 16, cell % 16, :, :32], value[token])
        assert torch.equal(key_cache[cell // 16, cell % 16], key[token])
    assert (value_cache[..., 32:] == SENTINEL).all()
    assert int((value_cache != SENTINEL).sum()) == 3 * 2 * 32
