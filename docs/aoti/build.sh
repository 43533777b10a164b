#!/bin/sh
# Builds a program against the headers and libraries of PyTorch's wheel:
#   PYTHON=python3 sh build.sh rewrite.cpp rewrite
# On another machine, take libtorch of the same version.
set -eu
torch=$("${PYTHON:-python3}" -c 'import torch, pathlib; print(pathlib.Path(torch.__file__).parent)')
${CXX:-g++} -std=c++20 -O1 -w "$1" -o "$2" \
  -I"$torch/include" -I"$torch/include/torch/csrc/api/include" \
  -L"$torch/lib" -Wl,--no-as-needed -ltorch -ltorch_cpu -lc10 -Wl,-rpath,"$torch/lib"
