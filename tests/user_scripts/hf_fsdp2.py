"""Hugging Face's Trainer with --fsdp, version 2, and a tiny GPT-2 that is made here."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate import PartialState
from accelerate.utils import DistributedType
from common import STEPS
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed


class Texts(Dataset):
    def __init__(self) -> None:
        self._tokens = torch.randint(256, (256, 32), generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self._tokens[index], "labels": self._tokens[index]}


arguments = TrainingArguments(
    output_dir=sys.argv[1],
    use_cpu=True,
    max_steps=STEPS,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    report_to="none",
    save_strategy="no",
    fsdp=True,
    fsdp_config={"version": 2, "transformer_layer_cls_to_wrap": ["GPT2Block"]},
)
PartialState().distributed_type = DistributedType.MULTI_GPU  # without GPUs accelerate would use DDP and not say so
set_seed(0)
config = GPT2Config(n_layer=2, n_head=4, n_embd=192, vocab_size=256, n_positions=32, bos_token_id=0, eos_token_id=0)
trainer = Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=Texts())
trainer.train()
whole = {name: values.full_tensor() for name, values in trainer.model.state_dict().items()}
torch.save(whole, Path(sys.argv[1]) / f"rank{dist.get_rank()}.pt")
