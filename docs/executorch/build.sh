#!/bin/sh
# Builds a program against the headers and libraries of ExecuTorch's wheel:
#   PYTHON=python3 sh build.sh generate.cpp generate
# The wheel's kernels use matrix products from torch's library, and its `llama` operators are in a
# library that needs Python's. On a device, link your own build of ExecuTorch instead.
set -eu
eval "$("${PYTHON:-python3}" -c '
import executorch, sysconfig, torch
from pathlib import Path
package = Path(list(executorch.__path__)[0])
print(f"package={package}")
print(f"torch={Path(torch.__file__).parent}/lib")
print("python=" + sysconfig.get_config_var("LIBDIR"))
print("version=" + sysconfig.get_config_var("VERSION"))
print("bindings=" + str(*(package / "extension/pybindings").glob("_C*.so")))
')"
include=$package/include
custom=$package/extension/llm/custom_ops
${CXX:-g++} -std=c++20 -O2 -w "$1" -o "$2" \
  -I"$include" -I"$include/executorch/runtime/core/portable_type/c10" \
  -DC10_USING_CUSTOM_GENERATED_MACROS -Wl,--no-as-needed -Wl,--allow-shlib-undefined \
  "$package/lib/libexecutorch.so" "$package/lib/libexecutorch_threadpool.so" \
  "$package/lib/libexecutorch_kernels_optimized.so" \
  "$package/lib/libexecutorch_backend_xnnpack.so" \
  "$custom/libcustom_ops_aot_lib.so" "$bindings" -L"$python" -lpython"$version" \
  -Wl,-rpath,"$package/lib" -Wl,-rpath,"$custom" -Wl,-rpath,"$package/extension/pybindings" \
  -Wl,-rpath,"$torch" -Wl,-rpath,"$python"
