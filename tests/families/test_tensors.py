"""Which tensors fill which parameters: names, stacked and reordered rows, and what is refused."""

from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllm.errors import ConfigError
from pyllm.families import falcon, gemma, glm4, gpt_oss, llama, nemotron, phi3
from pyllm.families.config import Config
from pyllm.families.family import Family
from pyllm.families.parameter_shapes import num_parameters
from pyllm.families.spec import ModelSpec
from pyllm.families.tensor_map import map_tensors
from pyllm.families.tensor_names import LLAMA_PARTS, TensorNames
from pyllm.families.tensors import Add, Deinterleave, FileTensor, GroupRows, Rows, TensorEntry, Transpose
from pyllm.workers.loaders.transforms import changed, is_transposed, source_rows

SIZES = {
    "vocab_size": 10,
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}


def spec_of(family: Family) -> ModelSpec:
    return family.read(Config({"architectures": [family.architectures[0]]} | SIZES))


def tensor(name: str, *shape: int) -> FileTensor:
    return FileTensor(name, "F32", shape, 0, 0, 4 * int(np.prod(shape)))


def llama_tensors(change: Callable[[str, tuple[int, ...]], FileTensor] = tensor) -> list[FileTensor]:
    """What a file of the Llama has."""
    shapes = {"model.embed_tokens.weight": (10, 32), "model.norm.weight": (32,)}
    for layer in range(2):
        prefix = f"model.layers.{layer}"
        shapes |= {f"{prefix}.{norm}.weight": (32,) for norm in ("input_layernorm", "post_attention_layernorm")}
        shapes |= {f"{prefix}.self_attn.{name}_proj.weight": (16, 32) for name in "kv"}
        shapes |= {f"{prefix}.self_attn.{name}_proj.weight": (32, 32) for name in "qo"}
        shapes |= {f"{prefix}.mlp.{name}_proj.weight": (24, 32) for name in ("gate", "up")}
        shapes[f"{prefix}.mlp.down_proj.weight"] = (32, 24)
    return [tensor(name, *shape) for name, shape in shapes.items()]


def test_every_parameter_has_its_tensor() -> None:
    spec = spec_of(llama.FAMILY)
    entries, skipped = map_tensors(spec, TensorNames(), llama_tensors())
    assert (len(entries), skipped) == (2 + 2 * 9, ())
    assert {entry.source.name for entry in entries} == {found.name for found in llama_tensors()}
    assert all(entry.shape == entry.source.shape and not entry.transforms for entry in entries)
    assert sum(int(np.prod(entry.shape)) for entry in entries) == num_parameters(spec)


@pytest.mark.parametrize("root", ["", "model."])
def test_a_file_may_leave_out_the_root(root: str) -> None:
    tensors = [msgspec.structs.replace(found, name=found.name.replace("model.", root, 1)) for found in llama_tensors()]
    entries, _ = map_tensors(spec_of(llama.FAMILY), TensorNames(), tensors)
    assert entries[0].source.name == f"{root}embed_tokens.weight"


def test_what_follows_from_others_is_left_out_and_what_is_not_text_is_told() -> None:
    spare = [tensor("lm_head.weight", 10, 32), tensor("model.layers.0.self_attn.rotary_emb.inv_freq", 4)]
    images = [tensor("vision_tower.patch.weight", 3, 3), tensor("vision_tower.norm.weight", 3)]
    entries, skipped = map_tensors(spec_of(llama.FAMILY), TensorNames(), [*llama_tensors(), *spare, *images])
    assert len(entries) == 20
    assert skipped == ("vision_tower.norm.weight", "vision_tower.patch.weight")


