"""Classify images with an exported ONNX file, without torch or this package: pip install onnxruntime numpy pillow.

python serve_onnx.py model.onnx photo.jpg ...
"""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
about = {name: json.loads(text) for name, text in session.get_modelmeta().custom_metadata_map.items()}
size, names = about["preprocessing"]["size"], about["class_names"]
shorter = about["preprocessing"]["resize"] or size

for path in sys.argv[2:]:
    image = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
    scale = shorter / min(image.size)
    image = image.resize([max(shorter, int(side * scale)) for side in image.size], Image.Resampling.BILINEAR)
    left, top = (round((side - size) / 2) for side in image.size)
    pixels = np.asarray(image.crop((left, top, left + size, top + size)))
    (probabilities,) = session.run(None, {"images": pixels.transpose(2, 0, 1)[None]})[0]
    best = probabilities.argmax()
    print(f"{path}\t{names[best]}\t{probabilities[best]:.6f}")
