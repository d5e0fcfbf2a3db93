"""config.json of a model folder, and the names and shapes of its tensors (docs/model-format.md)."""

import dataclasses
import json
import pathlib
from collections.abc import Iterator

from polysketch_tools.errors import ToolError
from polysketch_tools.file_kinds import describe

FORMAT_VERSION = 1
SECOND_VERSION = 2  # of a config with a decay gate or without sinusoids
SECOND_VERSION_FIELDS = {"decay_gate": False, "sinusoidal_positions": True}  # with what version 1 has in their place
THIRD_VERSION = 3  # of the kinds with coefficients
_VERSIONS = (FORMAT_VERSION, SECOND_VERSION, THIRD_VERSION)
ARCHITECTURE = "polysketchformer"
ATTENTION_KINDS = (
    "softmax",
    "polynomial",
    "random_sketch",
    "learned_sketch",
    "learned_sketch_mixed",
    "random_sketch_mixed",
    "linear",
    "performer",
    "symmetric_power",
    "polynomial_square",
    "affine_square",
)
KV_KINDS = ("softmax", "polynomial", "polynomial_square")
COEFFICIENT_KINDS = ("polynomial_square", "affine_square")
# Kinds that the training package has to compare with, and the server does not have: there is no model folder of them.
UNSERVED_KINDS = ("linformer", "hyperattention")
SKETCH_KINDS = ("gaussian", "srht")
SKETCH_LEVELS = 2
SKETCH_EXPANSION = 8


