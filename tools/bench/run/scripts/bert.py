"""A BERT of 4 layers, 128 wide, 64 tokens, batch 32, by Transformers' Trainer."""

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

config = BertConfig(hidden_size=128, num_hidden_layers=4, num_attention_heads=4, intermediate_size=512, vocab_size=1000)
words = torch.randint(0, 1000, (4096, 64))
data = [{"input_ids": row, "labels": int(row[0]) % 2} for row in words]
arguments = TrainingArguments(
    output_dir="build/bert", per_device_train_batch_size=32, max_steps=1_000_000, report_to=[], use_cpu=True,
    save_strategy="no", logging_strategy="no", disable_tqdm=True,
)  # fmt: skip
Trainer(BertForSequenceClassification(config), arguments, train_dataset=data).train()
