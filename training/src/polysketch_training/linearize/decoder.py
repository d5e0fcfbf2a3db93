"""A transformer of a Hugging Face folder, layer by layer, any of whose layers can have a window with sinks and a far part."""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable, Iterable

import safetensors.torch
import torch
import transformers
from torch.utils.checkpoint import checkpoint

from polysketch_tools.errors import ToolError
from polysketch_tools.model_config import read_json_object
from polysketch_training.linearize.far import FarPart, FarShape, before_rope, far_fields, far_shape
from polysketch_training.linearize.windows import KINDS, Window, attend

# Architecture -> model_type.
ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "SmolLM3ForCausalLM": "smollm3",
}
FULL, WITH_SINKS, WITH_FAR = "full_attention", "window_with_sinks", "window_with_far_part"  # layer_types of config.json

_ATTENTION = "polysketch_windows"
_REQUIRED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")
_MAX_LAYERS = 1024


def _attention(module, query, key, value, attention_mask, scaling, dropout=0.0, **_):
    """What transformers calls in each layer: Decoder sets `seen`, and no mask comes beside it."""
    return module.seen(module, query, key, value, scaling).transpose(1, 2), None


@dataclasses.dataclass
class Seen:
    """What the attention of a layer reads."""

    window: Window | None = None
    far: FarPart | None = None
    rope: tuple[torch.Tensor, torch.Tensor] | None = None  # that q and k were rotated by
    x: torch.Tensor | None = None  # [B, n, D], the input of the layer's projections, where its far part has a decay gate
    observer: Callable | None = None  # gets the arguments of __call__, and what it returns

    def __call__(self, module, q, k, v, scale: float) -> torch.Tensor:
        out = self.attend(q, k, v, scale, self.window, self.far)
        if self.observer is not None:
            self.observer(module, q, k, v, scale, out)
        return out

    def attend(self, q, k, v, scale: float, window: Window | None, far: FarPart | None) -> torch.Tensor:
        rows = None
        if window is not None and far is not None and q.shape[2] > window.most:
            rows = far.rows(before_rope(q, self.rope), before_rope(k, self.rope), self.x)
        return attend(q, k, v, scale, window, rows)


def _see_input(seen: Seen, module, args, kwargs) -> None:
    seen.x = args[0] if args else kwargs["hidden_states"]


transformers.AttentionInterface.register(_ATTENTION, _attention)


def read_config(folder: pathlib.Path) -> dict:
    """Returns config.json of a folder of one of ARCHITECTURES."""
    if not folder.is_dir():
        raise ToolError(f"{folder}: expected a Hugging Face folder or a GGUF file, found {'a file' if folder.exists() else 'nothing'}")
    path = folder / "config.json"
    if not path.is_file():
        raise ToolError(f"{path}: expected the config of a Hugging Face folder, found no file")
    config = read_json_object(path)
    found = config.get("architectures")
    if not isinstance(found, list) or len(found) != 1 or found[0] not in ARCHITECTURES:
        raise ToolError(f'{path}: field "architectures": expected one of {", ".join(ARCHITECTURES)}, found {found!r:.80}')
    for name in _REQUIRED:
        if type(value := config.get(name)) is not int or value < 1:
            raise ToolError(f'{path}: field "{name}": expected an integer from 1, found {value!r:.80}')
    if config["num_hidden_layers"] > _MAX_LAYERS:
        raise ToolError(f'{path}: field "num_hidden_layers": expected at most {_MAX_LAYERS}, found {config["num_hidden_layers"]}')
    if config.get("quantization_config") is not None:
        raise ToolError(f'{path}: field "quantization_config": expected none: weights of F32, F16 or BF16')
    return config


