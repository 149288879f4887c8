"""A small transformer block on the CPU under torch.profiler: the baseline, and a variant that reads each head's
scale with .item() in a Python loop (a host-side slow-down of many small ops and scalar reads).

    python torch_case.py baseline|candidate OUT.json.gz
"""

import sys

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule


class Block(nn.Module):
    def __init__(self, width: int, heads: int, slow: bool) -> None:
        super().__init__()
        self.heads, self.slow = heads, slow
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        if self.slow:
            scales = k.abs().amax(dim=(0, 2, 3))
            k = torch.stack([k[:, h] / max(scales[h].item(), 1e-6) for h in range(self.heads)], dim=1)
        else:
            k = k / k.abs().amax(dim=(0, 2, 3), keepdim=True).clamp_min(1e-6)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, d))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


def main() -> None:
    variant, path = sys.argv[1:]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(*(Block(128, 16, variant == "candidate") for _ in range(4))).eval()
    x = torch.randn(2, 48, 128)
    plan = schedule(wait=1, warmup=2, active=6)
    with torch.inference_mode(), profile(
        activities=[ProfilerActivity.CPU], schedule=plan, record_shapes=True, on_trace_ready=lambda p: p.export_chrome_trace(path)
    ) as prof:
        for _ in range(9):
            with record_function("decode_step"):
                x = model(x).clamp(-4, 4)
            prof.step()


main()
