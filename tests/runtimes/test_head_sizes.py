"""Heads that are let through are those that ONNX Runtime's operator takes."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from kvcast.errors import KvcastError
from kvcast.runtimes.onnx.lowering import check_heads


def operator_takes(head_dim: int, *, rotary: bool) -> bool:
    """Whether GroupQueryAttention runs over two heads of this size."""
    past = (1, 2, 4, head_dim)
    arrays = {name: np.ones((1, 1, 2 * head_dim), np.float32) for name in "qkv"}
    arrays |= {name: np.ones(past, np.float32) for name in ("past_k", "past_v")}
    arrays |= {"held": np.array([2], np.int32), "total": np.array([3], np.int32)}
    if rotary:
        arrays |= {name: np.ones((8, head_dim // 2), np.float32) for name in ("cos", "sin")}
    node = helper.make_node(
        "GroupQueryAttention",
        list(arrays),
        ["y", "k_out", "v_out"],
        domain="com.microsoft",
        num_heads=2,
        kv_num_heads=2,
        do_rotary=int(rotary),
    )
    kinds = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.int32): TensorProto.INT32}
    inputs = [
        helper.make_tensor_value_info(name, kinds[array.dtype], array.shape)
        for name, array in arrays.items()
    ]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in node.output]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(
        helper.make_graph([node], "g", inputs, outputs), opset_imports=opsets, ir_version=10
    )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(
            onnx.ModelProto.SerializeToString(model), options, providers=["CPUExecutionProvider"]
        )
        session.run(None, arrays)
    except Exception:  # ONNX Runtime's own kinds have no common base
        return False
    return True


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("head_dim", [4, 8, 12, 16, 24, 32, 40, 48, 64, 72])
def test_the_check_says_what_the_operator_says(head_dim: int, rotary: bool):
    if operator_takes(head_dim, rotary=rotary):
        check_heads(head_dim, rotary=rotary)
    else:
        with pytest.raises(KvcastError, match=f"heads of {head_dim} numbers cannot run on ONNX"):
            check_heads(head_dim, rotary=rotary)
