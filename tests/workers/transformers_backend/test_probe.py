import io
import json
import math
from typing import Any

import msgspec
import pytest
from transformers import GPT2Config, LlamaConfig, MixtralConfig

from pyllm.errors import ConfigError
from pyllm.families.transformers_probe import Probed, ProbeRequest, Refusal
from pyllm.workers.transformers_backend.probe import main, probe
from tests.workers.transformers_backend.tiny_configs import causal_models, tiny_config, tiny_model


def request(name: str, changes: dict[str, Any] | None = None, without: tuple[str, ...] = ()) -> ProbeRequest:
    """For a small model of a class, with other fields in its config.json, and without some of its tensors."""
    model = tiny_model(causal_models()[name])
    fields = {**model.config.to_dict(), "architectures": [name], **(changes or {})}
    # As `save_pretrained` writes them: the tensor of a tied head is that of the embedding.
    tied = model.all_tied_weights_keys if model.config.get_text_config().tie_word_embeddings else {}
    tensors = {key: tuple(value.shape) for key, value in model.state_dict().items() if key not in tied}
    return ProbeRequest(
        config=json.dumps(fields), tensors={key: shape for key, shape in tensors.items() if key not in without}
    )


def test_llama() -> None:
    probed = probe(request("LlamaForCausalLM"))
    spec = probed.spec
    assert (spec.architecture, spec.vocab_size, spec.hidden_size) == ("LlamaForCausalLM", 290, 64)
    assert spec.max_position_embeddings == 256
    assert [(at.attention.heads, at.attention.kv_heads, at.attention.head_size) for at in spec.layers] == [
        (4, 2, 16)
    ] * 4
    assert {(at.attention.scale, at.attention.window, at.attention.rope) for at in spec.layers} == {(0.25, None, None)}
    backend = spec.transformers
    assert backend is not None
    assert (backend.base, backend.embedding, backend.head, backend.tensor_parallel_refusal) == (
        "model",
        "model.embed_tokens",
        "lm_head",
        "",
    )
    assert backend.num_torch_parameters == 0
    assert not backend.torch_computes
    layer = [[(linear.name.rpartition(".")[2], linear.split) for linear in joined] for joined in backend.linears[:4]]
    assert layer == [
        [("q_proj", "outputs"), ("k_proj", "outputs"), ("v_proj", "outputs")],
        [("o_proj", "inputs")],
        [("gate_proj", "outputs"), ("up_proj", "outputs")],
        [("down_proj", "inputs")],
    ]
    norms = [
        f"model.layers.{layer}.{norm}_layernorm.weight" for layer in range(4) for norm in ("input", "post_attention")
    ]
    assert set(probed.others) == {*norms, "model.norm.weight"}


def test_a_tied_head_has_the_tensor_of_the_embedding() -> None:
    probed = probe(request("LlamaForCausalLM", {"tie_word_embeddings": True}, without=("lm_head.weight",)))
    assert probed.spec.tie_word_embeddings
    assert "lm_head.weight" not in probed.sources
    assert probed.sources["model.embed_tokens.weight"] == "model.embed_tokens.weight"


def test_an_embedding_that_stays_has_the_tensor_of_the_head_too() -> None:
    """Gemma's embedding multiplies its vectors, and is left to transformers."""
    probed = probe(request("Gemma2ForCausalLM"))
    backend = probed.spec.transformers
    assert backend is not None
    assert (backend.embedding, backend.head) == ("", "lm_head")
    assert probed.sources["lm_head.weight"] == "model.embed_tokens.weight"
    assert "model.embed_tokens.weight" in probed.others


def test_what_layers_ask_for() -> None:
    gemma = [layer.attention for layer in probe(request("Gemma2ForCausalLM")).spec.layers]
    assert [(attention.window, attention.soft_cap) for attention in gemma] == [(16, 50.0), (None, 50.0)] * 2
    assert all(layer.attention.sinks for layer in probe(request("GptOssForCausalLM")).spec.layers)