def check_full(folder: pathlib.Path, config: dict, length: int) -> None:
    """Raises ToolError unless all layers attend to all earlier tokens, up to `length`."""
    types = config.get("layer_types") or [FULL]
    window = config.get("sliding_window")
    optional = not config["architectures"][0].startswith("Mistral")
    if window is None and not optional and "sliding_window" not in config:
        window = 4096  # the default of its class
    slides = window is not None and window < length and (not optional or config.get("use_sliding_window"))
    if slides or any(kind != FULL for kind in types):
        found = f"sliding_window {window}" if slides else next(kind for kind in types if kind != FULL)
        raise ToolError(f"{folder / 'config.json'}: expected full attention in every layer, found {found!r}")


def windows_of(config: dict) -> tuple[Window | None, list[int], list[int]]:
    """Returns the window, the layers that have it, and those of them with a far part, of a folder that polysketch-linearize wrote."""
    types = config.get("layer_types") or []
    far = [i for i, kind in enumerate(types) if kind == WITH_FAR]
    layers = [i for i, kind in enumerate(types) if kind in (WITH_SINKS, WITH_FAR)]
    if not layers:
        return None, [], []
    window = Window(config["attention_window"], config["attention_window_kind"], config["attention_sinks"])
    if window.kind not in KINDS:
        raise ToolError(f'field "attention_window_kind": expected one of {", ".join(KINDS)}, found {window.kind!r}')
    return window, layers, far


def windows_fields(window: Window, full: Iterable[int], layers: int) -> dict:
    """The fields of config.json that say which layers are full and what window the others have."""
    full = set(full)
    return {
        "layer_types": [FULL if i in full else WITH_SINKS for i in range(layers)],
        "attention_window": window.size,
        "attention_window_kind": window.kind,
        "attention_sinks": window.sinks,
    }


def add_far_fields(fields: dict, shape: FarShape, layers: Iterable[int]) -> None:
    """These layers, which have windows, have far parts too."""
    for i in layers:
        fields["layer_types"][i] = WITH_FAR
    fields |= far_fields(shape)


def _config_of_class(config: dict):
    """The config of transformers, which knows no windows with sinks."""
    own = ("attention_window", "attention_far_", "attention_sinks")
    fields = {name: value for name, value in config.items() if not name.startswith(own)}
    if {WITH_SINKS, WITH_FAR} & set(config.get("layer_types") or []):
        del fields["layer_types"]
    return transformers.CONFIG_MAPPING[ARCHITECTURES[config["architectures"][0]]].from_dict(fields)


