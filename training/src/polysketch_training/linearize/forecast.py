"""What a run will need: bytes on disk, bytes of memory, and operations, of which the time follows by a measured rate."""

import dataclasses
import pathlib
import shutil
import time

import psutil
import torch
import transformers

from polysketch_tools.adapter import stored_tensors
from polysketch_tools.errors import ToolError
from polysketch_training.linearize.decoder import ARCHITECTURES
from polysketch_training.linearize.far import FarShape
from polysketch_training.linearize.options import Options
from polysketch_training.linearize.scores import BLOCK
from polysketch_training.linearize.sensitivity import curve_points
from polysketch_training.linearize.windows import BLOCKS_AT_ONCE

_PROGRAM_BYTES = 600 << 20  # of torch and transformers themselves
_RATE_TOKENS = 256
# What the heap of glibc 2.36 keeps of the activations of every layer that are freed: 0.9 of them in sequences of 512 tokens, 0.7 of 1,024 and
# of 2,048 (SmolLM2-135M).
_HEAP_KEEPS = 0.7
# Seconds of an operation beside those of one in the products that measure_rate measures, and of gradients beside forward (float32, torch on two
# threads of an AMD EPYC, Zen 3; 2,048 and 8,192 tokens).
_WINDOW_COST, _LOGITS_COST = 1.8, 1.5
_MATRIX_GRADIENTS, _FULL_GRADIENTS, _WINDOW_GRADIENTS = 1.2, 3.3, 2.0
_LOGITS_PASSES = 4  # of the teacher, of the student, divergence, gradients


@dataclasses.dataclass(frozen=True)
class Shape:
    layers: int
    width: int
    mlp: int
    heads: int
    kv_heads: int
    head: int
    vocabulary: int

    @staticmethod
    def of(config: dict) -> "Shape":
        made = transformers.CONFIG_MAPPING[ARCHITECTURES[config["architectures"][0]]]().to_dict() | config
        heads = made["num_attention_heads"]
        return Shape(
            layers=made["num_hidden_layers"],
            width=made["hidden_size"],
            mlp=made["intermediate_size"],
            heads=heads,
            kv_heads=made.get("num_key_value_heads") or heads,
            head=made.get("head_dim") or made["hidden_size"] // heads,
            vocabulary=made["vocab_size"],
        )

    def sizes(self, target: str) -> tuple[int, int]:
        """In and out of a matrix, by the name of --targets."""
        q, kv = self.heads * self.head, self.kv_heads * self.head
        return {
            "q": (self.width, q),
            "k": (self.width, kv),
            "v": (self.width, kv),
            "o": (q, self.width),
            "gate": (self.width, self.mlp),
            "up": (self.width, self.mlp),
            "down": (self.mlp, self.width),
        }[target]

    def layer_flops(self, keys: float, *, window: bool = False, trained: bool = False) -> float:
        """Of a token that attends to `keys` tokens, in time of operations of products of matrices. trained: forward, again, and gradients of
        activations."""
        matrices = 2 * sum(a * b for a, b in map(self.sizes, ("q", "k", "v", "o", "gate", "up", "down")))
        attention = 4 * self.heads * self.head * keys * (_WINDOW_COST if window else 1)
        if not trained:
            return matrices + attention
        return matrices * (2 + _MATRIX_GRADIENTS) + attention * (2 + (_WINDOW_GRADIENTS if window else _FULL_GRADIENTS))

    def far_flops(self, far: FarShape) -> float:
        """Of a token: its sketches, its maps, its part of the sums, and what its queries read."""
        rows = far.network_weights(self.head) + self._far_columns(far) * far.size
        return 2 * (self.heads + self.kv_heads) * (rows + far.features * (self.head + 1))

    def far_weights(self, far: FarShape) -> int:
        """Of a layer, beside their scales."""
        maps = (self.heads + self.kv_heads) * (self._far_columns(far) + 1) * far.size
        gate = self.kv_heads * (self.width + 1) if far.decay_gate else 0
        return maps + gate + far.network_weights(self.head)

    def _far_columns(self, far: FarShape) -> int:
        """Of what the maps take."""
        return far.size if far.network_weights(self.head) else self.head

    @property
    def logits_flops(self) -> float:
        return _LOGITS_COST * 2 * self.vocabulary * self.width

    def lora(self, rank: int, targets) -> int:
        return self.layers * rank * sum(sum(self.sizes(target)) for target in targets)


