"""What the stages share: the sizes, the networks' dimensions, the numbers of pictures."""

from __future__ import annotations

from anima_batch.convert.layouts import AdapterDims, QwenDims, TransformerDims, VaeDims

SIZES = ((128, 128), (192, 128), (128, 192))  # (width, height) in pixels, the default first
SIZE_NAMES = tuple(f"{width}x{height}" for width, height in SIZES)
PICTURES = (12000, 4000, 4000)  # drawn for training, of each size
HELD_OUT_PICTURES = 64  # of each size, for the PSNR
HELD_OUT_SEED = 10_000_000  # scenes for measuring are numbered from here on

CONTEXT_ROWS = 32
QWEN_ROWS, T5_ROWS = 512, 384
TRANSFORMER = TransformerDims(blocks=6, hidden=192, head_dim=32, context_dim=64, rank=32, mlp=768)
ADAPTER = AdapterDims(blocks=2, hidden=64, head_dim=32, inner=64, mlp=256, rows=T5_ROWS, states=64)
QWEN = QwenDims(layers=2, hidden=64, head_dim=32, heads=2, kv_heads=1, mlp=192, rows=QWEN_ROWS)
VAE = VaeDims(base=16)
