"""The report of a run: report.json, and the same as Markdown."""

import dataclasses

from polysketch_training.linearize.evaluation import MODELS, SCALED
from polysketch_training.linearize.far import AFFINE_SQUARE, LEARNED_SKETCH, LINEAR
from polysketch_training.linearize.sensitivity import Sensitivity
from polysketch_training.linearize.windows import Window

_FAR_WORDS = {
    AFFINE_SQUARE: "squares of products of affine maps",
    LINEAR: "products of elu + 1 of affine maps",
    LEARNED_SKETCH: "squares of products of affine maps of learned sketches",
}
_STILL = 0.05  # of the gain: what may be missing where recall has stopped to grow


@dataclasses.dataclass
class Report:
    teacher: str
    layers: int
    full: list[int]
    window: dict
    kv_bytes_of_token: int  # of one layer, in float32
    sensitivity: Sensitivity | None = None  # None: --layers named the full ones
    recipe: dict | None = None
    curve: dict[int, dict] | None = None  # by steps of distillation
    control_curve: dict[int, dict] | None = None  # without far parts
    far: dict | None = None  # FarRecipe
    far_layers: list[int] = dataclasses.field(default_factory=list)  # that keep their far parts
    far_bytes: int = 0  # of a layer and a sequence
    scaling: dict | None = None
    transfer: dict[int, dict] | None = None  # transfer.errors_of
    evaluation: list[dict] | None = None  # Evaluation.results

    def to_dict(self) -> dict:
        fields = dataclasses.asdict(self)
        if self.curve:
            fields["recall_stops_after"] = recall_stops_after(self.curve)
        fields["far"] = self.far or "none"
        return fields

    def markdown(self) -> str:
        parts = [self._head()]
        if self.sensitivity:
            parts.append(_sensitivity(self.sensitivity))
        if self.transfer:
            parts.append(self._transfer())
        if self.curve:
            parts.append(self._distillation())
        if self.evaluation:
            parts.append(_evaluation(self.evaluation))
        return "\n".join(parts)

    def _head(self) -> str:
        windows = self.layers - len(self.full)
        w = self.window
        kept = Window(**w).most
        growing = self.kv_bytes_of_token * len(self.full)
        far = "There are no far parts."
        state = ""
        if self.far_layers:
            far = (
                f"Tokens between have far parts in layers {', '.join(map(str, self.far_layers))}, {_FAR_WORDS[self.far['kind']]} to"
                f" {self.far['size']} numbers{' with a decay gate' if self.far['decay_gate'] else ''}, whose weights shrink"
                f" as {self.far['length']} / position after {self.far['length']} tokens."
            )
            state = f" The far parts keep {self.far_bytes * len(self.far_layers):,} bytes a sequence, whatever its length."
        scaling = f" RoPE is scaled as {self.scaling['kind']} for {self.scaling['factor']:g} times the teacher's length." if self.scaling else ""
        what = "full layers: " + (", ".join(map(str, self.full)) or "none")
        return (
            f"# {self.teacher}, linearized\n\n"
            f"Of {self.layers} layers {len(self.full)} attend to all earlier tokens ({what}). The other {windows} attend to"
            f" {_window_text(w)}. {far}{scaling}\n\n"
            f"KV cache in float32: {growing:,} bytes a token, {growing / (self.kv_bytes_of_token * self.layers):.0%} of the teacher's,"
            f" and at most {self.kv_bytes_of_token * windows * (kept + w['sinks']):,} bytes a sequence for the windows, whole blocks of"
            f" the cache not counted.{state}\n"
        )

    def _transfer(self) -> str:
        rows = [[str(i), f"{error['window']:.4f}", f"{error['far']:.4f}"] for i, error in self.transfer.items()]
        means = [f"{sum(error[name] for error in self.transfer.values()) / len(rows):.4f}" for name in ("window", "far")]
        return "\n".join(
            [
                "## Attention transfer\n",
                f"{self.far['steps']} steps on the teacher's own inputs of each layer, learning rate {self.far['learning_rate']:g}. Squared"
                " error of the attention's output, as a share of what full attention puts out, for tokens that have a far part; held-out"
                " text. A layer whose error it does not lower has none:\n",
                _table(["layer", "window and sinks", "with far part"], [*rows, ["mean", *means]]),
            ]
        )

    def _distillation(self) -> str:
        recipe = self.recipe
        head = ["steps", "tokens", *_VALUES]
        rows, control = (
            [[str(step), f"{step * recipe['tokens']:,}", *_values(values)] for step, values in (curve or {}).items()]
            for curve in (self.curve, self.control_curve)
        )
        stops = recall_stops_after(self.curve)
        last = max(self.curve)
        gain = self.curve[min(self.curve)]["nats"] - min(one["nats"] for one in self.curve.values())
        verdict = (
            f"Recall still grows at the end, after {last} steps."
            if stops == last and last > 0
            else f"Recall stops to grow after {stops} steps ({stops * recipe['tokens']:,} tokens): until then it gains 95% of {gain:.3f} nats"
            " an answer."
        )
        return "\n".join(
            [
                "## Distillation\n",
                f"LoRA of rank {recipe['rank']} on {', '.join(recipe['targets'])}; {recipe['steps']} steps of {recipe['tokens']:,} tokens in"
                f" sequences of {', '.join(map(str, recipe['lengths']))}; {recipe['recall_share']:.0%} with a recall task; learning rate"
                f" {recipe['learning_rate']:g}. Held-out samples:\n",
                _table(head, rows),
                verdict + "\n",
                *(["The control, the same without far parts:\n", _table(head, control)] if control else []),
            ]
        )


