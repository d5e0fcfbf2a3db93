"""polysketch-linearize: from a pretrained transformer to a folder that polysketch-server reads, and a report."""

import argparse
import dataclasses
import hashlib
import json
import pathlib
import sys

import torch
import transformers

from polysketch_tools import adapter, convert_gguf, errors
from polysketch_tools.adapter import stored_tensors
from polysketch_tools.errors import ToolError
from polysketch_training.allocator import keep_freed_memory
from polysketch_training.disk import write_text, writing
from polysketch_training.linearize import picture
from polysketch_training.linearize.adapter_files import save_lora, save_rest
from polysketch_training.linearize.decoder import Decoder, add_far_fields, check_full, json_text, load_tokenizer, read_config, windows_fields
from polysketch_training.linearize.distillation import Distillation, Plan, TeacherStates, add_lora, learning_curve
from polysketch_training.linearize.evaluation import CONTROL, LINEARIZED, Evaluation
from polysketch_training.linearize.far import state_bytes
from polysketch_training.linearize.folder import RunFolder, StudentFolder
from polysketch_training.linearize.forecast import Shape, check_room, forecast, measure_rate
from polysketch_training.linearize.measurements import Measurements
from polysketch_training.linearize.options import STAGES, Options, options_of, parser
from polysketch_training.linearize.report import Report
from polysketch_training.linearize.samples import Sample, make_samples
from polysketch_training.linearize.scaling import check_scaling, scaled_fields, served_length
from polysketch_training.linearize.sensitivity import Sensitivity, SensitivityStage
from polysketch_training.linearize.texts import Texts, describe, prefix_of, read_texts
from polysketch_training.linearize.transfer import Transfer, errors_of, helped, load_far

_INTERRUPTED = 130
_GGUF = b"GGUF"
# Seeds of the prompts: no prompt of evaluation is one that chose layers.
_SENSITIVITY_SEED, _EVALUATION_SEED = 1000, 2000
_TRANSFER_STREAM = 1  # of the sequences: others than those of the distillation


def command(argv: list[str]) -> None:
    args = parser().parse_args(argv)
    if args.threads:
        torch.set_num_threads(args.threads)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    keep_freed_memory()
    device = _device(args.device)
    folder = RunFolder(args.out)
    source, converted = _teacher(args.source, folder, args.dry_run)
    config = read_config(source)
    check_scaling(config)
    check_full(source, config, served_length(config | scaled_fields(config, args.rope_scaling)))
    options = options_of(args, config, device)
    needs = forecast(source, config, options, converted=converted, device=device)
    if args.dry_run:
        print(needs.table(measure_rate(config, device)))
        return
    with writing(folder.path):
        folder.path.mkdir(parents=True, exist_ok=True)
    check_room(needs, folder.path)
    if not Run(args, folder, source, config, options, device).run():
        sys.exit(_INTERRUPTED)


def _device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise ToolError("--device cuda: expected a GPU that torch can use, found none")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def _teacher(source: pathlib.Path, folder: RunFolder, dry_run: bool) -> tuple[pathlib.Path, bool]:
    """The folder of the teacher, and whether it is made of a GGUF file."""
    if not source.is_file():
        return source, False
    with open(source, "rb") as file:
        if file.read(len(_GGUF)) != _GGUF:
            raise ToolError(f"{source}: expected a Hugging Face folder or a GGUF file, found another file")
    if not folder.teacher.exists():
        if dry_run:
            raise ToolError(f"{source}: --dry-run: expected a Hugging Face folder, found a GGUF file: tools/convert --gguf makes one of it")
        convert_gguf.convert(source, folder.teacher)
    return folder.teacher, True


