"""Write a GGUF model again with its weights as 16-bit floats (pure Python: the gguf package and numpy).

F16 here is a dequantized copy, not the original weights. It is used because quantized weights are compute-bound on a
CPU: checking several draft tokens at once then costs nearly as much as making them, and speculation has nothing to win.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize

SKIP = {"general.architecture", "general.quantization_version"}
MOSTLY_F16 = 1  # general.file_type


def convert(source: Path, target: Path) -> None:
    """Complete or not at all: written beside the target and renamed."""
    reader = GGUFReader(source)
    part = target.with_suffix(".part")
    writer = GGUFWriter(part, str(reader.fields["general.architecture"].contents()))
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in SKIP:
            continue
        value = MOSTLY_F16 if field.name == "general.file_type" else field.contents()
        kind = field.types[0]
        writer.add_key_value(field.name, value, kind, field.types[-1] if kind is GGUFValueType.ARRAY else None)
    for tensor in reader.tensors:
        if tensor.tensor_type == GGMLQuantizationType.F32:
            writer.add_tensor(tensor.name, np.array(tensor.data))
        else:
            writer.add_tensor(tensor.name, dequantize(tensor.data, tensor.tensor_type).astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(part, target)