def test_missing_misshapen_and_surplus_tensors_are_named() -> None:
    spec, tensors = spec_of(llama.FAMILY), llama_tensors()
    with pytest.raises(ConfigError, match=r"no tensor 'model\.norm\.weight', which its architecture needs"):
        map_tensors(spec, TensorNames(), [found for found in tensors if found.name != "model.norm.weight"])
    swapped = [tensor(found.name, *found.shape[::-1]) for found in tensors]
    with pytest.raises(ConfigError, match=r"embed_tokens\.weight' has the shape \(32, 10\), .* needs \(10, 32\)"):
        map_tensors(spec, TensorNames(), swapped)
    with pytest.raises(ConfigError, match=r"1 tensors belong to no layer of LlamaForCausalLM: model\.layers\.0\.x"):
        map_tensors(spec, TensorNames(are_all=True), [*tensors, tensor("model.layers.0.x", 3)])
    further = tensor(f"model.layers.{len(spec.layers)}.x", 3)
    assert map_tensors(spec, TensorNames(are_all=True), [*tensors, further])[1] == (further.name,)
    with pytest.raises(ConfigError, match="several tensors of one name"):
        map_tensors(spec, TensorNames(), [*tensors, tensors[0]])


def test_fused_tensors_are_cut_into_rows() -> None:
    spec = spec_of(phi3.FAMILY)
    plain = [
        found for found in llama_tensors() if not any(part in found.name for part in ("q_", "k_", "v_", "gate", "up_"))
    ]
    fused = [
        tensor(f"model.layers.{layer}.{name}.weight", rows, 32)
        for layer in range(2)
        for name, rows in (("self_attn.qkv_proj", 64), ("mlp.gate_up_proj", 48))
    ]
    entries, _ = map_tensors(spec, phi3.FAMILY.tensors, [*plain, *fused])
    transforms = {entry.name: entry.transforms for entry in entries}
    assert transforms["layers.1.attention.query.weight"] == (Rows(0, 32),)
    assert transforms["layers.1.attention.key.weight"] == (Rows(32, 48),)
    assert transforms["layers.1.attention.value.weight"] == (Rows(48, 64),)
    assert transforms["layers.0.feed_forward.up.weight"] == (Rows(24, 48),)
    with pytest.raises(ConfigError, match=r"qkv_proj\.weight' has the shape \(60, 32\), .* needs \(64, 32\)"):
        map_tensors(spec, phi3.FAMILY.tensors, [*plain, *(tensor(found.name, 60, 32) for found in fused)])


def test_query_key_and_value_may_lie_together_for_each_key_head() -> None:
    spec = falcon.FAMILY.read(
        Config({"architectures": ["FalconForCausalLM"], "new_decoder_architecture": True, "num_kv_heads": 2} | SIZES)
    )
    found = [tensor("transformer.word_embeddings.weight", 10, 32)]
    found += [tensor(f"transformer.ln_f.{kind}", 32) for kind in ("weight", "bias")]
    for layer in range(2):
        prefix, norms = f"transformer.h.{layer}", ("ln_attn", "ln_mlp")
        found += [tensor(f"{prefix}.{norm}.{kind}", 32) for norm in norms for kind in ("weight", "bias")]
        found.append(tensor(f"{prefix}.self_attention.query_key_value.weight", 64, 32))
        found.append(tensor(f"{prefix}.self_attention.dense.weight", 32, 32))
        found.append(tensor(f"{prefix}.mlp.dense_h_to_4h.weight", 24, 32))
        found.append(tensor(f"{prefix}.mlp.dense_4h_to_h.weight", 32, 24))
    entries = {entry.name: entry for entry in map_tensors(spec, falcon.FAMILY.tensors, found)[0]}
    # Each of two groups has two query heads, a key head and a value head of 8 rows.
    parts = {name: entries[f"layers.1.attention.{name}.weight"] for name in ("query", "key", "value")}
    assert parts["query"].transforms == (GroupRows(32, 0, 16),)
    assert parts["value"].transforms == (GroupRows(32, 24, 32),)
    rows = {name: np.arange(64)[source_rows(entry, slice(None))].tolist() for name, entry in parts.items()}
    assert rows["query"] == [*range(16), *range(32, 48)]
    assert rows["key"] == [*range(16, 24), *range(48, 56)]
    assert entries["layers.0.attention_norm.bias"].source.name == "transformer.h.0.ln_attn.bias"


