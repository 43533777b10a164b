#!/bin/bash
# moonshine-voice 0.0.49 (read by onnxruntime 1.31.1's own classes): the decoder's file has its embedding twice.
#
# One would expect: Moonshine's head is its embedding, and a file that is made for small devices has it once.
# What happens: decoder_model_merged.ort has it as the table that Gather reads and, transposed, as the matrix of the
# last product. Both were quantized on their own, and since a tensor has one scale, in the same codes with the same
# scale and zero point: 9.4 of 30.4 MB repeat others. Names do not tell: one is embed_tokens, the other onnx::MatMul.
# Why it matters: a third of the file is read and held for nothing. A reader that compares values gets the tied model
# back, whose one matrix serves the lookup and the product of every step; one that goes by names holds two.
set -eu
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q onnxruntime==1.31.1 flatbuffers==25.12.19
"$folder/venv/bin/pip" download -q --no-deps --only-binary=:all: -d "$folder" moonshine-voice==0.0.49
"$folder/venv/bin/python" - "$folder"/*.whl <<'PYTHON'
import sys
import zipfile

import numpy as np
import onnxruntime
from onnxruntime.tools.ort_format_model.ort_flatbuffers_py.fbs.InferenceSession import InferenceSession

content = zipfile.ZipFile(sys.argv[1]).read("moonshine_voice/assets/tiny-en/decoder_model_merged.ort")
graph = InferenceSession.GetRootAs(content, 0).Model().Graph()
tensors = [graph.Initializers(i) for i in range(graph.InitializersLength())]
found = {t.Name().decode(): t for t in tensors}


def array(name):
    tensor = found[name]
    values = tensor.RawDataAsNumpy()
    values = values.view(np.float32) if name.endswith("_scale") else values
    return values.reshape([tensor.Dims(i) for i in range(tensor.DimsLength())])


large = [name.removesuffix("_quantized") for name, t in found.items() if t.RawDataLength() > 1 << 22]
print("onnxruntime", onnxruntime.__version__, "file of", len(content), "bytes")
for name in large:
    codes, scale, zero = (array(f"{name}_{part}") for part in ("quantized", "scale", "zero_point"))
    print(name, codes.shape, codes.nbytes, "bytes, scale", scale, "zero point", zero)
table, head = (array(f"{name}_quantized") for name in sorted(large))
same = np.array_equal(table, head.T) and all(
    array(f"{large[0]}_{part}") == array(f"{large[1]}_{part}") for part in ("scale", "zero_point")
)
print("the head is the table, transposed:", same)
assert len(large) == 2 and same, "it behaves otherwise now"
PYTHON
# Seen:
# onnxruntime 1.31.1 file of 30412256 bytes
# model.decoder.embed_tokens.weight_merged_0 (32768, 288) 9437184 bytes, scale 0.011519101 zero point 129
# onnx::MatMul_3691_merged_0 (288, 32768) 9437184 bytes, scale 0.011519101 zero point 129
# the head is the table, transposed: True