class Run:
    def __init__(
        self, args: argparse.Namespace, folder: RunFolder, source: pathlib.Path, config: dict, options: Options, device: torch.device
    ):
        self._args, self._folder, self._source, self._config, self._options = args, folder, source, config, options
        self._device, self._scaled = device, scaled_fields(config, options.scaling)
        self._tokenizer = load_tokenizer(source)
        self._prefix = prefix_of(self._tokenizer)
        held_out = max(options.samples.held_out, options.evaluation.held_out)
        self._texts: Texts = read_texts(args.text, self._tokenizer, held_out=held_out)
        shortest = 2 * max(options.recipe.lengths, default=0)
        if options.recipe.steps and len(self._texts.train) < shortest:
            raise ToolError(f"--text: expected at least {shortest} tokens for training, found {len(self._texts.train)}")
        self._samples = self._make(options.samples, self._texts.sensitivity, _SENSITIVITY_SEED)
        if options.layers is None and max(options.samples.lengths) <= options.window.most:
            raise ToolError(
                f"--sample-length: expected more than the {options.window.most} tokens that a window holds, or --layers with a list;"
                f" found {max(options.samples.lengths)}: no layer would lose a token"
            )
        self._of_evaluation = self._make(options.evaluation, self._texts.evaluation, _EVALUATION_SEED)

    def _make(self, wanted, text, seed: int) -> list[Sample]:
        return [
            sample
            for length in wanted.lengths
            for sample in make_samples(
                self._tokenizer, text, length, texts=wanted.texts, prompts=wanted.prompts, seed=seed, prefix=self._prefix
            )
        ]

    def run(self) -> bool:
        """Returns whether the last stage that was asked for is done."""
        last = STAGES.index(self._args.stop_after)
        decoder = self._load(self._source, self._options.window)
        found, full = self._choose(decoder)
        report = self._report(found, full)
        windows = self._windows(full)
        far = []
        if self._options.far and windows and last >= STAGES.index("transfer"):
            if not self._transfer(decoder, windows):
                return False
            report.transfer = errors_of(self._folder.transfer, self._samples)
            far = report.far_layers = helped(report.transfer)
        if last >= STAGES.index("teacher"):
            self._prepare(decoder, full)
        del decoder
        students = {LINEARIZED: self._folder.student} | ({CONTROL: self._folder.control} if far and self._options.control else {})
        if last >= STAGES.index("distillation"):
            for name, student in students.items():
                if not student.written and not self._distill(student, full, far if name == LINEARIZED else []):
                    return False
            if self._options.recipe.steps:
                report.recipe = dataclasses.asdict(self._options.recipe)
                curves = [learning_curve(each.distillation / "measurements.jsonl", self._samples) for each in students.values()]
                report.curve, report.control_curve = (curves + [None])[:2]
        if last >= STAGES.index("evaluation"):
            with self._folder.timed("evaluation"):
                evaluation = self._evaluation()
                for name, student in students.items():
                    evaluation.of_written(name, self._load(student.model, None))
            report.evaluation = evaluation.results()
        write_text(self._folder.report, json_text(report.to_dict()))
        write_text(self._folder.report_text, report.markdown())
        self._folder.say(f"{self._folder.report_text} is written")
        if last >= STAGES.index("distillation"):
            self._folder.say(f"polysketch-server --model {self._folder.student.model} serves the model")
        return True

    def _load(self, folder: pathlib.Path, window) -> Decoder:
        """window: None for a folder that was written, whose RoPE is its own."""
        decoder = Decoder(folder, self._device, window, self._scaled if window else None)
        decoder.limit_vocabulary(len(self._tokenizer))
        return decoder

    def _evaluation(self) -> Evaluation:
        return Evaluation(self._folder.evaluation, self._of_evaluation, self._config["max_position_embeddings"])

    def _common(self) -> dict:
        """Settings that every stage depends on."""
        weights = {name: [path.name, entry.dtype, list(entry.shape)] for name, (path, entry) in stored_tensors(self._source).items()}
        config = (self._source / "config.json").read_bytes() + json.dumps(weights, sort_keys=True).encode()
        return {
            "teacher": hashlib.sha256(config).hexdigest(),
            "text": describe(self._args.text),
            "window": dataclasses.asdict(self._options.window),
            "far": dataclasses.asdict(self._options.far) if self._options.far else "none",
            "rope_scaling": dataclasses.asdict(self._options.scaling) if self._options.scaling else None,
            "samples": dataclasses.asdict(self._options.samples),
            "evaluation": dataclasses.asdict(self._options.evaluation),
        }

    def _choose(self, decoder: Decoder) -> tuple[Sensitivity | None, list[int]]:
        """The layers that stay full."""
        options, folder = self._options, self._folder
        if options.layers is not None:
            return None, list(options.layers)
        folder.claim(folder.sensitivity, self._common())
        with folder.timed("sensitivity"):
            measurements = Measurements(folder.sensitivity / "measurements.jsonl")
            found = SensitivityStage(decoder, self._samples, measurements).run()
            measurements.close()
        full = found.full_layers(found.fewest(options.max_recall_loss))
        write_text(folder.sensitivity / "sensitivity.json", json_text(dataclasses.asdict(found)))
        picture.write(folder.picture, found, full)
        folder.say(f"full layers: {', '.join(map(str, full)) or 'none'}, of {decoder.count}")
        return found, full

    def _windows(self, full: list[int]) -> list[int]:
        return [i for i in range(self._config["num_hidden_layers"]) if i not in full]

    def _transfer(self, decoder: Decoder, windows: list[int]) -> bool:
        """Trains the far parts of the layers, unless they are there. Returns whether they are."""
        folder, recipe = self._folder, self._options.recipe
        sequences = {name: getattr(recipe, name) for name in ("tokens", "lengths", "recall_share", "seed", "precision")}
        folder.claim(folder.transfer, self._common() | {"windows": windows, "sequences": sequences})
        if (folder.transfer / "far.safetensors").exists():
            return True
        with folder.timed("transfer"):
            steps = dataclasses.replace(recipe, steps=self._options.far.steps)
            plan = Plan(folder.transfer, steps, _TRANSFER_STREAM)
            plan.make(self._tokenizer, self._texts, self._prefix)
            decoder.add_far(self._options.far.shape, windows)
            transfer = Transfer(decoder, plan, self._options.far, steps, folder.transfer)
            finished = transfer.run(save_every=self._args.save_every, minutes=self._args.minutes)
            if finished:
                transfer.finish(self._samples)
        if not finished:
            folder.say(f"stopped after step {transfer.done} of {steps.steps} of attention transfer; the same command continues")
        return finished

    def _prepare(self, decoder: Decoder, full: list[int]) -> None:
        """What needs the teacher's own weights: its part of the evaluation, the sequences of the distillation and its states of them."""
        folder, recipe = self._folder, self._options.recipe
        folder.claim(folder.evaluation, self._common() | {"full": full})
        folder.claim(folder.student.distillation, self._common() | {"full": full, "recipe": dataclasses.asdict(recipe)})
        with folder.timed("teacher"):
            self._evaluation().of_teacher(decoder, self._windows(full), scaled=bool(self._scaled))
            if recipe.steps:
                plan, states = self._plan()
                plan.make(self._tokenizer, self._texts, self._prefix)
                states.make(decoder, plan, recipe)

    def _plan(self) -> tuple[Plan, TeacherStates]:
        folder = self._folder.student.distillation
        return Plan(folder, self._options.recipe), TeacherStates(folder / "states.bin", self._config["hidden_size"])

    def _distill(self, student: StudentFolder, full: list[int], far: list[int]) -> bool:
        """Trains, merges and writes a model. far: the layers with far parts. Returns whether it is there."""
        folder, recipe, windows = self._folder, self._options.recipe, self._windows(full)
        decoder = self._load(self._source, self._options.window)
        if far:
            load_far(decoder, self._options.far, far, folder.transfer)
        decoder.set_windows(windows)
        decoder.set_scaled(bool(self._scaled))
        what = "distillation" if student is folder.student else "distillation of the control"
        if recipe.steps:
            with writing(student.distillation):
                student.distillation.mkdir(parents=True, exist_ok=True)
            with folder.timed(what):
                adapted = add_lora(decoder, recipe)
                distillation = Distillation(
                    decoder, adapted, *self._plan(), recipe, student.distillation, self._samples, self._options.measure_every
                )
                finished = distillation.run(save_every=self._args.save_every, minutes=self._args.minutes)
            if not finished:
                folder.say(f"{what}: stopped after step {distillation.done} of {recipe.steps}; the same command continues")
                return False
            save_lora(adapted, student.adapter, self._source.resolve().name)
        fields = windows_fields(self._options.window, full, self._config["num_hidden_layers"]) | self._scaled
        if far:
            add_far_fields(fields, self._options.far.shape, far)
        save_rest(decoder, student.adapter, fields, self._about(full, far))
        adapter.merge(self._source, student.adapter, student.model, overwrite=True)
        return True

    def _about(self, full: list[int], far: list[int]) -> str:
        recipe, name = self._options.recipe, self._args.source.resolve().name
        training = f"{recipe.total:,} tokens of distillation from it" if recipe.steps else "no training"
        return (
            f"# {name}, linearized\n\npolysketch-linearize of PolySketch Server made this folder of {name}: layers"
            f" {', '.join(map(str, full)) or 'none'} attend to all earlier tokens, the others to a window and the first tokens"
            f"{', those of ' + ', '.join(map(str, far)) + ' with a far part for the tokens between' if far else ''}; {training}.\n"
            "Licence, tokenizer, chat template and generation_config.json are those of the original; README.teacher.md is its README.md.\n"
            "config.json has a type of layers that transformers does not know: polysketch-server serves the folder.\n"
        )

    def _report(self, found: Sensitivity | None, full: list[int]) -> Report:
        shape = Shape.of(self._config)
        return Report(
            teacher=self._args.source.resolve().name,
            layers=shape.layers,
            full=full,
            window=dataclasses.asdict(self._options.window),
            kv_bytes_of_token=2 * 4 * shape.kv_heads * shape.head,
            sensitivity=found,
            far=dataclasses.asdict(self._options.far) if self._options.far and len(full) < shape.layers else None,
            far_bytes=state_bytes(self._options.far.shape, shape.kv_heads, shape.head) if self._options.far else 0,
            scaling=dataclasses.asdict(self._options.scaling) if self._options.scaling else None,
        )


def main() -> None:
    errors.run(command)


if __name__ == "__main__":
    main()
