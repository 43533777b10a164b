"""ONNX Runtime: how programs are lowered to graphs, and how graphs run."""