def test_a_bias_of_a_norm_gets_no_one() -> None:
    spec = spec_of(nemotron.NEMOTRON)
    found = [
        tensor(each.name.replace("weight", kind), *each.shape)
        for each in llama_tensors()
        if "gate_proj" not in each.name
        for kind in ("weight", "bias")
        if kind == "weight" or "norm" in each.name
    ]
    entries, _ = map_tensors(spec, nemotron.NEMOTRON.tensors, found)
    transforms = {entry.name: entry.transforms for entry in entries if "norm" in entry.name}
    assert transforms["layers.1.feed_forward_norm.weight"] == transforms["norm.weight"] == (Add(1.0),)
    assert transforms["layers.1.feed_forward_norm.bias"] == transforms["norm.bias"] == ()


def test_scales_of_norms_get_their_one_unless_the_file_has_it() -> None:
    spec, family = spec_of(gemma.GEMMA2), gemma.GEMMA2
    assert family.gguf is not None
    for names, expected in ((family.tensors, (Add(1.0),)), (family.gguf.tensors, ())):
        root = names.roots[0]
        found = [tensor(f"{root}{names.embedding}.weight", 10, 32), tensor(f"{root}{names.norm}.weight", 32)]
        for layer in range(2):
            prefix = root + names.layer.format(layer)
            for part, source in names.parts.items():
                if part.startswith("feed_forward.") and part not in {
                    "feed_forward.gate",
                    "feed_forward.up",
                    "feed_forward.down",
                }:
                    continue
                shape = {"attention.query": (32, 32), "attention.output": (32, 32), "feed_forward.down": (32, 24)}.get(
                    part, (16, 32) if part.startswith("attention.") else (24, 32)
                )
                if "query_norm" not in part and "key_norm" not in part:
                    found.append(tensor(f"{prefix}{source}.weight", *((32,) if "norm" in part else shape)))
        entries, _ = map_tensors(spec, names, found)
        norms = {entry.name: entry.transforms for entry in entries if "norm" in entry.name}
        assert set(norms.values()) == {expected}
        assert len(norms) == 1 + 4 * 2


def test_neighbours_that_rotate_are_moved_apart_in_weights_and_biases() -> None:
    names = TensorNames(parts=glm4.GLM.tensors.parts, interleaved=True)
    spec = spec_of(glm4.GLM)
    biases = [
        tensor(f"model.layers.{layer}.self_attn.{name}_proj.bias", rows)
        for layer in range(2)
        for name, rows in (("q", 32), ("k", 16), ("v", 16))
    ]
    entries, _ = map_tensors(spec, names, [*llama_tensors(), *biases])
    moved = {entry.name: entry.transforms for entry in entries if entry.transforms}
    parts = {
        f"layers.{layer}.attention.{part}.{kind}"
        for layer in (0, 1)
        for part in ("query", "key")
        for kind in ("weight", "bias")
    }
    assert moved == dict.fromkeys(parts, (Deinterleave(8, 4),))


def test_a_matrix_may_have_a_column_an_output() -> None:
    names = TensorNames(parts=LLAMA_PARTS, transposed=frozenset({"feed_forward.down"}))
    tensors = [tensor(found.name, *found.shape[::-1]) if "down" in found.name else found for found in llama_tensors()]
    entries, _ = map_tensors(spec_of(llama.FAMILY), names, tensors)
    (down,) = [entry for entry in entries if entry.name == "layers.0.feed_forward.down.weight"]
    assert (down.shape, down.source.shape, down.transforms) == ((32, 24), (24, 32), (Transpose(),))
    assert is_transposed(down)
    assert source_rows(down, slice(4, 20)) == slice(4, 20, 1)


