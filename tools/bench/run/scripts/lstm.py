"""An LSTM, 256 wide, 80 steps, batch 64."""

import torch
from torch import nn

embed, lstm, head = nn.Embedding(1000, 128), nn.LSTM(128, 256, batch_first=True), nn.Linear(256, 1000)
optimizer = torch.optim.Adam([*embed.parameters(), *lstm.parameters(), *head.parameters()])
words = torch.randint(0, 1000, (64, 81))
while True:
    optimizer.zero_grad()
    found = head(lstm(embed(words[:, :-1]))[0])
    nn.functional.cross_entropy(found.flatten(0, 1), words[:, 1:].flatten()).backward()
    optimizer.step()
