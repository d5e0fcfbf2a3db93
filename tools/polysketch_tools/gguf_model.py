"""The model of a GGUF file as Hugging Face describes it: config.json, and the names and layout of the tensors."""

import dataclasses

import numpy as np

from polysketch_tools.gguf import Gguf


@dataclasses.dataclass(frozen=True)
class Architecture:
    """What differs between the architectures that are converted."""

    name: str  # in `architectures` of config.json
    model_type: str
    # llama.cpp pairs neighbouring rows of q and k for RoPE where Hugging Face pairs the halves of a head: its converter
    # permutes the rows of some architectures, and uses a RoPE of halves for the others.
    permuted: bool = False
    head_norms: bool = False  # RMSNorm of the queries and keys of each head
    qkv_biases: bool = False  # always, and no other ones
    rope_every: int = 0  # layer i has no RoPE if i + 1 is a multiple of it; 0: all layers have it
    factors: bool = False  # Granite's


# By general.architecture. Mistral's models are `llama` in GGUF.
ARCHITECTURES = {
    "llama": Architecture("LlamaForCausalLM", "llama", permuted=True),
    "qwen2": Architecture("Qwen2ForCausalLM", "qwen2", qkv_biases=True),
    "qwen3": Architecture("Qwen3ForCausalLM", "qwen3", head_norms=True),
    "smollm3": Architecture("SmolLM3ForCausalLM", "smollm3", permuted=True, rope_every=4),
    "granite": Architecture("GraniteForCausalLM", "granite", permuted=True, factors=True),
}
# Granite's factors: GGUF's name, config.json's.
_FACTORS = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "logit_scale": "logits_scaling",
    "residual_scale": "residual_multiplier",
}

# What llama.cpp computes YaRN with, whatever a file says.
_YARN = {"yarn_beta_fast": 32.0, "yarn_beta_slow": 1.0, "yarn_ext_factor": 1.0}
# Fields of an architecture that are read, and those that say nothing about what is computed.
_READ = {
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "expert_count",
    "feed_forward_length",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    *(f"rope.scaling.{name}" for name in _YARN),
}
_WITHOUT_EFFECT = {"expert_used_count", "rope.scaling.finetuned", "vocab_size"}

# The server's (engine/model/llama_config.cc).
_MAX_LAYERS = 1 << 10
_MAX_WIDTH = 1 << 16
_MAX_HEADS = 1 << 12
_MAX_HEAD_SIZE = 1 << 10
_MAX_MLP_WIDTH = 1 << 18
_MAX_POSITIONS = 1 << 28
_MAX_VOCABULARY = 1 << 22
_ROPE_FREQUENCIES = "rope_freqs.weight"
# Llama 3's scaling: GGUF holds the divisors of the frequencies, config.json what they are computed from.
_LLAMA3_FACTORS = (8.0, 32.0)
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


