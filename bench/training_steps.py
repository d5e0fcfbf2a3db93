"""Times of training of the torch module on one row of random tokens: forward (with the loss), forward and backward, a step."""

import dataclasses
import time

import torch

from polysketch_training import PolysketchModel


class TrainedRow:
    """A model and a row of `length` tokens, and what Adam needs. Each method returns the seconds that it took."""

    def __init__(self, config, length: int, device: str = "cpu"):
        torch.manual_seed(0)
        self._device = device
        with torch.device(device):  # draws the parameters there
            self._model = PolysketchModel(dataclasses.replace(config, context_length=length)).to(device)
        self._adam = torch.optim.Adam(self._model.parameters(), lr=1e-4)
        self._tokens = torch.randint(config.vocab_size, (1, length + 1)).to(device)

    def use_attention(self, backend: str) -> None:
        self._model.use_attention(backend)

    def compile_layers(self) -> None:
        self._model.compile_layers()

    def forward(self) -> float:
        with torch.no_grad():
            return self._timed(self._loss)

    def forward_backward(self) -> float:
        seconds = self._timed(lambda: self._loss().backward())
        self._adam.zero_grad()
        return seconds

    def step(self) -> float:
        def work():
            self._loss().backward()
            self._adam.step()
            self._adam.zero_grad()

        return self._timed(work)

    def _loss(self):
        with torch.autocast(self._device, torch.bfloat16, enabled=self._device != "cpu"):
            return self._model(self._tokens[:, :-1], targets=self._tokens[:, 1:]).loss

    def _timed(self, work) -> float:
        begin = time.perf_counter()
        work()
        if self._device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter() - begin