@dataclasses.dataclass(kw_only=True)
class ModelConfig:
    """The fields of config.json. None: config.json does not have the field."""

    attention: str
    vocab_size: int
    emb_dim: int
    num_heads: int
    num_layers: int
    context_length: int
    grain_size: int | None = None
    power: int | None = None
    near_power: int | None = None
    sketch_size: int | None = None
    num_features: int | None = None
    projected_rows: int | None = None  # linformer: rows that stand for a block
    sketch_kind: str | None = None
    alpha: float | None = None
    beta: float | None = None
    head_coefficients: bool | None = None
    learned_coefficients: bool | None = None
    add_bos: bool = False
    bos_id: int = -1
    eos_id: int = -1
    decay_gate: bool = False
    sinusoidal_positions: bool = True  # added to the embedding; RoPE is in every model

    @property
    def head_dim(self) -> int:
        return self.emb_dim // self.num_heads

    @property
    def mlp_hidden(self) -> int:
        return (8 * self.emb_dim // 3) // 8 * 8

    @property
    def is_mixed(self) -> bool:
        return str(self.attention).endswith("_mixed")

    @property
    def is_learned(self) -> bool:
        return str(self.attention).startswith("learned_")

    @property
    def is_random(self) -> bool:
        return str(self.attention).startswith("random_")

    @property
    def has_qk_norm(self) -> bool:
        """Whether queries and keys have one LN over d, before the power or the random sketch."""
        return self.attention in ("polynomial", "symmetric_power") or self.is_random or self.has_coefficients

    @property
    def has_coefficients(self) -> bool:
        """Whether weights are squares of a polynomial P of (q'.k' + alpha) / beta with stored coefficients."""
        return self.attention in COEFFICIENT_KINDS

    @property
    def polynomial_alpha(self) -> float:
        return 0.0 if self.alpha is None else self.alpha

    @property
    def polynomial_beta(self) -> float:
        return self.head_dim if self.beta is None else self.beta

    @property
    def coefficients_shape(self) -> tuple[int, ...]:
        """Of a layer: those of P, or with head_coefficients those of each head."""
        terms = 2 if self.attention == "affine_square" else self.power + 1
        return (self.num_heads, terms) if self.head_coefficients else (terms,)

    @property
    def is_served(self) -> bool:
        return self.attention not in UNSERVED_KINDS

    @property
    def is_recurrent(self) -> bool:
        """Whether the past folds into a state of constant size."""
        return self.is_served and self.attention not in KV_KINDS

    def check_served(self) -> None:
        """Raises ToolError for a kind without a model folder."""
        if not self.is_served:
            served = ", ".join(ATTENTION_KINDS)
            raise ToolError(
                f"{self.attention}: not served, so it has no model folder; expected one of {served}"
            )

    def check(self) -> None:
        """Raises ToolError for a config that the server would refuse, except for its unserved kinds."""

        def expect(condition: bool, field: str, expected: str) -> None:
            if not condition:
                raise ToolError(
                    f'config: field "{field}": expected {expected}, found {getattr(self, field)!r}'
                )

        def expect_int(field: str, low: int, high: int) -> None:
            value = getattr(self, field)
            expect(
                type(value) is int and low <= value <= high, field, f"an integer in [{low}, {high}]"
            )

        kinds = ATTENTION_KINDS + UNSERVED_KINDS
        expect(self.attention in kinds, "attention", f"one of {', '.join(kinds)}")
        expect_int("vocab_size", 2, 1 << 22)
        expect_int("emb_dim", 4, 65536)
        expect_int("num_heads", 1, 4096)
        expect_int("num_layers", 1, 1024)
        expect_int("context_length", 1, 1 << 30)
        if self.is_mixed or self.attention == "linformer" or self.grain_size is not None:
            expect_int("grain_size", 1, 65536)
        expect(
            self.emb_dim % self.num_heads == 0 and self.head_dim % 2 == 0,
            "num_heads",
            f"emb_dim {self.emb_dim} / num_heads to be an even integer",
        )
        if self.attention == "polynomial" or self.is_random:
            expect_int("power", 2, 64)
            expect(self.power % 2 == 0, "power", "an even number")
        if self.is_random:
            expect(
                self.power >= 4 and self.power & (self.power - 1) == 0,
                "power",
                "a power of two from 4",
            )
            expect(
                self.sketch_kind in SKETCH_KINDS, "sketch_kind", f"one of {', '.join(SKETCH_KINDS)}"
            )
        if self.is_random or self.is_learned:
            expect_int("sketch_size", 1, 256)
        if self.attention == "symmetric_power":
            if self.power is not None:
                expect_int("power", 2, 2)
            expect(
                self.head_dim % 8 == 0 and self.head_dim <= 256,
                "num_heads",
                f"emb_dim {self.emb_dim} / num_heads to be a multiple of 8, at most 256",
            )
        if self.has_coefficients:
            self._check_coefficients(expect, expect_int)
        if self.is_mixed:
            expect_int("near_power", 4, 4)
        if self.attention == "performer":
            expect_int("num_features", 1, 65536)
        if self.attention == "linformer":
            expect_int("projected_rows", 1, self.grain_size)
        for field in ("bos_id", "eos_id"):
            expect_int(field, -1, self.vocab_size - 1)
        expect(type(self.add_bos) is bool, "add_bos", "true or false")
        expect(self.bos_id >= 0 or not self.add_bos, "add_bos", "a bos_id beside it")
        for field in SECOND_VERSION_FIELDS:
            expect(type(getattr(self, field)) is bool, field, "true or false")
        gated = self.is_recurrent or not self.decay_gate
        expect(gated, "decay_gate", f"false for attention {self.attention}")

    def _check_coefficients(self, expect, expect_int) -> None:
        if self.attention == "polynomial_square":
            expect_int("power", 1, 8)
        else:
            if self.power is not None:
                expect_int("power", 1, 1)
            limit = f"emb_dim {self.emb_dim} / num_heads to be at most 255"
            expect(self.head_dim <= 255, "num_heads", limit)
        for field, low in (("alpha", -1e6), ("beta", 1e-6)):
            value = getattr(self, field)
            number = type(value) in (int, float) and low <= value <= 1e6
            expect(value is None or number, field, f"a number in [{low:g}, 1e+06]")
        for field in ("head_coefficients", "learned_coefficients"):
            value = getattr(self, field)
            expect(value is None or type(value) is bool, field, "true or false")

    def to_json(self) -> str:
        own = {k: v for k, v in dataclasses.asdict(self).items() if v is not None}
        for field, default in SECOND_VERSION_FIELDS.items():
            if own[field] == default:
                del own[field]  # version 1 has no such field
        version = SECOND_VERSION if own.keys() & SECOND_VERSION_FIELDS.keys() else FORMAT_VERSION
        version = THIRD_VERSION if self.has_coefficients else version
        fields = {"format_version": version, "architecture": ARCHITECTURE} | own
        return json.dumps(fields, indent=1) + "\n"


def used_fields(attention: str) -> set[str]:
    """Returns the fields of some kinds that `attention` needs."""
    used = set()
    if attention in ("polynomial", "polynomial_square"):
        used |= {"power"}
    if attention.startswith("random_"):
        used |= {"power", "sketch_size", "sketch_kind"}
    if attention.startswith("learned_"):
        used |= {"sketch_size"}
    if attention.endswith("_mixed"):
        used |= {"grain_size", "near_power"}
    if attention == "performer":
        used |= {"num_features"}
    if attention == "linformer":
        used |= {"grain_size", "projected_rows"}
    return used


def read_json_object(path: pathlib.Path) -> dict:
    """Reads a JSON object from a file. A duplicate key is an error, as in the server."""

    def unique(pairs):
        fields = dict(pairs)
        if len(fields) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise ToolError(f'{path}: key "{twice}" appears twice')
        return fields

    try:
        value = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=unique)
    except UnicodeDecodeError as error:
        raise ToolError(f"{path}: expected a JSON object, found {describe(path)}") from error
    except json.JSONDecodeError as error:
        raise ToolError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ToolError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def read_model_config(path: pathlib.Path) -> ModelConfig:
    """Reads a config.json. format_version and architecture may be missing."""
    fields = read_json_object(path)
    version = fields.pop("format_version", THIRD_VERSION)
    if version not in _VERSIONS:
        raise ToolError(
            f'{path}: field "format_version": expected one of {", ".join(map(str, _VERSIONS))}; found {version!r}'
        )
    if fields.get("attention") in COEFFICIENT_KINDS and version < THIRD_VERSION:
        kind = fields["attention"]
        raise ToolError(
            f'{path}: field "format_version": expected {THIRD_VERSION} for attention {kind}, found {version}'
        )
    for field, default in SECOND_VERSION_FIELDS.items():
        if version < SECOND_VERSION and fields.get(field, default) != default:
            raise ToolError(
                f'{path}: field "{field}": expected format_version {SECOND_VERSION} beside it, found {version}'
            )
    if (found := fields.pop("architecture", ARCHITECTURE)) != ARCHITECTURE:
        raise ToolError(
            f'{path}: field "architecture": expected {ARCHITECTURE!r}, found {found!r}'
        )
    known = {field.name: field for field in dataclasses.fields(ModelConfig)}
    if unknown := fields.keys() - known.keys():
        raise ToolError(f'{path}: unknown field "{sorted(unknown)[0]}"')
    required = {name for name, field in known.items() if field.default is dataclasses.MISSING}
    required |= used_fields(str(fields.get("attention"))) - {"near_power", "sketch_kind"}
    if missing := required - fields.keys():
        raise ToolError(f'{path}: field "{sorted(missing)[0]}": missing')
    config = ModelConfig(**fields)
    if config.is_mixed and config.near_power is None:
        config.near_power = 4
    if config.is_random and config.sketch_kind is None:
        config.sketch_kind = "gaussian"
    try:
        config.check()
    except ToolError as error:
        raise ToolError(f"{path}: {error}") from error
    return config


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Returns name and shape of every tensor of the model, in the order in which they are written. ToolError: there is no
    model folder of this kind."""
    config.check_served()
    return dict(_tensors(config))


def _tensors(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    width, hidden = config.emb_dim, config.mlp_hidden
    yield "embedding.weight", (config.vocab_size, width)
    for i in range(config.num_layers):
        layer = f"layers.{i}."
        yield from _norm(layer + "attn_norm", width)
        yield layer + "attn.qkv.weight", (width, 3 * width)
        yield from _attention_tensors(config, layer + "attn.")
        yield layer + "attn.out.weight", (width, width)
        yield from _norm(layer + "mlp_norm", width)
        yield layer + "mlp.up.weight", (width, 2 * hidden)
        yield layer + "mlp.down.weight", (hidden, width)
    yield from _norm("final_norm", width)
    yield "softmax_bias", (config.vocab_size,)


def _norm(name: str, size: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield name + ".scale", (size,)
    yield name + ".bias", (size,)


def _attention_tensors(config: ModelConfig, attn: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    d, r = config.head_dim, config.sketch_size
    if config.has_qk_norm:
        yield from _norm(attn + "qk_norm", d)
    if config.is_mixed:
        yield from _norm(attn + "near_q_norm", d)
        yield from _norm(attn + "near_k_norm", d)
    if config.is_learned:
        for branch in (1, 2):
            for level in range(SKETCH_LEVELS):
                prefix = f"{attn}sketch.branch{branch}.level{level}."
                size = d if level == 0 else r
                yield from _norm(prefix + "norm", size)
                yield prefix + "up.weight", (size, SKETCH_EXPANSION * r)
                yield prefix + "down.weight", (SKETCH_EXPANSION * r, r)
    if config.is_random:
        count, level, size = config.power // 2, 0, d
        while count > 1:
            yield f"{attn}sketch.level{level}", (count, size, r)
            count, level, size = count // 2, level + 1, r
    if config.attention == "performer":
        yield attn + "omega", (config.num_features, d)
    if config.has_coefficients:
        yield attn + "coefficients", config.coefficients_shape
    if config.decay_gate:
        yield attn + "gate.weight", (config.emb_dim, config.num_heads)
        yield attn + "gate.bias", (config.num_heads,)
