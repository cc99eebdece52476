"""Hugging Face's Trainer with a tiny GPT-2 that is made here; further arguments are TrainingArguments."""

import sys

import torch
from common import STEPS, save
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments, set_seed


class Texts(Dataset):
    def __init__(self) -> None:
        self._tokens = torch.randint(256, (256, 32), generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self._tokens[index], "labels": self._tokens[index]}


(arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(
    [
        *("--output_dir", sys.argv[1], "--use_cpu", "--max_steps", str(STEPS), "--per_device_train_batch_size", "4"),
        *("--gradient_accumulation_steps", "2", "--report_to", "none", "--save_strategy", "no", *sys.argv[2:]),
    ]
)
set_seed(0)
config = GPT2Config(n_layer=2, n_head=4, n_embd=192, vocab_size=256, n_positions=32, bos_token_id=0, eos_token_id=0)
model = GPT2LMHeadModel(config)
trainer = Trainer(model=model, args=arguments, train_dataset=Texts())
trainer.train()
save(model)
