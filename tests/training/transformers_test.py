"""The wrapper for transformers: files, Trainer, adapters of PEFT, and the export that merges them."""

import pathlib
import tempfile
import unittest

import peft
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

import support

from polysketch_training.server_tensors import load_folder
from polysketch_training.transformers_model import PolysketchForCausalLM, export_pretrained


def largest(x) -> float:
    return x.abs().max().item()


class TransformersTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)

    def wrapped(self, kind: str = "learned_sketch_mixed", **changes) -> PolysketchForCausalLM:
        return PolysketchForCausalLM.from_model(support.small_model(kind, dtype=torch.float32, **changes))

    def test_saved_and_loaded(self):
        for kind, gate in support.MODELS:
            with self.subTest(kind=kind, gate=gate):
                model, folder = self.wrapped(kind, decay_gate=gate), self.dir / f"{kind}-{gate}"
                model.save_pretrained(folder)
                again = AutoModelForCausalLM.from_pretrained(folder)
                self.assertIsInstance(again, PolysketchForCausalLM)
                tokens = support.tokens_for(model.model, 2, 40)
                with torch.no_grad():
                    self.assertTrue(torch.equal(again(tokens).logits, model(tokens).logits))
                self.assertEqual(again.config.model_config(), model.model.config)

    def test_recorded_logits(self):
        """From a folder of the server: the logits are those of the module, whose recordings are tested elsewhere."""
        folder = support.GOLDENS / "learned_sketch_mixed"
        module, model = load_folder(folder), PolysketchForCausalLM.from_folder(folder)
        tokens = support.tokens_for(module, 2, 90)
        with torch.no_grad():
            self.assertTrue(torch.equal(model(tokens).logits, module(tokens).logits))

    def test_loss_is_that_of_the_module(self):
        model = self.wrapped()
        tokens = support.tokens_for(model.model, 2, 40)
        labels = tokens.clone()
        labels[:, 30:] = -100
        with torch.no_grad():
            loss = model(tokens, labels=labels).loss
            want = model.model(tokens[:, :-1], targets=labels[:, 1:]).loss
        # The mean of 58 losses of order 4, in another order.
        self.assertAlmostEqual(loss.item(), want.item(), delta=4 * 58 * 2**-24)

    def test_left_padding_is_refused(self):
        model = self.wrapped()
        tokens = support.tokens_for(model.model, 1, 8)
        model(tokens, attention_mask=torch.tensor([[1, 1, 1, 1, 1, 0, 0, 0]]))
        with self.assertRaisesRegex(ValueError, "padding at the end of rows"):
            model(tokens, attention_mask=torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1]]))

    def test_generate_is_greedy(self):
        model = self.wrapped().eval()
        tokens = support.tokens_for(model.model, 1, 20)
        want = tokens
        with torch.no_grad():
            for _ in range(4):
                want = torch.cat([want, model(want).logits[:, -1:].argmax(-1)], dim=1)
            got = model.generate(tokens, max_new_tokens=4, do_sample=False, eos_token_id=None, pad_token_id=0)
        self.assertEqual(got.tolist(), want.tolist())

    def fit(self, model) -> float:
        """Eight steps of Trainer on one text that repeats; returns the loss after them."""
        row = torch.arange(48) % 7
        data = [{"input_ids": row, "labels": row} for _ in range(16)]
        arguments = TrainingArguments(
            output_dir=str(self.dir / "trainer"),
            max_steps=8,
            per_device_train_batch_size=4,
            learning_rate=0.01,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        )
        Trainer(model=model, args=arguments, train_dataset=data).train()
        model.eval()
        with torch.no_grad():
            return model(input_ids=row[None], labels=row[None]).loss.item()

    def test_trainer(self):
        model = self.wrapped()
        row = torch.arange(48)[None] % 7
        before = model(row, labels=row).loss.item()
        self.assertLess(self.fit(model), before - 0.5)

    def test_adapters_are_trained_and_merged(self):
        model = self.wrapped()
        before = {name: tensor.clone() for name, tensor in model.model.state_dict().items()}
        tokens = support.tokens_for(model.model, 2, 40)
        config = peft.LoraConfig(r=4, target_modules=["qkv", "out", "up", "down"], task_type="CAUSAL_LM")
        adapted = peft.get_peft_model(model, config)
        self.fit(adapted)
        with torch.no_grad():
            want = adapted(input_ids=tokens).logits
        export_pretrained(adapted, self.dir / "merged")
        merged = load_folder(self.dir / "merged")
        with torch.no_grad():
            logits, base = merged(tokens).logits, load_base(before, merged)(tokens).logits
        # A product with the merged matrix instead of two products: sums of at most 128 terms in float32, and two layers
        # whose norms magnify by less than 50 each.
        self.assertLess(largest(logits - want), 2**-24 * 128 * 50 * largest(want))
        self.assertGreater(largest(logits - base), 0.01)
        # The adapted model has not been merged itself.
        with torch.no_grad():
            self.assertTrue(torch.equal(adapted(input_ids=tokens).logits, want))
        self.assertIn("lora", " ".join(name for name, _ in adapted.named_parameters()))


def load_base(state, like):
    from polysketch_training import PolysketchModel

    model = PolysketchModel(like.config)
    model.load_state_dict(state)
    return model


if __name__ == "__main__":
    unittest.main()