def test_matrices_of_all_experts_lie_in_one_tensor() -> None:
    sizes = SIZES | {"num_local_experts": 3, "num_experts_per_tok": 2}
    spec = gpt_oss.FAMILY.read(Config({"architectures": ["GptOssForCausalLM"]} | sizes))
    names, hidden, size = gpt_oss.FAMILY.tensors, 32, 24
    shapes = {"model.embed_tokens.weight": (10, hidden), "model.norm.weight": (hidden,)}
    for layer in range(2):
        prefix = f"model.layers.{layer}"
        shapes |= {f"{prefix}.{norm}.weight": (hidden,) for norm in ("input_layernorm", "post_attention_layernorm")}
        for name, rows in (("q", 32), ("k", 16), ("v", 16), ("o", hidden)):
            shapes |= {
                f"{prefix}.self_attn.{name}_proj.weight": (rows, 32),
                f"{prefix}.self_attn.{name}_proj.bias": (rows,),
            }
        shapes |= {f"{prefix}.self_attn.sinks": (4,), f"{prefix}.mlp.router.weight": (3, hidden)}
        shapes |= {f"{prefix}.mlp.router.bias": (3,), f"{prefix}.mlp.experts.down_proj_bias": (3, hidden)}
        shapes |= {f"{prefix}.mlp.experts.down_proj": (3, size, hidden)}
        shapes |= {f"{prefix}.mlp.experts.gate_up_proj_bias": (3, 2 * size)}
        shapes |= {f"{prefix}.mlp.experts.gate_up_proj": (3, hidden, 2 * size)}
    found = [tensor(name, *shape) for name, shape in shapes.items()]
    entries = {entry.name: entry for entry in map_tensors(spec, names, found)[0]}
    up = entries["layers.1.feed_forward.experts.2.up.weight"]
    assert (up.shape, up.source.shape, up.transforms) == ((24, 32), (32, 48), (Transpose(), Rows(1, 48, 2)))
    assert (up.source.offset, up.source.num_bytes) == (2 * 4 * 32 * 48, 4 * 32 * 48)
    gate = entries["layers.1.feed_forward.experts.1.gate.bias"]
    assert (gate.source.shape, gate.transforms, gate.source.offset) == ((48,), (Rows(0, 48, 2),), 4 * 48)
    np.testing.assert_array_equal(np.arange(48)[source_rows(gate, slice(3, 6))], [6, 8, 10])
    np.testing.assert_array_equal(np.arange(48)[source_rows(up, slice(23, 24))], [47])
    down = entries["layers.0.feed_forward.experts.1.down.weight"]
    assert (down.shape, down.source.shape, down.transforms) == ((32, 24), (24, 32), (Transpose(),))
    assert entries["layers.0.attention.sinks.weight"].source.name == "model.layers.0.self_attn.sinks"
    short = [
        tensor(each.name, 2, *each.shape[1:]) if each.name.endswith("experts.down_proj") else each for each in found
    ]
    with pytest.raises(ConfigError, match=r"down_proj' has the shape \(2, 24, 32\), .* needs \(3, 24, 32\)"):
        map_tensors(spec, names, short)


@given(
    heads=st.integers(1, 4),
    half=st.integers(1, 4),
    rest=st.integers(0, 3),
    above=st.integers(0, 5),
    below=st.integers(0, 5),
    data=st.data(),
)
def test_rows_are_those_of_a_naive_copy(
    heads: int, half: int, rest: int, above: int, below: int, data: st.DataObject
) -> None:
    size, rotary_size = 2 * half + rest, 2 * half
    wanted = heads * size
    content = np.arange(above + wanted + below)
    own = content[above : above + wanted].reshape(heads, size)
    naive = np.concatenate(
        [np.concatenate([head[0:rotary_size:2], head[1:rotary_size:2], head[rotary_size:]]) for head in own]
    )
    transforms = (Rows(above, above + wanted), Deinterleave(size, rotary_size), Add(2.0), Add(0.5))
    entry = TensorEntry("x", (wanted,), tensor("y", len(content)), transforms)
    start = data.draw(st.integers(0, wanted))
    rows = slice(start, data.draw(st.integers(start, wanted)))
    np.testing.assert_array_equal(content[source_rows(entry, rows)], naive[rows])
    plain = TensorEntry("x", (wanted,), tensor("y", len(content)), transforms[:1])
    np.testing.assert_array_equal(content[source_rows(plain, rows)], own.ravel()[rows])
    np.testing.assert_array_equal(changed(entry, np.array([1.0, 2.0], np.float16)), np.array([3.5, 4.5], np.float32))