def test_keys_and_values_of_other_sizes_have_the_larger() -> None:
    spec = probe(request("DeepseekV2ForCausalLM")).spec
    assert {layer.attention.head_size for layer in spec.layers} == {24}


def test_a_layer_that_attends_twice_has_two_layers_of_the_cache() -> None:
    assert len(probe(request("DiffLlamaForCausalLM")).spec.layers) == 8


def test_matrices_with_a_column_an_output() -> None:
    probed = probe(request("GPT2LMHeadModel"))
    assert "transformer.h.0.attn.c_attn.weight" in probed.transposed
    backend = probed.spec.transformers
    assert backend is not None
    assert [linear.shape for linear in backend.linears[0]] == [(192, 64)]
    assert "no tensor-parallel plan" in backend.tensor_parallel_refusal


def test_experts_stay_with_transformers() -> None:
    """Its files have a matrix an expert, which it stacks by its own mapping."""
    model = tiny_model(causal_models()["MixtralForCausalLM"])
    tensors = {key: tuple(value.shape) for key, value in model.state_dict().items() if ".experts." not in key}
    experts = {
        f"model.layers.{layer}.block_sparse_moe.experts.{expert}.{name}.weight": shape
        for layer in range(4)
        for expert in range(4)
        for name, shape in (("w1", (96, 64)), ("w2", (64, 96)), ("w3", (96, 64)))
    }
    fields = {**model.config.to_dict(), "architectures": ["MixtralForCausalLM"]}
    probed = probe(ProbeRequest(config=json.dumps(fields), tensors=tensors | experts))
    assert experts.keys() <= set(probed.others)
    backend = probed.spec.transformers
    assert backend is not None
    assert "moe_tp_experts of model.layers.0.mlp.experts is not supported" in backend.tensor_parallel_refusal
    routers = 4 * 4 * 64
    assert backend.num_torch_parameters == sum(math.prod(shape) for shape in experts.values()) + routers
    assert backend.torch_computes


def test_a_plan_that_does_not_split_attention_is_told() -> None:
    backend = probe(request("DiffLlamaForCausalLM")).spec.transformers
    assert backend is not None
    assert backend.tensor_parallel_refusal == (
        "the tensor-parallel plan of DiffLlamaForCausalLM does not split model.layers.0.self_attn"
    )


def test_two_tensors_of_one_parameter_are_refused() -> None:
    asked = request("LlamaForCausalLM")
    twice = msgspec.structs.replace(asked, tensors={**asked.tensors, "norm.weight": (64,)})
    with pytest.raises(ConfigError, match=r"'model\.norm\.weight' and 'norm\.weight' are both the parameter"):
        probe(twice)


@pytest.mark.parametrize("kind", ["dynamic", "linear"])
def test_rotations_of_every_kind(kind: str) -> None:
    rope = {"rope_type": kind, "factor": 2.0, "rope_theta": 10_000.0}
    assert len(probe(request("LlamaForCausalLM", {"rope_parameters": rope})).spec.layers) == 4


def test_layers_with_one_input_are_joined() -> None:
    backend = probe(request("DeepseekV3ForCausalLM")).spec.transformers
    assert backend is not None
    first = [[linear.name.rpartition(".")[2] for linear in joined] for joined in backend.linears[:5]]
    assert first == [
        ["q_a_proj", "kv_a_proj_with_mqa"],
        ["q_b_proj"],
        ["kv_b_proj"],
        ["o_proj"],
        ["gate_proj", "up_proj"],
    ]


def test_positions_that_begin_behind_the_padding() -> None:
    spec = probe(request("RobertaForCausalLM")).spec
    assert spec.transformers is not None
    assert (spec.transformers.first_position, spec.max_position_embeddings) == (1, 255)


