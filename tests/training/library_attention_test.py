"""Attention by the CUDA library, with autograd, against the definition in float64: on a GPU or over the emulated kernels.

POLYSKETCH_ATTENTION_LIBRARY names the library; the emulated one (a target of tests/simt) takes tensors of the host.
"""

import copy
import os
import pathlib
import unittest

import torch

import support
from train_support import TrainTest

from polysketch_training import cuda_library as library
from polysketch_training import cuda_sketch
from polysketch_training.cuda_attention import chunk_attention, polysketch_attention
from polysketch_training.layers import LearnedSketch


def library_or_skip(test):
    if "POLYSKETCH_ATTENTION_LIBRARY" not in os.environ:
        folder = pathlib.Path(os.environ.get("POLYSKETCH_BIN_DIR", support.ROOT / "build/cpu/bin"))
        emulated = folder / "libpolysketch-attention-emulated.so"
        if not emulated.exists():
            test.skipTest("no POLYSKETCH_ATTENTION_LIBRARY, and no emulated library is built")
        os.environ["POLYSKETCH_ATTENTION_LIBRARY"] = str(emulated)
    loaded = library.default_library()
    if not loaded.emulated and not torch.cuda.is_available():
        test.skipTest("no GPU")
    return "cpu" if loaded.emulated else "cuda"