_VALUES = ("nats a token", "nats an answer", "answers", "tokens of answers")


def _values(values: dict) -> list[str]:
    return [
        f"{values['loss']:.4f}" if "loss" in values else "",
        f"{values['nats']:.3f}" if "nats" in values else "",
        f"{values['exact']:.2f}" if "exact" in values else "",
        f"{values['tokens']:.2f}" if "tokens" in values else "",
    ]


def _window_text(window: dict) -> str:
    near = f"the last {window['size']} tokens" if window["kind"] == "sliding" else f"their block of {window['size']} tokens and the one before"
    return f"{near}, and the first {window['sinks']} tokens of the sequence"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def _sensitivity(found: Sensitivity) -> str:
    by_need = [
        [str(rank + 1), str(i), *_values(found.layers[i]), f"{found.layers[i]['nats'] - found.full['nats']:+.3f}"]
        for rank, i in enumerate(found.ranking)
    ]
    curve = [[str(count), *_values(values), f"{values['nats'] - found.full['nats']:+.3f}"] for count, values in found.curve.items()]
    head = [*_VALUES, "above all full"]
    return "\n".join(
        [
            "## Sensitivity\n",
            "One layer alone has the window, no training; those that recall needs most come first.\n",
            _table(["rank", "layer", *head], [["", "none", *_values(found.full), ""], *by_need]),
            "The first layers of this ranking stay full, the others have the window ([picture](sensitivity.svg)).\n",
            _table(["full layers", *head], curve),
        ]
    )


def _evaluation(rows: list[dict]) -> str:
    about = "Text and prompts that neither training nor the choice of layers saw."
    if any(row["model"] == SCALED for row in rows):
        about += " Beyond the teacher's length the divergence is that to the teacher with scaled RoPE."
    parts = ["## Evaluation\n", about + "\n"]
    lengths = sorted({row["tokens_of_sample"] for row in rows})
    for length in lengths:
        models = [model for model in MODELS if any(row["model"] == model for row in rows)]
        table = []
        for model in models:
            own = [row for row in rows if row["tokens_of_sample"] == length and row["model"] == model]
            cells = [model]
            for row in own:
                if row["what"] == "text":
                    cells += [f"{row['loss']:.4f}", f"{row['divergence']:.4f}" if "divergence" in row else ""]
                else:
                    cells.append(f"{row['nats']:.3f} / {row['exact']:.2f} / {row['tokens']:.2f}")
            table.append(cells)
        kinds = [row["what"] for row in rows if row["tokens_of_sample"] == length and row["model"] == MODELS[0]]
        heads = [head for kind in kinds for head in (["nats a token", "KL to the teacher"] if kind == "text" else [kind])]
        counts = {row["what"]: row["samples"] for row in rows if row["tokens_of_sample"] == length}
        samples = ", ".join(f"{count} of {what}" for what, count in counts.items())
        parts.append(f"{length} tokens; samples: {samples}. Recall: nats an answer / answers / tokens of answers.\n")
        parts.append(_table(["model", *heads], table))
    return "\n".join(parts)


def recall_stops_after(curve: dict[int, dict]) -> int | None:
    """The first measured step from which 95% of the whole gain in nats an answer is reached. None: no prompts."""
    values = {step: one["nats"] for step, one in curve.items() if "nats" in one}
    if not values:
        return None
    first, best = values[min(values)], min(values.values())
    return min(step for step, nats in values.items() if nats <= best + _STILL * (first - best))