def test_names_of_old_files_and_tensors_that_transformers_skips_too() -> None:
    asked = request("GPT2LMHeadModel")
    tensors = {name.removeprefix("transformer."): shape for name, shape in asked.tensors.items()}
    probed = probe(msgspec.structs.replace(asked, tensors={**tensors, "h.0.attn.bias": (1, 1, 256, 256)}))
    assert probed.sources["transformer.h.0.attn.c_attn.weight"] == "h.0.attn.c_attn.weight"
    assert probed.skipped == ("h.0.attn.bias",)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("MambaForCausalLM", "has layers of the kind linear_attention, which keep a state along the sequence"),
        ("OpenAIGPTLMHeadModel", "does not call the attention of transformers' interface, which ours would replace"),
        ("MllamaForCausalLM", "1 of 4 layers have no attention, such as MllamaCrossAttentionDecoderLayer"),
        ("BloomForCausalLM", "it computes attention itself, and not by transformers' interface"),
        ("XGLMForCausalLM", "it computes attention itself, and not by transformers' interface"),
        ("DeepseekV32ForCausalLM", "it computes attention itself, and not by transformers' interface"),
        ("GPTJForCausalLM", "cannot be built with our attention: it has attention of its own alone"),
        ("Llama4ForCausalLM", "with a mask that depends on the tokens"),
        ("BertLMHeadModel", "with a mask that depends on the tokens|neither causal nor a window"),
    ],
)
def test_what_cannot_run_is_refused_with_the_reason(name: str, message: str) -> None:
    asked = request(name, {"is_decoder": False} if name == "BertLMHeadModel" else {})
    with pytest.raises(ConfigError, match=message):
        probe(asked)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"architectures": ["NothingForCausalLM"]},
            "has no causal language model NothingForCausalLM of type llama: a newer version may have it",
        ),
        (
            {"architectures": ["BertModel"]},
            "has no causal language model BertModel of type llama: that class of it computes no next tokens",
        ),
        (
            {"architectures": ["OwnForCausalLM"], "auto_map": {"AutoModelForCausalLM": "own.OwnForCausalLM"}},
            "OwnForCausalLM of type llama: it comes with code of its own, which is not run",
        ),
        ({"model_type": "own"}, "has no causal language model LlamaForCausalLM of type own"),
        ({"num_hidden_layers": 10_000_000}, "has 10000000 layers, and the files have 39 tensors"),
        ({"max_position_embeddings": 1}, "LlamaForCausalLM has a context of 1 tokens, not of at least 4"),
        ({"hidden_size": "large"}, "LlamaForCausalLM cannot be built with our attention"),
        ({"vocab_size": 291}, r"'lm_head.weight' has the shape \(290, 64\), and transformers needs \(291, 64\)"),
    ],
)
def test_what_transformers_does_not_have_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        probe(request("LlamaForCausalLM", changes))


def test_without_an_architecture_the_type_of_the_model_says_it() -> None:
    found, expected = probe(request("LlamaForCausalLM", {"architectures": None})), probe(request("LlamaForCausalLM"))
    assert found.spec.architecture == expected.spec.architecture
    assert (found.sources, found.others) == (expected.sources, expected.others)


def test_infinities_reach_transformers() -> None:
    assert probe(request("LlamaForCausalLM", {"time_step_limit": [0.0, math.inf]})).sources


def test_the_process_answers_with_what_it_found_or_with_the_reason() -> None:
    def answer(asked: ProbeRequest) -> Probed | Refusal:
        written = io.BytesIO()
        main(lambda: msgspec.json.encode(asked), written.write)
        return msgspec.json.decode(written.getvalue(), type=Probed | Refusal)

    assert answer(request("LlamaForCausalLM")) == probe(request("LlamaForCausalLM"))
    refusal = answer(request("MambaForCausalLM"))
    assert isinstance(refusal, Refusal)
    assert refusal.refused.startswith("MambaForCausalLM has layers of the kind linear_attention")


def test_every_small_configuration_is_small() -> None:
    for kind in (LlamaConfig, GPT2Config, MixtralConfig):
        assert tiny_config(kind).num_hidden_layers == 4