@dataclasses.dataclass
class Forecast:
    disk: dict[str, int]
    memory: dict[str, int]
    flops: dict[str, float]

    def table(self, rate: float) -> str:
        lines = ["disk, MB"] + [f"  {name:<44}{size / 1e6:>12,.1f}" for name, size in self.disk.items()]
        lines += [f"  {'together':<44}{sum(self.disk.values()) / 1e6:>12,.1f}", "memory, MB"]
        lines += [f"  {name:<44}{size / 1e6:>12,.1f}" for name, size in self.memory.items()]
        lines += [f"  {'together':<44}{sum(self.memory.values()) / 1e6:>12,.1f}"]
        lines += [f"time, minutes, at {rate / 1e9:,.1f} GFLOP/s (a layer of this shape, measured now)"]
        lines += [f"  {name:<44}{flops / rate / 60:>12,.1f}" for name, flops in self.flops.items()]
        lines += [f"  {'together':<44}{sum(self.flops.values()) / rate / 60:>12,.1f}"]
        return "\n".join(lines)


def forecast(folder: pathlib.Path, config: dict, options: Options, *, converted: bool, device: torch.device) -> Forecast:
    """converted: the teacher is a GGUF file, whose folder is kept."""
    shape, recipe, samples, evaluation = Shape.of(config), options.recipe, options.samples, options.evaluation
    weights = {name: entry.size // {"F32": 4}.get(entry.dtype, 2) for name, (_, entry) in stored_tensors(folder).items()}
    model_bytes = sum(entry.size for _, entry in stored_tensors(folder).values())
    lora = shape.lora(recipe.rank, recipe.targets) if recipe.steps else 0
    longest = max(*recipe.lengths, *samples.lengths, *evaluation.lengths)
    disk = {
        "sequences (distillation/ids.bin)": 4 * recipe.total,
        "teacher's states (distillation/states.bin)": 2 * shape.width * recipe.total,
        "states of LoRA and the optimizer": 2 * 12 * lora,
        "adapter": 2 * lora,
        "states of evaluation": 4 * shape.width * evaluation.text_tokens,
        "model": model_bytes,
    }
    if options.far:
        # How many layers have far parts is not known yet: at most all.
        far = shape.layers * shape.far_weights(options.far.shape)
        disk["sequences of transfer (transfer/ids.bin)"] = 4 * options.far.steps * recipe.tokens
        disk["far parts, their states and optimizer"] = 30 * far
    if options.control:
        disk["control: model, adapter, states"] = model_bytes + 26 * lora
    if converted:
        disk["teacher, converted from GGUF"] = model_bytes
    width = shape.width
    working = 6 * width + 3 * shape.heads * shape.head + 4 * shape.kv_heads * shape.head + 5 * shape.mlp  # activations of a token and layer
    memory = {
        "weights, float32": 4 * sum(weights.values()),
        "LoRA, its gradient and the optimizer": 16 * lora,
        "activations at the ends of layers": 4 * width * max(recipe.lengths) * shape.layers if recipe.steps else 0,
        "activations of a layer": 4 * longest * working * 2,
        **(_far_memory(shape, options, longest) if options.far else {}),
        **(
            {"freed activations in the heap": int(_HEAP_KEEPS * 4 * max(recipe.lengths) * working * shape.layers)}
            if recipe.steps and device.type == "cpu"
            else {}
        ),
        f"logits of {BLOCK} positions": 4 * BLOCK * shape.vocabulary * 5,
        "program": _PROGRAM_BYTES,
    }
    return Forecast(disk, memory, _flops(shape, options))


def _far_memory(shape: Shape, options: Options, longest: int) -> dict[str, int]:
    near, features = 2 * options.window.size + options.window.sinks, options.far.shape.features
    # Gradients need the features of all tokens, measurements those of some blocks.
    tokens = max(max(options.recipe.lengths), min(longest, BLOCKS_AT_ONCE * options.window.size))
    sums = -(-tokens // options.window.size) * shape.kv_heads * features * (shape.head + 1)
    return {
        "far parts, their gradients and the optimizer": 16 * shape.layers * shape.far_weights(options.far.shape),
        "weights of a window and features": 4 * 3 * (longest * shape.heads * near + tokens * shape.heads * features + sums),
    }


def _flops(shape: Shape, options: Options) -> dict[str, float]:
    recipe, samples, evaluation = options.recipe, options.samples, options.evaluation
    near = 2 * options.window.size + options.window.sinks

    def full(length: int) -> float:
        return shape.layers * shape.layer_flops(length / 2)

    def student(length: int, far: bool = False, *, trained: bool = False) -> float:
        """The full layers of --layers auto are not known: they count as windows."""
        full_layers = len(options.layers or ())
        own = shape.far_flops(options.far.shape) * (3 if trained else 1) if far and options.far else 0
        of_window = shape.layer_flops(min(near, length / 2), window=True, trained=trained) + own
        return full_layers * shape.layer_flops(length / 2, trained=trained) + (shape.layers - full_layers) * of_window

    points = len(curve_points(shape.layers)) - 1
    (length,) = samples.lengths
    each = (shape.layers + 1) / 2 + 1 + points  # passes through all layers for a sample
    sensitivity = samples.tokens * each * full(length) + samples.text_tokens * (shape.layers + 1 + points) * shape.logits_flops
    students = [(True, "")] + ([(False, " of the control")] if options.control else [])
    measured = 1 + recipe.steps // options.measure_every
    flops = {"sensitivity": sensitivity} if options.layers is None else {}
    mean_length = sum(recipe.lengths) / len(recipe.lengths)
    if options.far:
        # The student's output and its projection: forward and gradients.
        width = 2 * shape.heads * shape.head * shape.width + 4 * shape.heads * shape.head * near + shape.far_flops(options.far.shape)
        flops["attention transfer"] = options.far.steps * recipe.tokens * (full(mean_length) + 3 * shape.layers * width)
    teachers = 2 if options.scaling else 1
    flops["teacher in evaluation"] = sum(
        (evaluation.texts + evaluation.prompts) * n * (teachers * full(n) + student(n)) + evaluation.texts * n * 4 * shape.logits_flops
        for n in evaluation.lengths
    )
    if recipe.steps:
        flops["teacher's states"] = recipe.total * full(mean_length)
        # Forward, again, and gradients of activations: the weights have none.
        for far, of in students:
            flops[f"distillation{of}"] = recipe.total * (student(mean_length, far, trained=True) + _LOGITS_PASSES * shape.logits_flops)
            flops[f"its measurements{of}"] = measured * (samples.tokens * student(length, far) + samples.text_tokens * shape.logits_flops)
    for far, of in students:
        flops[f"evaluation{of}"] = sum(
            (evaluation.texts + evaluation.prompts) * n * student(n, far) + evaluation.texts * n * 3 * shape.logits_flops
            for n in evaluation.lengths
        )
    return flops


def measure_rate(config: dict, device: torch.device) -> float:
    """FLOP/s of one layer of this shape, forward."""
    shape = Shape.of(config)
    x = torch.randn(_RATE_TOKENS, shape.width, device=device)
    matrices = {name: torch.randn(*shape.sizes(name), device=device) * 0.02 for name in ("q", "o", "gate", "up", "down")}

    def layer() -> None:
        h = (x @ matrices["q"]) @ matrices["o"]
        h = (torch.nn.functional.silu(h @ matrices["gate"]) * (h @ matrices["up"])) @ matrices["down"]
        if device.type == "cuda":
            torch.cuda.synchronize()

    flops = 2 * _RATE_TOKENS * sum(matrix.numel() for matrix in matrices.values())
    best = 0.0
    layer()
    for _ in range(3):
        start = time.monotonic()
        layer()
        best = max(best, flops / (time.monotonic() - start))
    return best


def check_room(found: Forecast, out: pathlib.Path) -> None:
    """Raises ToolError where disk or memory are too small. What a run has written already counts twice: it asks for a little more."""
    while not out.exists():
        out = out.parent
    need, free = sum(found.disk.values()), shutil.disk_usage(out).free
    have = sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) if (out / "log.txt").exists() else 0
    if need > free + have:
        raise ToolError(f"{out}: expected {need / 1e6:,.0f} MB of free disk for the run, found {free / 1e6:,.0f} MB (--dry-run lists them)")
    need, free = sum(found.memory.values()), psutil.virtual_memory().available
    if need > free:
        raise ToolError(f"expected {need / 1e6:,.0f} MB of free memory for the run, found {free / 1e6:,.0f} MB (--dry-run lists them)")