class Decoder:
    """The weights are float32 and frozen, those of far parts too. `window`: that of the layers that set_windows names; by default those of
    the folder. `scaled`: fields of config.json, by which RoPE turns where set_scaled says so."""

    def __init__(self, folder: pathlib.Path, device: torch.device, window: Window | None = None, scaled: dict | None = None):
        self.config = read_config(folder)
        own, layers, far = windows_of(self.config)
        self.window, self.device = window or own, device
        try:
            model = transformers.AutoModelForCausalLM.from_pretrained(
                folder,
                config=_config_of_class(self.config),
                dtype=torch.float32,
                attn_implementation=_ATTENTION,
                local_files_only=True,
                use_safetensors=True,
            )
        except (ValueError, RuntimeError, OSError, KeyError) as error:
            raise ToolError(f"{folder}: expected the weights of its config.json, found: {_first_line(error)}") from error
        self.model = model.requires_grad_(False).eval().to(device)
        self.inner = self.model.model
        self.count = len(self.inner.layers)
        self.vocabulary = self.model.lm_head.weight.shape[0]
        self.seen = [Seen() for _ in range(self.count)]
        for layer, seen in zip(self.inner.layers, self.seen):
            layer.self_attn.seen = seen
        rotary = self.inner.rotary_emb
        self._ropes = [rotary, type(rotary)(config=_config_of_class(self.config | scaled)) if scaled else rotary]
        self.set_scaled(False)
        self.far: dict[int, FarPart] = {}
        if far:
            self.add_far(far_shape(self.config), far)
            self._read_far(folder)
        self.set_windows(layers)

    def add_far(self, shape: FarShape, layers: Iterable[int]) -> None:
        """Gives these layers far parts, all of zeros."""
        config = self.model.config
        for i in layers:
            attention = self.inner.layers[i].self_attn
            heads = config.num_attention_heads
            kv_heads, width = config.num_key_value_heads or heads, config.hidden_size
            attention.far = FarPart(shape, heads, kv_heads, attention.head_dim, width, self.device)
            self.far[i] = attention.far.requires_grad_(False)
            if shape.decay_gate:
                attention.register_forward_pre_hook(functools.partial(_see_input, self.seen[i]), with_kwargs=True)

    def _read_far(self, folder: pathlib.Path) -> None:
        tensors = {}
        for path in sorted(folder.glob("*.safetensors")):
            with safetensors.safe_open(path, "pt") as file:
                tensors |= {name: file.get_tensor(name) for name in file.keys() if ".self_attn.far_" in name}
        for i, part in self.far.items():
            part.read(i, tensors)

    def set_scaled(self, scaled: bool) -> None:
        self._rotary = self._ropes[scaled]

    def set_windows(self, layers: Iterable[int], *, far: bool = True) -> None:
        """These layers have the window and, with `far`, the far part that they were given; the others see all tokens."""
        layers = set(layers)
        for i, seen in enumerate(self.seen):
            seen.window = self.window if i in layers else None
            seen.far = self.far.get(i) if far and i in layers else None

    def limit_vocabulary(self, tokens: int) -> None:
        """Rows of the output matrix after the tokenizer's tokens are padding, which the server does not load."""
        self.vocabulary = min(self.vocabulary, tokens)

    @property
    def head(self) -> torch.Tensor:
        """[V, D]"""
        return self.model.lm_head.weight[: self.vocabulary]

    def embed(self, ids) -> torch.Tensor:
        """[1, n, D]"""
        return self.inner.embed_tokens(torch.as_tensor(ids, dtype=torch.int64, device=self.device)[None])

    def run(self, h: torch.Tensor, first: int = 0, last: int | None = None, *, recompute: bool = False) -> torch.Tensor:
        """The layers [first, last) on h [1, n, D]. recompute: gradients compute a layer again instead of keeping its activations."""
        rope = self._rope(h.shape[1])
        for layer, seen in zip(self.inner.layers, self.seen):
            seen.rope = rope if getattr(layer.self_attn, "use_rope", True) else None
        for layer in self.inner.layers[first:last]:
            if recompute:
                h = checkpoint(layer, h, position_embeddings=rope, use_reentrant=False, preserve_rng_state=False)
            else:
                h = layer(h, position_embeddings=rope)
        return h

    def hidden(self, ids, *, recompute: bool = False) -> torch.Tensor:
        """The last hidden states [n, D], after the final norm."""
        return self.final(self.run(self.embed(ids), recompute=recompute))

    def final(self, h: torch.Tensor) -> torch.Tensor:
        return self.inner.norm(h)[0]

    def _rope(self, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin [1, n, d] with exact products of position and frequency, as the server has them."""
        rotary = self._rotary
        at = torch.arange(n, dtype=torch.float64, device=self.device)
        angles = at[:, None] * rotary.inv_freq.to(self.device).double()
        angles = torch.cat((angles, angles), -1)[None]
        return (angles.cos() * rotary.attention_scaling).float(), (angles.sin() * rotary.attention_scaling).float()


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return text[0][:300] if text else type(error).__name__


def load_tokenizer(folder: pathlib.Path):
    """The tokenizer of the folder: one of Hugging Face's `tokenizers`, which tells where in a text a token lies."""
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model")):
        raise ToolError(f"{folder}: expected tokenizer.json or tokenizer.model, found neither")
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, use_fast=True)
    except Exception as error:  # of tokenizers, which has one class for all that it finds
        raise ToolError(f"{folder}: expected a tokenizer, found: {_first_line(error)}") from error
    if not tokenizer.is_fast:
        raise ToolError(f"{folder}: expected a tokenizer that tokenizer.json describes, found {type(tokenizer).__name__}")
    tokenizer.model_max_length = int(1e12)  # no warnings about long texts
    return tokenizer


def json_text(value) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"
