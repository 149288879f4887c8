import torch


@torch.compile(backend="eager", dynamic=False)
def decode_step(x, n):
    return x.sum() * n


for batch in range(1, 12):
    decode_step(torch.ones(batch, 4), 2)
