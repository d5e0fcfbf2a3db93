"""linformer and hyperattention in the trainer: they train and resume, and no model folder is made of them."""

import json
import unittest
from unittest import mock

import torch

import support
from train_support import CONFIG, TrainTest

from polysketch_tools.errors import ToolError
from polysketch_tools.make_random import make_random
from polysketch_tools.model_config import UNSERVED_KINDS, read_model_config
from polysketch_training import PolysketchModel, export_command, hyper_attention, hyper_rectangle
from polysketch_training.export import export_model, load_run
from polysketch_training.server_tensors import load_folder

# What config.json of CONFIG's shape has besides, by kind.
FIELDS = {"linformer": {"grain_size": 16, "projected_rows": 4}, "hyperattention": {}}


class UnservedKindsTest(TrainTest):
    def setUp(self):
        super().setUp()
        # Rows of 64 tokens: two exact parts of 32 and a rectangle.
        for module, sizes in ((hyper_attention, {"EXACT_TOKENS": 32}), (hyper_rectangle, {"BLOCK": 8, "SAMPLES": 4})):
            patch = mock.patch.multiple(module, **sizes)
            patch.start()
            self.addCleanup(patch.stop)

    def config_of(self, kind: str, **changes):
        shape = {name: CONFIG[name] for name in ("vocab_size", "emb_dim", "num_heads", "num_layers", "context_length")}
        path = self.dir / f"{kind}.json"
        path.write_text(json.dumps(shape | {"attention": kind} | FIELDS[kind] | changes))
        return path

    def options_of(self, kind: str, *more) -> tuple:
        return f"--config={self.config_of(kind)}", "--sequences=packed", *more

    def test_they_train_and_resume(self):
        for kind in UNSERVED_KINDS:
            with self.subTest(kind):
                options = self.options_of(kind, "--steps=30", "--save-every=10")
                said = self.train(f"{kind}-whole", *options)
                self.assertIn(f"{kind} is not served: no model folder is written", said)
                self.assertFalse((self.dir / f"{kind}-whole/model").exists())
                losses = self.losses(f"{kind}-whole")
                first, last = ([float(loss) for loss, _ in part] for part in (losses[:5], losses[-5:]))
                self.assertLess(sum(last), sum(first) - 1)
                self.train(f"{kind}-cut", *options, "--minutes=1e-9")
                self.assertEqual(len(self.losses(f"{kind}-cut")), 1)
                self.train(f"{kind}-cut", *options)
                self.assertEqual(self.losses(f"{kind}-cut"), losses)

    def test_exports_refuse_them(self):
        for kind in UNSERVED_KINDS:
            self.train(kind, *self.options_of(kind))
            model, _, _ = load_run(self.dir / kind)
            self.assertEqual(model.config.attention, kind)
            for form in ("server", "flax"):
                out = self.dir / f"{kind}-{form}"
                with self.subTest(kind=kind, form=form):
                    words = f"{kind}: not served, so it has no model folder; expected one of softmax, polynomial,"
                    with self.assertRaisesRegex(ToolError, words):
                        export_command.command([str(self.dir / kind), "--format", form, "--out", str(out)])
                    with self.assertRaisesRegex(ToolError, words):
                        export_model(model, out, tokenizer=None, form=form)
                    self.assertFalse(out.exists())

    def test_folders_of_them_are_neither_made_nor_read(self):
        for kind in UNSERVED_KINDS:
            config = read_model_config(self.config_of(kind))
            with self.assertRaisesRegex(ToolError, f"{kind}: not served"):
                make_random(config, self.dir / f"{kind}-random")
            self.assertFalse((self.dir / f"{kind}-random").exists())
            folder = self.dir / f"{kind}-folder"
            folder.mkdir()
            (folder / "config.json").write_text(config.to_json())
            (folder / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
            with self.assertRaisesRegex(ToolError, f"{kind}: not served"):
                load_folder(folder)

    def test_settings_that_they_lack(self):
        for kind in UNSERVED_KINDS:
            config = f"--config={self.config_of(kind)}"
            for options, words in (
                (["--sequences=streamed"], f"expected a recurrent kind, found {kind}"),
                (["--sequences=packed", "--decay-gate"], f"expected a recurrent kind, found {kind}"),
            ):
                with self.subTest(kind=kind, words=words), self.assertRaisesRegex(ToolError, words):
                    self.train("run", config, *options)
            model = PolysketchModel(support.small_config(kind))
            with self.assertRaisesRegex(ValueError, f"{kind}: expected whole sequences, found a chunk with a state"):
                model(support.tokens_for(model, 1, 8), want_state=True)
            model.use_attention("library")
            with self.assertRaisesRegex(ValueError, f"expected one of polynomial, .*; found {kind}"):
                model(support.tokens_for(model, 1, 8))
        for changes, words in (
            ({"projected_rows": 17}, r'"projected_rows": expected an integer in \[1, 16\], found 17'),
            ({"projected_rows": None}, '"projected_rows": expected an integer'),
            ({"grain_size": 0}, '"grain_size": expected an integer'),
        ):
            with self.subTest(words), self.assertRaisesRegex(ToolError, words):
                read_model_config(self.config_of("linformer", **changes))

    def test_no_output_depends_on_a_later_token(self):
        for kind in UNSERVED_KINDS:
            model = support.small_model(kind)
            tokens, changed = support.rows_that_part(model, 80, 40)
            logits = []
            with torch.no_grad():
                for row in (tokens, changed):
                    torch.manual_seed(23)
                    logits.append(model(row).logits)
            difference = (logits[0] - logits[1]).abs().amax(dim=(0, 2))
            # As in carried_state_test.py; hyperattention computes a query in another row of a product.
            self.assertLess(difference[:40].max(), 2**-53 * 150 * 50 * 50 * logits[0].abs().max(), kind)
            self.assertGreater(difference[40:].max(), 1e-3, kind)


if __name__ == "__main__":
    unittest.main()
