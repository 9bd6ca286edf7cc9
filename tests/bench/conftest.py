"""A model folder that comparisons run on."""

from __future__ import annotations

import pytest
import torch
from models import CHAT_TEMPLATE, tiny_model
from transformers import GenerationConfig

from specframe.testing import byte_tokenizer


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A folder with a tiny model, a tokenizer and a chat template."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    tiny = tiny_model("llama", vocab_size=len(tokenizer), dtype=torch.float32, max_position_embeddings=2048)
    tiny.generation_config = GenerationConfig(eos_token_id=7)
    tiny.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
