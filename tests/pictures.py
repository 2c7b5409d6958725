"""Joins frames into the animated pictures of docs/, and makes PNGs small. Usage: pictures.py FRAMES-FOLDER DOCS-FOLDER (needs Pillow)."""
import sys
from pathlib import Path

from PIL import Image

frames, docs = map(Path, sys.argv[1:])
for scheme in ("light", "dark"):
    pictures = [Image.open(file).convert("RGB").resize((960, 669), Image.Resampling.LANCZOS) for file in sorted((frames / scheme).glob("*.png"))]
    file = docs / f"page-{scheme}.webp"
    pictures[0].save(file, save_all=True, append_images=pictures[1:], duration=110, loop=0, quality=62, method=6, minimize_size=True)
    size = file.stat().st_size
    assert size < 1.5e6, f"{file} has {size} bytes"
    print(file, size)
for file in docs.glob("page-*.png"):
    Image.open(file).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(file, optimize=True)
    print(file, file.stat().st_size)
