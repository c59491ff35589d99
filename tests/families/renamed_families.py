"""Families whose code comes with the model: tiny ones are written as those of a class of transformers that is equal.

The tensors and the fields of config.json then get the names that published files have.
"""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

Tensors = dict[str, Tensor]


class Renaming(NamedTuple):
    """Names by the names of transformers, "" for a field that is left out; parts of a tensor's name in order."""

    fields: Mapping[str, str]
    parts: Mapping[str, str]
    added: Callable[[dict[str, Any]], dict[str, Any]]
    stack: Callable[[Tensors, dict[str, Any]], Tensors] = lambda tensors, _: tensors


def rename(folder: Path, renaming: Renaming) -> None:
    """Change the files of a folder."""
    config = json.loads((folder / "config.json").read_text())
    tensors = renaming.stack(load_file(folder / "model.safetensors"), config)
    for old, new in renaming.parts.items():
        tensors = {name.replace(old, new): tensor for name, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    renamed = {new: value for name, value in config.items() if (new := renaming.fields.get(name, name))}
    added = renaming.added(config)
    (folder / "config.json").write_text(json.dumps(added if "text_config" in added else renamed | added))


def _stack_by_key_head(tensors: Tensors, config: dict[str, Any]) -> Tensors:
    """Query, key and value of each KV head in one tensor, as in InternLM 2."""
    heads, size = config["num_key_value_heads"], config["head_dim"]
    stacked = {name: tensor for name, tensor in tensors.items() if not re.search("[qkv]_proj", name)}
    for name in [name for name in tensors if "q_proj" in name]:
        parts = [tensors[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
        grouped = torch.cat([part.reshape(heads, -1, size, part.shape[-1]) for part in parts], dim=1)
        stacked[name.replace("self_attn.q_proj", "attention.wqkv")] = grouped.reshape(-1, parts[0].shape[-1])
    return stacked


def _stack_alike(tensors: Tensors, _: dict[str, Any]) -> Tensors:
    """Query, key and value in one tensor, in this order, as in ChatGLM."""
    stacked = {name: tensor for name, tensor in tensors.items() if not re.search("[qkv]_proj", name)}
    for name in [name for name in tensors if "q_proj" in name]:
        parts = [tensors[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
        stacked[name.replace("self_attn.q_proj", "self_attention.query_key_value")] = torch.cat(parts)
    return stacked


def _stack_for_ling(tensors: Tensors, _: dict[str, Any]) -> Tensors:
    """Query, key and value in one tensor, in this order, as in Ling; latent attention has no such parts."""
    stacked = {name: tensor for name, tensor in tensors.items() if not re.search(r"self_attn\.[kv]_proj", name)}
    for name in [name for name in tensors if name.endswith("k_proj.weight")]:
        query = name.replace("k_proj", "q_proj")
        parts = [stacked.pop(query), tensors[name], tensors[name.replace("k_proj", "v_proj")]]
        stacked[name.replace("k_proj", "query_key_value")] = torch.cat(parts)
    return stacked


_LING_PARTS = {
    "embed_tokens": "word_embeddings",
    "self_attn.": "attention.",
    "o_proj": "dense",
    "q_norm": "query_layernorm",
    "k_norm": "key_layernorm",
    "e_score_correction_bias": "expert_bias",
}
_LING_FIELDS = {"n_shared_experts": "num_shared_experts", "n_routed_experts": "num_experts", "rope_parameters": ""}


def _ling(architecture: str, model_type: str, **fields: Any) -> Renaming:
    """Ling 2's names. Lightning attention has the sizes of its reference."""

    def added(config: dict[str, Any]) -> dict[str, Any]:
        return {
            "architectures": [architecture],
            "model_type": model_type,
            "rope_theta": config["rope_parameters"]["rope_theta"],
            "partial_rotary_factor": 0.5,
            "score_function": "sigmoid",
            "moe_router_enable_expert_bias": True,
            "moe_shared_expert_intermediate_size": config["moe_intermediate_size"],
            "num_nextn_predict_layers": 0,
            "use_bias": False,
            "use_qkv_bias": False,
            **fields,
        }

    return Renaming(_LING_FIELDS, _LING_PARTS, added, _stack_for_ling)


def _split_convolutions(tensors: Tensors, config: dict[str, Any]) -> Tensors:
    """Split OLMo Hybrid's convolutions as published files have them: transformers writes three equal parts."""
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    values = config["linear_num_value_heads"] * config["linear_value_head_dim"]
    split = dict(tensors)
    for name in [name for name in tensors if name.endswith("q_conv1d.weight")]:
        names = [name.replace("q_conv1d", f"{part}_conv1d") for part in "qkv"]
        whole = torch.cat([tensors[part] for part in names])
        split |= {part: rows.clone() for part, rows in zip(names, whole.split([keys, keys, values]), strict=True)}
    return split


def _without_decays(tensors: Tensors, _: dict[str, Any]) -> Tensors:
    """Leave out what follows from the configuration of MiniMax-01."""
    return {name: tensor for name, tensor in tensors.items() if not name.endswith(("_decay", ".slope_rate"))}


def _stack_experts(tensors: Tensors, config: dict[str, Any]) -> Tensors:
    """The experts of a layer in two tensors with a column for each output, as in Qwen3-VL."""
    stacked = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    for name in [name for name in tensors if ".experts.0.up" in name]:
        experts, of = name.rpartition(".0.")[0], range(config["num_local_experts"])
        gate, up, down = ([tensors[f"{experts}.{index}.{part}_proj.weight"] for index in of] for part in _EXPERT_PARTS)
        stacked[f"{experts}.gate_up_proj"] = torch.cat([torch.stack(gate), torch.stack(up)], dim=1).mT.contiguous()
        stacked[f"{experts}.down_proj"] = torch.stack(down).mT.contiguous()
    return stacked


_EXPERT_PARTS = ("gate", "up", "down")


def _qwen3_vl(kind: str, stack: Callable[[Tensors, dict[str, Any]], Tensors] = lambda tensors, _: tensors) -> Renaming:
    """The text model within Qwen3-VL."""
    mrope = {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [3, 3, 2]}

    def added(config: dict[str, Any]) -> dict[str, Any]:
        text = {name: value for name, value in config.items() if name not in {"rope_parameters", "architectures"}}
        rope = {"rope_theta": config["rope_parameters"]["rope_theta"], "rope_scaling": mrope}
        return {
            "architectures": [f"Qwen3VL{kind}ForConditionalGeneration"],
            "model_type": f"qwen3_vl{'_moe' * bool(kind)}",
            "text_config": text | rope | {"model_type": f"qwen3_vl{'_moe' * bool(kind)}_text"},
            "tie_word_embeddings": config["tie_word_embeddings"],
            "vision_config": {"deepstack_visual_indexes": [0], "depth": 1},
        }

    return Renaming({}, {"model.": "model.language_model."}, added, stack)


def _halve_shared(tensors: Tensors, _: dict[str, Any]) -> Tensors:
    """The gate of a shared expert, moved from the model into its matrix."""
    return {name: tensor / 2 if "shared_expert.down" in name else tensor for name, tensor in tensors.items()}


def _stack_for_ling_moe(tensors: Tensors, config: dict[str, Any]) -> Tensors:
    return _stack_for_ling(_halve_shared(tensors, config), config)


_MOE_FIELDS = dict.fromkeys(
    ("rope_parameters", "shared_expert_intermediate_size", "mlp_only_layers", "decoder_sparse_step", "sliding_window"),
    "",
)


def _deci_block(group: int | None, multiple: float | None) -> dict[str, Any]:
    """A layer as in Nemotron Super's configuration."""
    attention = {"n_heads_in_group": group, "no_op": group is None, "replace_with_linear": False}
    return {"attention": attention, "ffn": {"ffn_mult": multiple, "no_op": multiple is None}}


def _without_images(tensors: Tensors, _: dict[str, Any]) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(("vision", "vit_"))}


def _step_3_5(config: dict[str, Any]) -> dict[str, Any]:
    """Step 3.5's own fields, which have a number for each layer."""
    text = config["text_config"]
    ropes = [text["rope_parameters"][kind] for kind in text["layer_types"]]
    scaling = {name: value for name, value in ropes[0].items() if name not in {"rope_theta", "partial_rotary_factor"}}
    left_out = ("rope_parameters", "mlp_layer_types", "num_sliding_attention_heads", "per_layer_config")
    experts = [str(index) for index, kind in enumerate(text["mlp_layer_types"]) if kind == "sparse"]
    return {name: value for name, value in text.items() if name not in left_out} | {
        "architectures": ["Step3p5ForCausalLM"],
        "model_type": "step3p5",
        "num_attention_groups": text["num_key_value_heads"],
        "attention_other_setting": {"num_attention_heads": 8, "num_attention_groups": 2, "head_dim": 16},
        "moe_layers_enum": ",".join(experts),
        "moe_num_experts": text["n_routed_experts"],
        "moe_top_k": text["num_experts_per_tok"],
        "rope_theta": [rope["rope_theta"] for rope in ropes],
        "partial_rotary_factors": [rope["partial_rotary_factor"] for rope in ropes],
        "rope_scaling": scaling,
        "yarn_only_types": ["full_attention"],
        "norm_expert_weight": True,
    }


RENAMED = {
    "step-3.5": Renaming({"text_config": "", "vision_config": ""}, {}, _step_3_5, _without_images),
    "qwen2.5-vl": Renaming(
        {"rope_parameters": ""},
        {},
        lambda config: {
            "architectures": ["Qwen2_5_VLForConditionalGeneration"],
            "model_type": "qwen2_5_vl",
            "rope_theta": config["rope_parameters"]["rope_theta"],
            "rope_scaling": {"type": "mrope", "mrope_section": [1, 2, 1]},
            "vision_config": {"depth": 1},
        },
    ),
    "qwen3-vl": _qwen3_vl(""),
    "qwen3-vl-moe": _qwen3_vl("Moe", _stack_experts),
    "chatglm": Renaming(
        {
            "num_hidden_layers": "num_layers",
            "vocab_size": "padded_vocab_size",
            "intermediate_size": "ffn_hidden_size",
            "head_dim": "kv_channels",
            "num_key_value_heads": "multi_query_group_num",
            "max_position_embeddings": "seq_length",
            "rms_norm_eps": "layernorm_epsilon",
            "attention_bias": "add_qkv_bias",
            "rope_parameters": "",
        },
        {
            "lm_head": "transformer.output_layer",
            "model.embed_tokens": "transformer.embedding.word_embeddings",
            "model.norm": "transformer.encoder.final_layernorm",
            "model.layers": "transformer.encoder.layers",
            "self_attn.o_proj": "self_attention.dense",
            "mlp.gate_up_proj": "mlp.dense_h_to_4h",
            "mlp.down_proj": "mlp.dense_4h_to_h",
        },
        lambda _: {"architectures": ["ChatGLMModel"], "model_type": "chatglm", "add_bias_linear": False},
        _stack_alike,
    ),
    "exaone": Renaming(
        {"num_hidden_layers": "num_layers", "hidden_act": "activation_function", "rms_norm_eps": "layer_norm_epsilon"},
        {
            "model.embed_tokens": "transformer.wte",
            "model.norm": "transformer.ln_f",
            "model.layers": "transformer.h",
            "input_layernorm": "ln_1",
            "post_attention_layernorm": "ln_2",
            "self_attn.o_proj": "attn.attention.out_proj",
            "self_attn": "attn.attention",
            "gate_proj": "c_fc_0",
            "up_proj": "c_fc_1",
            "down_proj": "c_proj",
        },
        lambda _: {"architectures": ["ExaoneForCausalLM"], "model_type": "exaone"},
    ),
    "internlm2": Renaming(
        {},
        {
            "lm_head": "output",
            "embed_tokens": "tok_embeddings",
            "input_layernorm": "attention_norm",
            "post_attention_layernorm": "ffn_norm",
            "self_attn.o_proj": "attention.wo",
            "mlp.gate_proj": "feed_forward.w1",
            "mlp.up_proj": "feed_forward.w3",
            "mlp.down_proj": "feed_forward.w2",
        },
        lambda _: {"architectures": ["InternLM2ForCausalLM"], "model_type": "internlm2", "bias": False},
        _stack_by_key_head,
    ),
    "nemotron-super": Renaming(
        {"rope_parameters": "", "num_key_value_heads": "", "intermediate_size": ""},
        {},
        lambda config: {
            "architectures": ["DeciLMForCausalLM"],
            "model_type": "nemotron-nas",
            "rope_theta": config["rope_parameters"]["rope_theta"],
            "block_configs": [
                _deci_block(1, 12.0),
                _deci_block(2, 12.0),
                _deci_block(None, None),
                _deci_block(None, 24.0),
                _deci_block(1, 12.0),
            ],
        },
        lambda tensors, _: {
            name: tensor
            for name, tensor in tensors.items()
            if not name.startswith(("model.layers.2.", "model.layers.3.input_layernorm"))
        },
    ),
    "deepseek-moe": Renaming(
        _MOE_FIELDS | {"num_experts": "n_routed_experts"},
        {"shared_expert.": "shared_experts."},
        lambda config: {
            "architectures": ["DeepseekForCausalLM"],
            "model_type": "deepseek",
            "rope_theta": config["rope_parameters"]["rope_theta"],
            "n_shared_experts": 2,
            "first_k_dense_replace": 1,
            "scoring_func": "softmax",
        },
        _halve_shared,
    ),
    "ling": Renaming(
        _MOE_FIELDS,
        _LING_PARTS | {"shared_expert.": "shared_experts."},
        lambda config: {
            "architectures": ["BailingMoeForCausalLM"],
            "model_type": "bailing_moe",
            "rope_theta": config["rope_parameters"]["rope_theta"],
            "num_shared_experts": 2,
            "first_k_dense_replace": 0,
            "norm_head": False,
            "use_bias": False,
            "use_qkv_bias": False,
        },
        _stack_for_ling_moe,
    ),
    "ling-2": _ling("BailingMoeV2ForCausalLM", "bailing_moe"),
    "ring-linear": _ling(
        "BailingMoeLinearV2ForCausalLM", "bailing_moe_linear", layer_group_size=3, group_norm_size=2, head_dim=16
    ),
    "ling-2.5": _ling(
        "BailingMoeV2_5ForCausalLM", "bailing_hybrid", layer_group_size=3, group_norm_size=2, head_dim=16
    ),
    "minimax-01": Renaming(
        {
            "full_attn_alpha_factor": "layernorm_full_attention_alpha",
            "full_attn_beta_factor": "layernorm_full_attention_beta",
            "linear_attn_alpha_factor": "layernorm_linear_attention_alpha",
            "linear_attn_beta_factor": "layernorm_linear_attention_beta",
            "mlp_alpha_factor": "layernorm_mlp_alpha",
            "mlp_beta_factor": "layernorm_mlp_beta",
            "layer_types": "",
            "rope_parameters": "",
        },
        {},
        lambda config: {
            "architectures": ["MiniMaxText01ForCausalLM"],
            "model_type": "minimax_text_01",
            "attn_type_list": [int(kind == "full_attention") for kind in config["layer_types"]],
            "rotary_dim": config["head_dim"],
            "rope_theta": config["rope_parameters"]["rope_theta"],
            "postnorm": True,
        },
        _without_decays,
    ),
    "bitnet-first": Renaming(
        {},
        {"self_attn.attn_sub_norm": "self_attn.inner_attn_ln", "mlp.ffn_sub_norm": "mlp.ffn_layernorm"},
        lambda _: {},
    ),
    "olmo-hybrid": Renaming({}, {}, lambda _: {}, _split_convolutions),
    "olmo-hybrid-rope": Renaming({}, {}, lambda _: {}, _split_convolutions),
    "minicpm": Renaming(
        dict.fromkeys(("attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling"), ""),
        {},
        lambda config: {
            "architectures": ["MiniCPMForCausalLM"],
            "model_type": "minicpm",
            "scale_emb": config["embedding_multiplier"],
            "scale_depth": config["residual_multiplier"] * config["num_hidden_layers"] ** 0.5,
            "dim_model_base": int(config["hidden_size"] / config["logits_scaling"]),
        },
    ),
}