class Model:
    """The names and shapes of the tensors, and config.json, of a file. Raises ToolError for what is not converted."""

    def __init__(self, file: Gguf):
        self._file = file
        name = file.field("general.architecture", str)
        if name not in ARCHITECTURES:
            raise file.error(f"general.architecture: expected one of {', '.join(ARCHITECTURES)}, found {name!r:.60}")
        self.architecture = ARCHITECTURES[name]
        self._prefix = name + "."
        self._check_fields()
        self.layers = self._size("block_count", _MAX_LAYERS)
        self.width = self._size("embedding_length", _MAX_WIDTH)
        self.heads = self._size("attention.head_count", _MAX_HEADS)
        self.kv_heads = self._size("attention.head_count_kv", _MAX_HEADS, self.heads)
        self.head_size = self._size("attention.key_length", _MAX_HEAD_SIZE, self.width // self.heads)
        self.mlp_width = self._size("feed_forward_length", _MAX_MLP_WIDTH)
        self._check_heads()
        embedding = file.tensors.get("token_embd.weight")
        if embedding is None or len(embedding.shape) != 2:
            raise file.error("tensor token_embd.weight: expected a matrix, found ", embedding and list(embedding.shape))
        self.vocab_size = embedding.shape[0]
        if not 2 <= self.vocab_size <= _MAX_VOCABULARY or self.width < 2:
            raise file.error(
                f"tensor token_embd.weight: expected 2 to {_MAX_VOCABULARY} rows and 2 columns or more, found {list(embedding.shape)}"
            )
        self.biases = self.architecture.qkv_biases or "blk.0.attn_q.bias" in file.tensors
        self.tied = "output.weight" not in file.tensors
        # By Hugging Face's name: GGUF's name and the shape.
        self.tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
        for ours, theirs, shape in self._expected():
            self.tensors[ours] = (theirs, shape)
        self._check_tensors()

    def values(self, name: str) -> np.ndarray:
        """The values of a tensor by Hugging Face's name, as float32."""
        theirs, shape = self.tensors[name]
        array = self._file.tensor(theirs)
        if not np.isfinite(array).all():
            raise self._file.error(f"tensor {theirs}: expected finite values, found NaN or infinity")
        if self.architecture.permuted and ".self_attn.q_proj." in name:
            array = _in_halves(array, self.heads)
        if self.architecture.permuted and ".self_attn.k_proj." in name:
            array = _in_halves(array, self.kv_heads)
        return array.reshape(shape)

    def config(self, dtype: str, tokens: dict[str, int | list[int] | None]) -> dict:
        """The content of config.json. dtype: of the tensors, as torch names it. tokens: ids (bos_token_id, ...)."""
        config = {
            "architectures": [self.architecture.name],
            "model_type": self.architecture.model_type,
            "attention_bias": self.biases,
            "attention_dropout": 0.0,
            "head_dim": self.head_size,
            "hidden_act": "silu",
            "hidden_size": self.width,
            "intermediate_size": self.mlp_width,
            "max_position_embeddings": self._size("context_length", _MAX_POSITIONS),
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.kv_heads,
            "rms_norm_eps": self._decimal("attention.layer_norm_rms_epsilon", 1e-12, 1),
            "rope_scaling": self._rope_scaling(),
            "rope_theta": self._rope_theta(),
            "tie_word_embeddings": self.tied,
            "torch_dtype": dtype,
            "use_cache": True,
            "vocab_size": self.vocab_size,
            **tokens,
        }
        if self.architecture.model_type in ("llama", "granite"):
            config["mlp_bias"] = False
        else:
            config["use_sliding_window"] = False
        if every := self.architecture.rope_every:
            config["no_rope_layer_interval"] = every
            config["no_rope_layers"] = [int((i + 1) % every != 0) for i in range(self.layers)]
        if self.architecture.factors:
            config |= self._factors()
        return config

    def _factors(self) -> dict[str, float]:
        # llama.cpp's default of each; the range is the server's.
        defaults = dict.fromkeys(_FACTORS, 1.0) | {"attention.scale": self.head_size**-0.5}
        return {ours: self._decimal(theirs, 1e-4, 1e4, defaults[theirs]) for theirs, ours in _FACTORS.items()}

    def _check_fields(self) -> None:
        for key, value in self._file.metadata.items():
            name = key.removeprefix(self._prefix)
            known = name in _READ or name in _WITHOUT_EFFECT or (self.architecture.factors and name in _FACTORS)
            if name != key and not known:
                raise self._file.error(f"field {key}: not supported, found {value!r:.60}")
        # In Granite's files it says whether there is RoPE.
        if self.architecture.factors and not self._file.metadata.get(self._prefix + "rope.scaling.finetuned", True):
            raise self._file.error(f"field {self._prefix}rope.scaling.finetuned: expected true, found false: a model without RoPE")
        if experts := self._file.metadata.get(self._prefix + "expert_count", 0):
            raise self._file.error(f"field {self._prefix}expert_count: expected 0, found {experts!r:.60}: a mixture of experts")

    def _check_heads(self) -> None:
        if self.heads % self.kv_heads != 0:
            raise self._file.error(f"expected a multiple of {self.kv_heads} kv heads, found {self.heads} heads")
        for field in ("attention.value_length", "rope.dimension_count"):
            found = self._size(field, _MAX_HEAD_SIZE, self.head_size)
            if found != self.head_size:
                raise self._file.error(f"field {self._prefix}{field}: expected {self.head_size}, found {found}")
        if self.head_size % 2 != 0:
            raise self._file.error(f"expected an even head size, found {self.head_size}")

    def _expected(self):
        """Yields Hugging Face's name, GGUF's name and the shape of each tensor."""
        vocabulary = (self.vocab_size, self.width)
        q, kv = self.heads * self.head_size, self.kv_heads * self.head_size
        yield "model.embed_tokens.weight", "token_embd.weight", vocabulary
        yield "model.norm.weight", "output_norm.weight", (self.width,)
        if not self.tied:
            yield "lm_head.weight", "output.weight", vocabulary
        for i in range(self.layers):
            ours, theirs = f"model.layers.{i}.", f"blk.{i}."
            yield ours + "input_layernorm.weight", theirs + "attn_norm.weight", (self.width,)
            yield ours + "post_attention_layernorm.weight", theirs + "ffn_norm.weight", (self.width,)
            for one, other, rows in (("q_proj", "attn_q", q), ("k_proj", "attn_k", kv), ("v_proj", "attn_v", kv)):
                yield f"{ours}self_attn.{one}.weight", f"{theirs}{other}.weight", (rows, self.width)
                if self.biases:
                    yield f"{ours}self_attn.{one}.bias", f"{theirs}{other}.bias", (rows,)
            yield ours + "self_attn.o_proj.weight", theirs + "attn_output.weight", (self.width, q)
            if self.biases and not self.architecture.qkv_biases:  # attention_bias is of all four
                yield ours + "self_attn.o_proj.bias", theirs + "attn_output.bias", (self.width,)
            if self.architecture.head_norms:
                yield ours + "self_attn.q_norm.weight", theirs + "attn_q_norm.weight", (self.head_size,)
                yield ours + "self_attn.k_norm.weight", theirs + "attn_k_norm.weight", (self.head_size,)
            for one, other in (("gate_proj", "ffn_gate"), ("up_proj", "ffn_up")):
                yield f"{ours}mlp.{one}.weight", f"{theirs}{other}.weight", (self.mlp_width, self.width)
            yield ours + "mlp.down_proj.weight", theirs + "ffn_down.weight", (self.width, self.mlp_width)

    def _check_tensors(self) -> None:
        found = self._file.tensors
        for theirs, shape in self.tensors.values():
            if theirs not in found:
                raise self._file.error(f"tensor {theirs}: missing")
            if found[theirs].shape != shape:
                raise self._file.error(f"tensor {theirs}: expected {list(shape)}, found {list(found[theirs].shape)}")
        known = {theirs for theirs, _ in self.tensors.values()} | {_ROPE_FREQUENCIES}
        for name in found:
            if name not in known:
                raise self._file.error(f"tensor {name}: not supported")

    def _rope_scaling(self) -> dict | None:
        kind = self._file.field(self._prefix + "rope.scaling.type", str, "none")
        if _ROPE_FREQUENCIES in self._file.tensors:
            if kind != "none":
                raise self._file.error(f"tensor {_ROPE_FREQUENCIES}: expected no rope.scaling.type beside it, found {kind}")
            return self._llama3_scaling()
        if kind == "none":
            return None
        if kind not in ("linear", "yarn"):
            raise self._file.error(f"field {self._prefix}rope.scaling.type: expected none, linear or yarn, found {kind!r:.60}")
        found = {"factor": self._decimal("rope.scaling.factor", 1, 1e6), "rope_type": kind}
        if kind == "yarn":
            for name, only in _YARN.items():
                self._decimal(f"rope.scaling.{name}", only, only, only)
            trained = self._size("context_length", _MAX_POSITIONS)
            found["original_max_position_embeddings"] = self._size("rope.scaling.original_context_length", _MAX_POSITIONS, trained)
        return found

    def _llama3_scaling(self) -> dict:
        found = self._file.tensor(_ROPE_FREQUENCIES)
        base = self._rope_theta()
        for factor in _LLAMA3_FACTORS:
            expected = _llama3_divisors(base, self.head_size, factor)
            if found.shape == expected.shape and np.allclose(found, expected, rtol=1e-5, atol=0):
                return {"factor": factor, "rope_type": "llama3", **_LLAMA3}
        raise self._file.error(f"tensor {_ROPE_FREQUENCIES}: expected the divisors of Llama 3.1 or 3.2, found others")

    def _size(self, field: str, most: int, otherwise: int | None = None) -> int:
        value = self._file.field(self._prefix + field, int, otherwise)
        if not 0 < value <= most:
            raise self._file.error(f"field {self._prefix}{field}: expected 1 to {most}, found {value}")
        return value

    def _rope_theta(self) -> float:
        return self._decimal("rope.freq_base", 1, 1e12, 10000.0)

    def _decimal(self, field: str, least: float, most: float, otherwise: float | None = None) -> float:
        """A number that was float32 in the file, as the shortest decimal of it: 1e-05. The range is the server's."""
        with np.errstate(over="ignore"):
            value = float(str(np.float32(self._file.field(self._prefix + field, float, otherwise))))
        if not least <= value <= most:
            raise self._file.error(f"field {self._prefix}{field}: expected {least:g} to {most:g}, found {value:g}")
        return value


def _in_halves(array: np.ndarray, heads: int) -> np.ndarray:
    """The rows of q or k with neighbours paired, as rows whose pairs are the halves of a head."""
    rows = array.shape[0]
    return array.reshape(heads, rows // heads // 2, 2, -1).swapaxes(1, 2).reshape(array.shape)


def _llama3_divisors(base: float, head_size: int, factor: float) -> np.ndarray:
    frequencies = base ** -(np.arange(0, head_size, 2, dtype=np.float64) / head_size)
    lengths = 2 * np.pi / frequencies
    context = _LLAMA3["original_max_position_embeddings"]
    low, high = _LLAMA3["low_freq_factor"], _LLAMA3["high_freq_factor"]
    smooth = (context / lengths - low) / (high - low)
    between = 1 / ((1 - smooth) / factor + smooth)
    return np.where(lengths < context / high, 1.0, np.where(lengths > context / low, factor, between))
