"""The model as a PreTrainedModel of transformers: from_pretrained, save_pretrained, Trainer and PEFT work with it.

    model = PolysketchForCausalLM.from_folder(pathlib.Path("models/demo"))      # of a model folder of the server
    model = PolysketchForCausalLM.from_pretrained("OUT")                        # of save_pretrained
    export_pretrained(model, pathlib.Path("models/mine"), tokenizer=...)        # for the server; adapters are merged

Needs the extra `transformers` of this package.
"""

import copy
import dataclasses
import pathlib

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from polysketch_tools.model_config import ModelConfig
from polysketch_training.export import export_model
from polysketch_training.model import PolysketchModel
from polysketch_training.server_tensors import load_folder

_FIELDS = [field.name for field in dataclasses.fields(ModelConfig)]


class PolysketchConfig(PretrainedConfig):
    """The fields of the server's config.json."""

    model_type = "polysketchformer"
    # The names that programs for any model ask for.
    attribute_map = {
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "num_heads",
        "hidden_size": "emb_dim",
        "max_position_embeddings": "context_length",
    }

    def __init__(self, sketch_seed: int | None = None, **fields):
        for name in _FIELDS:
            setattr(self, name, fields.pop(name, None))
        self.sketch_seed = sketch_seed
        fields.setdefault("tie_word_embeddings", False)  # the module reads its embedding twice: there is nothing to tie
        super().__init__(**fields)

    @classmethod
    def from_model(cls, model: PolysketchModel) -> "PolysketchConfig":
        return cls(**dataclasses.asdict(model.config))

    def model_config(self) -> ModelConfig:
        """Returns the config of the server. A field without a value has the default of ModelConfig."""
        return ModelConfig(**{name: getattr(self, name) for name in _FIELDS if getattr(self, name) is not None})


class PolysketchForCausalLM(PreTrainedModel, GenerationMixin):
    """PolysketchModel with the arguments and results of a causal language model of transformers.

    generate() computes every token from the whole text: it is for a look at a model; polysketch-server carries the state.
    """

    config_class = PolysketchConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = False

    def __init__(self, config: PolysketchConfig):
        super().__init__(config)
        self.model = PolysketchModel(config.model_config())
        self.post_init()
        self.generation_config.use_cache = False  # transformers' caches hold keys and values

    @classmethod
    def from_model(cls, model: PolysketchModel) -> "PolysketchForCausalLM":
        """Wraps a copy of a module."""
        wrapped = cls(PolysketchConfig.from_model(model))
        wrapped.model.load_state_dict(model.state_dict())
        return wrapped

    @classmethod
    def from_folder(cls, folder: pathlib.Path) -> "PolysketchForCausalLM":
        """Reads a model folder of the server."""
        return cls.from_model(load_folder(folder))

    def _init_weights(self, module) -> None:
        """PolysketchModel has drawn them."""

    def get_input_embeddings(self):
        return self.model.embedding

    def forward(self, input_ids, attention_mask=None, labels=None, **arguments) -> CausalLMOutput:
        """labels [B, n]: input_ids, -100 where there is no target. Padding must be at the end of rows."""
        if attention_mask is not None and bool((attention_mask.diff(dim=-1) > 0).any()):
            raise ValueError("attention_mask: expected padding at the end of rows (padding_side right), found it before tokens")
        logits = self.model(input_ids).logits
        loss = None
        if labels is not None:
            counts = {name: value for name, value in arguments.items() if name == "num_items_in_batch"}
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **counts)
        return CausalLMOutput(loss=loss, logits=logits)


AutoConfig.register(PolysketchConfig.model_type, PolysketchConfig)
AutoModelForCausalLM.register(PolysketchConfig, PolysketchForCausalLM)


def export_pretrained(model: torch.nn.Module, out: pathlib.Path, *, tokenizer: pathlib.Path | None = None, **options) -> None:
    """Writes a model folder as export.export_model does (its other arguments are `options`). Adapters of PEFT are merged into
    a copy of the weights; `model` stays as it is."""
    if hasattr(model, "merge_and_unload"):
        model = copy.deepcopy(model).merge_and_unload()
    export_model(model.model, out, tokenizer=tokenizer, sketch_seed=model.config.sketch_seed, **options)