def definition(v, near_q, near_k, far_q, far_k, log_decay, block, power, far_power):
    """All pairs in float64."""
    tokens = v.shape[2]
    s = torch.arange(tokens, device=v.device)
    t = s[:, None]
    far = (far_q @ far_k.mT) ** far_power
    near = far if near_q is None else (near_q @ near_k.mT) ** power
    weights = torch.where(t // block == s // block, near, far) * (s <= t)
    if log_decay is not None:
        passed = log_decay.cumsum(-1)
        weights = weights * (passed[..., None] - passed[..., None, :]).clamp(max=0).exp()
    return weights @ v / (1 + weights.sum(-1, keepdim=True))


class TorchAttentionTest(unittest.TestCase):
    def setUp(self):
        self.device = library_or_skip(self)
        torch.manual_seed(1)

    def leaf(self, *shape):
        # bf16 values, so that what is compared is the kernels and not the rounding of their inputs.
        x = torch.randn(*shape, dtype=torch.float32) * shape[-1] ** -0.25
        return x.bfloat16().to(self.device, torch.float32).requires_grad_()

    def expect_close(self, got, want, what):
        # A gradient has ten factors at power 4, each rounded once (2^-8 at most).
        error = ((got.double() - want.double()).norm() / want.double().norm()).item()
        self.assertLess(error, 10 * 2**-8, what)

    def check(self, width, near_width, sketch, block, power, far_power=2, gated=False):
        batch, heads, tokens = 1, 2, 45
        v = self.leaf(batch, heads, tokens, width)
        near = [None, None]
        if near_width:
            near = [self.leaf(batch, heads, tokens, near_width) for _ in range(2)]
        far = [self.leaf(batch, heads, tokens, sketch) for _ in range(2)]
        if far_power == 1:  # feature maps are positive
            far = [x.detach().abs().requires_grad_() for x in far]
        log_decay = None
        if gated:
            log_decay = (-torch.rand(batch, heads, tokens) / 5).to(self.device).requires_grad_()
        g = torch.randn(batch, heads, tokens, width).bfloat16().to(self.device, torch.float32)
        leaves = [x for x in (*near, *far, log_decay, v) if x is not None]
        out = polysketch_attention(
            v,
            near_q=near[0],
            near_k=near[1],
            far_q=far[0],
            far_k=far[1],
            log_decay=log_decay,
            block=block,
            near_power=power,
            far_power=far_power,
        )
        self.assertEqual(out.dtype, v.dtype)
        got = torch.autograd.grad((out * g).sum(), leaves)
        doubles = [
            None if x is None else x.detach().double().requires_grad_() for x in (v, *near, *far, log_decay)
        ]
        want_out = definition(*doubles, block, power, far_power)
        double_leaves = [x for x in (*doubles[1:], doubles[0]) if x is not None]
        want = torch.autograd.grad((want_out * g).sum(), double_leaves)
        self.expect_close(out, want_out, "out")
        for i, (ours, theirs) in enumerate(zip(got, want)):
            self.expect_close(ours, theirs, f"gradient {i}")

    def test_mixed(self):
        self.check(width=64, near_width=64, sketch=16, block=16, power=4)

    def test_sketched_with_odd_widths(self):
        self.check(width=20, near_width=0, sketch=11, block=16, power=2)

    def test_linear(self):
        self.check(width=64, near_width=0, sketch=64, block=16, power=1, far_power=1)
        self.check(width=20, near_width=0, sketch=20, block=16, power=1, far_power=1)
        self.check(width=32, near_width=0, sketch=32, block=16, power=1, far_power=1, gated=True)

    def test_a_decay_gate(self):
        self.check(width=64, near_width=64, sketch=16, block=16, power=4, gated=True)
        self.check(width=20, near_width=0, sketch=11, block=16, power=2, gated=True)

    def test_mistakes_are_named(self):
        v = self.leaf(1, 1, 16, 32)
        with self.assertRaisesRegex(ValueError, "near_q and near_k"):
            polysketch_attention(v, near_q=v)
        with self.assertRaisesRegex(ValueError, "expected"):
            polysketch_attention(v, near_q=v, near_k=self.leaf(1, 1, 8, 32))
        with self.assertRaisesRegex(ValueError, r"log_decay: expected \(1, 1, 16\) on .*, found \(1, 1, 8\)"):
            polysketch_attention(v, far_q=v, far_k=v, log_decay=torch.zeros(1, 1, 8, device=self.device))


class TorchSketchTest(unittest.TestCase):
    """cuda_sketch.learned_sketch beside the torch module in float64."""

    def setUp(self):
        self.device = library_or_skip(self)
        torch.manual_seed(3)

    def network(self, width, size):
        network = LearnedSketch(width, size).to(self.device)
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.add_(0.2 * torch.randn_like(parameter) * (parameter.abs().max() if parameter.dim() > 1 else 1))
        return network

    def run_sketch(self, sketch, network, x, g):
        leaf = x.clone().requires_grad_()
        out = sketch(leaf, network)
        return [out, *torch.autograd.grad((out * g).sum(), [leaf, *network.parameters()])]

    def test_output_and_gradients(self):
        for width, size, shape in ((32, 16, (2, 1, 3, 7)), (64, 32, (2, 1, 2, 40)), (32, 32, (129,)), (64, 16, (1,))):
            with self.subTest(width=width, size=size, shape=shape):
                network = self.network(width, size)
                x = torch.randn(*shape, width).bfloat16().to(self.device, torch.float32)
                g = torch.randn(*shape, size).bfloat16().to(self.device, torch.float32)
                self.assertTrue(cuda_sketch.supports(network))
                got = self.run_sketch(cuda_sketch.learned_sketch, network, x, g)
                want = self.run_sketch(lambda x, net: net(x), copy.deepcopy(network).double(), x.double(), g.double())
                names = ["out", "x", *(name for name, _ in network.named_parameters())]
                for name, ours, theirs in zip(names, got, want, strict=True):
                    self.assertEqual(ours.dtype, torch.float32)
                    error = ((ours.double() - theirs).norm() / theirs.norm()).item()
                    # From x to a gradient of the first level 12 roundings follow one another, each by 2^-8 at most: of
                    # the operands of 6 products, of what is kept of 3 results, and of 3 gradients between.
                    self.assertLess(error, 12 * 2**-8, name)
                again = self.run_sketch(cuda_sketch.learned_sketch, network, x, g)
                self.assertTrue(all(map(torch.equal, got, again)))
                with torch.no_grad():
                    self.assertTrue(torch.equal(cuda_sketch.learned_sketch(x, network), got[0]))

    def test_what_has_no_kernel_is_left_to_torch(self):
        self.assertFalse(cuda_sketch.supports(LearnedSketch(32, 8)))
        self.assertFalse(cuda_sketch.supports(LearnedSketch(128, 16)))
        network = LearnedSketch(32, 16)
        self.assertTrue(cuda_sketch.supports(network))

        class Adapted(torch.nn.Linear):
            """As PEFT replaces a matrix."""

        network.branch2["level1"].down = Adapted(128, 16, bias=False)
        self.assertFalse(cuda_sketch.supports(network))

    def test_mistakes_are_named(self):
        network = LearnedSketch(64, 32).to(self.device)
        with self.assertRaisesRegex(ValueError, "parameters on cpu, found meta" if self.device == "cpu" else "parameters on"):
            cuda_sketch.learned_sketch(torch.zeros(3, 64, device=self.device), copy.deepcopy(network).to("meta"))
        with self.assertRaisesRegex(ValueError, "expected rows of 64, found 32"):
            cuda_sketch.learned_sketch(torch.zeros(3, 32, device=self.device), network)
        with self.assertRaisesRegex(library.AttentionError, "expected 1 to 2147483647 rows, found 0"):
            cuda_sketch.learned_sketch(torch.zeros(0, 64, device=self.device), network)


MODELS = tuple(
    (kind, gated)
    for kind in (
        "learned_sketch_mixed",
        "learned_sketch",
        "random_sketch_mixed",
        "symmetric_power",
        "affine_square",
        "linear",
        "performer",
    )
    for gated in (False, True)
)


class LibraryInTheModelTest(unittest.TestCase):
    """The whole model with the library's attention, beside plain PyTorch."""

    def setUp(self):
        self.device = library_or_skip(self)

    def model(self, kind, **changes):
        # Heads of 32, as the library has them; weights of order one.
        sizes = {"emb_dim": 64, "num_heads": 2, "num_layers": 1} | changes
        return support.small_model(kind, dtype=torch.float32, **sizes).to(self.device)

    def log_decays(self, model):
        """Returns the list of the log decays of later calls.

        Their gradients are what the library computes. Those of the gate's outputs have a factor more, sigmoid(-output), which is
        small where a gate keeps most: what it leaves is a small part of the gradient with its errors. Those of the gate's parameters
        sum over all tokens, whose gradients have both signs.
        """
        found = []
        for layer in model.layers:
            made = layer.attn._log_decay

            def record(x, made=made):
                found.append(made(x))
                return found[-1]

            layer.attn._log_decay = record
        return found

    def gradients(self, model, logits, log_decays):
        parameters = [x for name, x in model.named_parameters() if ".gate." not in name]
        return torch.autograd.grad(logits.square().mean(), [*parameters, *log_decays])

    def test_logits_and_gradients(self):
        wide = [("affine_square", gated, {"emb_dim": 128}) for gated in (False, True)]  # heads of 64 and a constant
        # Sketches of 12 columns, as small_model has them, are left to torch.
        fused = [(kind, False, {"sketch_size": 16}) for kind in ("learned_sketch", "learned_sketch_mixed")]
        for kind, gated, changes in [*((*names, {}) for names in MODELS), *wide, *fused, ("polynomial", False, {})]:
            with self.subTest(kind, gated=gated, **changes):
                model = self.model(kind, decay_gate=gated, **changes)
                tokens = support.tokens_for(model, 1, 40).to(self.device)
                results = {}
                log_decays = self.log_decays(model)
                for backend in ("torch", "library"):
                    model.use_attention(backend)
                    log_decays.clear()
                    logits = model(tokens).logits
                    results[backend] = [logits, *self.gradients(model, logits, log_decays)]
                model_error = 0.0
                for want, got in zip(results["torch"], results["library"]):
                    model_error = max(model_error, ((got - want).norm() / want.norm()).item())
                # bf16 operands (2^-8): up to ten factors of a gradient, as above, and the projections after them; 12 in the
                # library's sketches.
                roundings = 2 * 10 + (12 if model.config.is_learned and cuda_sketch.supports(model.layers[0].attn.sketch) else 0)
                self.assertLess(model_error, roundings * 2**-8)
                self.assertGreater(model_error, 2**-12, "the library was not called")

    def run_in_chunks(self, model, tokens, backends, log_decays):
        """Chunks of 48, 16 and 32 tokens (blocks of 16), each by its backend, the gradient cut at their starts. Returns logits,
        the last state's sums, and the gradients of all chunks together."""
        state, logits = None, []
        log_decays.clear()
        for chunk, backend in zip(tokens.split([48, 16, 32], dim=1), backends, strict=True):
            model.use_attention(backend)
            out = model(chunk, state=state, want_state=True)
            state = out.state.detach()
            logits.append(out.logits)
        logits = torch.cat(logits, dim=1)
        gradients = self.gradients(model, logits, log_decays)
        return [logits, state.layers[0].sums, state.layers[0].normalizer, *gradients]

    def test_chunks_with_carried_state(self):
        for kind, gated in MODELS:
            with self.subTest(kind, gated=gated):
                # The sketches of small_model have 12 columns: the library pads them, and its states have other places.
                model = self.model(kind, decay_gate=gated)
                tokens = support.tokens_for(model, 2, 96).to(self.device)
                log_decays = self.log_decays(model)
                want = self.run_in_chunks(model, tokens, ["torch"] * 3, log_decays)
                for backends in (["library"] * 3, ["torch", "library", "torch"], ["library", "torch", "library"]):
                    got = self.run_in_chunks(model, tokens, backends, log_decays)
                    error = max(((x - y).norm() / y.norm()).item() for x, y in zip(got, want, strict=True))
                    self.assertLess(error, 2 * 10 * 2**-8, backends)  # as above
                    self.assertGreater(error, 2**-12, "the library was not called")

    def test_any_chunks_have_the_state_of_the_whole(self):
        """To the bit: the function alone, as rows that a projection makes may differ between numbers of rows."""
        torch.manual_seed(2)
        shape = (2, 2, 96)
        v, far_q, far_k, near_q, near_k = (
            torch.randn(*shape, width, device=self.device).bfloat16() * width**-0.25 for width in (32, 12, 12, 32, 32)
        )

        def run(begin, end, sums):
            rows = {"far_q": far_q, "far_k": far_k, "near_q": near_q, "near_k": near_k}
            rows = {name: x[:, :, begin:end] for name, x in rows.items()}
            return chunk_attention(v[:, :, begin:end], **rows, sums=sums, want_sums=True, block=16)

        whole, want = run(0, 96, None)
        sums, outs = None, []
        for begin, end in ((0, 16), (16, 80), (80, 96)):
            out, sums = run(begin, end, sums)
            outs.append(out)
        self.assertTrue(torch.equal(torch.cat(outs, dim=2), whole))
        for got, wanted in zip(sums, want):
            self.assertTrue(torch.equal(got, wanted))
        alone, _ = run(80, 96, None)
        self.assertFalse(torch.equal(alone, whole[:, :, 80:]))

    def test_what_it_lacks_is_refused(self):
        model = self.model("learned_sketch_mixed")
        model.use_attention("library")
        tokens = support.tokens_for(model, 1, 24).to(self.device)
        with self.assertRaisesRegex(ValueError, r"multiple of the block \(16\) of tokens before a state, found 24"):
            model(tokens, want_state=True)
        with self.assertRaisesRegex(ValueError, "a chunk that starts with a block, found 3 tokens before it"):
            model(tokens, positions=torch.tensor([19], device=self.device))
        polynomial = self.model("polynomial")
        polynomial.use_attention("library")
        with self.assertRaisesRegex(ValueError, "expected one of random_sketch, .*; found polynomial"):
            polynomial(tokens, want_state=True)
        square = self.model("polynomial_square")
        square.use_attention("library")
        with self.assertRaisesRegex(ValueError, "expected one of polynomial, .*; found polynomial_square"):
            square(tokens)
        softmax = self.model("softmax")
        softmax.use_attention("library")
        with self.assertRaisesRegex(ValueError, "expected one of polynomial, .*; found softmax"):
            softmax(tokens)
        wide = self.model("performer", num_features=65)
        wide.use_attention("library")
        with self.assertRaisesRegex(Exception, "expected sketch_dim 0 or a multiple of 32 up to 64, found 96"):
            wide(tokens)
        with self.assertRaisesRegex(ValueError, "expected torch or library, found gpu"):
            model.use_attention("gpu")


class LibraryInTheTrainerTest(TrainTest):
    def test_streamed_rows(self):
        if library_or_skip(self) != "cpu":
            self.skipTest("polysketch-train takes bf16 on a GPU")
        for gate in ((), ("--decay-gate",)):
            for backend in ("torch", "library"):
                name = "-".join((backend, *gate))
                self.train(name, "--sequences=streamed", "--steps=4", "--max-offset=0", f"--attention={backend}", *gate)
            names = ("-".join((backend, *gate)) for backend in ("torch", "library"))
            for (want, _), (got, _) in zip(*map(self.losses, names), strict=True):
                self.assertNotEqual(got, want)
                self.assertAlmostEqual(float(got) / float(want), 1, delta=2**-8)


if __name__ == "__main__":
    unittest.main()
