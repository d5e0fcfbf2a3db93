"""Writes the model of a GGUF file in float32, from which both sides of a comparison are quantised: bench/f32_gguf.py IN OUT.

The tensors and fields are those of IN, the weights what its formats stand for. general.file_type says float32.
"""

import pathlib
import sys

import gguf
import numpy as np


def write_float32(source: pathlib.Path, out: pathlib.Path) -> None:
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(out, architecture)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        value, kind = field.contents(), field.types[0]
        if field.name == "general.file_type":
            value = int(gguf.LlamaFileType.ALL_F32)
        element = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, value, kind, element)
    for tensor in reader.tensors:
        weights = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, weights.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    write_float32(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
