"""Transformers' Trainer with a small BERT from its configuration: one line tunes it."""

import sys
import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from preflight.transformers import PreflightCallback

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
config = BertConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128, vocab_size=500)
words = torch.randint(0, 500, (1024, 32))
with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(
        BertForSequenceClassification(config),
        TrainingArguments(
            output_dir=folder,
            max_steps=steps,
            per_device_train_batch_size=16,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        ),
        train_dataset=[{"input_ids": row, "labels": int(row[0]) % 2} for row in words],
        callbacks=[PreflightCallback()],
    )
    trainer.train()
