"""The traffic of calls on AOTInductor, from the C++ sources of a package.

`run_impl` calls in sequence operators of PyTorch, kernels over packed matrices, and fused loops,
with sizes that are arithmetic over the arguments'. A cache is in place where fused loops write it,
and copied where an operator such as `clone`, `copy_` or `cat` takes it, or where loops that read it
fill a buffer as large. Checksums prove that the sources are the compiled ones.
"""

import ast
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

from typing_extensions import override

from kvcast.bundle.manifest import Graph, Manifest
from kvcast.errors import KvcastError
from kvcast.families.programs import ENCODED
from kvcast.runtimes.aoti.target import read_sources
from kvcast.runtimes.opening import naming
from kvcast.runtimes.traffic import (
    FIXED_SIZE,
    CacheTensor,
    CallSizes,
    ProgramTraffic,
    Tally,
    TrafficReader,
    caches_of,
    probed_shapes,
    shapes_of,
)

_WEIGHTS = "weights.safetensors"
_PREFIX = "results.program."  # of constants' names
_SLOTS = "slots_"
_FORMS = ("decode", "prefill")
_FEW_TOKENS = 16  # that the first of these forms takes where there are both
_LOOK_UP = "look_up"
_TABLE = 16
"""Fused loops look rows up in a matrix of more rows than this, and read all of smaller ones."""
_BITS = {"F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I8": 8, "U8": 8, "BOOL": 8}
_ITEMS = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}

_BODY = re.compile(r"void AOTInductorModel::run_impl\((.*?)\} // AOTInductorModel::run_impl", re.S)
_CONSTANT = re.compile(
    r"constants_info_\[(\d+)\]\.(name|data_size|shape|original_fqn) = \"?([^\";]*)\"?;"
)
_INPUT = re.compile(r"inputs_info_\[(\d+)\]\.name = \"(\w+)\"")
_SYMBOL = re.compile(r"int64_t (\w+) = (\w+)_size\[(\d+)\];")
_ARRAY = re.compile(r"int64_t (int_array_\d+)\[\] = \{([^}]*)\};")
_BUFFER = re.compile(r"_empty_strided\w*\(\d+, (int_array_\d+),.*&(\w+)_handle\)")
_MOVED = re.compile(r"auto (\w+) = std::move\((\w+)\);")
_VIEW = re.compile(r"auto (\w+) = .*reinterpret_tensor_wrapper\((\w+), \d+, (int_array_\d+),")
_CALL = re.compile(r"\b(cpp_fused_\w+|kvcast_\w+|aoti_torch_\w+)\(")
_POINTER = re.compile(r"\((const )?[\w:]+\*\)\((\w+)\.data_ptr\(\)\)")
_SEEN = re.compile(r"reinterpret_tensor_wrapper\((\w+), \d+, (int_array_\d+),|\b([A-Za-z_]\w*)\b")
_REDUCED = re.compile(r"_(?:int8|int4|packed)\.")  # in names of parts of a quantized matrix
_BOOKKEEPING = re.compile(
    r"aoti_torch_(empty_strided|new_|get_|delete_|assign_|dtype_|device_|layout_)"
)
_COPIES = re.compile(r"aoti_torch_(?:cpu_)?(copy_?|clone|cat|repeat|expand|_to_copy|contiguous)")
_WRITES = re.compile(r"aoti_torch_(?:cpu_)?(index_put|scatter|as_strided_scatter)")


class AotiTraffic(TrafficReader):
    @override
    def bundle(
        self, folder: Path, manifest: Manifest, sizes: CallSizes
    ) -> Sequence[ProgramTraffic]:
        family, dimensions = manifest.model()
        package = folder / manifest.graph("decode").file
        files = _stored(package.with_name(_WEIGHTS))
        caches = caches_of(manifest.cache, sizes)
        given = {name: cache.shape for name, cache in caches.items()}
        probed, tensors = probed_shapes(family, dimensions), family.tensor_shapes(dimensions)
        signatures = family.programs(dimensions)
        programs = []
        for name in _used_programs(manifest, sizes):
            graph = manifest.graphs[name]
            signature = signatures["decode" if name in _FORMS else name]
            shapes = {**_slots(graph, sizes, caches), **shapes_of(signature, sizes, probed)}
            filled = caches.keys() & set(graph.outputs)
            tally = Tally(name, tensors, caches, filled, by_number=True)
            counter = _Counter(tally, graph, {**given, **shapes}, caches, files, sizes)
            programs.append(counter.counted(package, read_sources(package, name)))
        return programs


@dataclass(frozen=True)
class _Stored:
    size: int
    rows: int


def _stored(path: Path) -> dict[str, _Stored]:
    from safetensors import safe_open

    stored = {}
    with naming(path), safe_open(path, framework="numpy") as file:
        for name in file.keys():  # noqa: SIM118
            part = file.get_slice(name)
            shape, bits = part.get_shape(), _BITS[part.get_dtype()]
            rows = shape[0] if shape else 1
            stored[name.removeprefix(_PREFIX)] = _Stored(prod(shape) * bits // 8, rows)
    return stored


def _used_programs(manifest: Manifest, sizes: CallSizes) -> Iterator[str]:
    """Yield the programs that calls of these sizes use, with one form of `decode`."""
    many = "prefill" in manifest.graphs and sizes.rows * sizes.new > _FEW_TOKENS
    other = _FORMS[0] if many else _FORMS[1]
    return (name for name in manifest.graphs if name != other)


def _slots(
    graph: Graph, sizes: CallSizes, caches: Mapping[str, CacheTensor]
) -> dict[str, tuple[int, ...]]:
    held = sizes.length + sizes.new
    most = {cache.kind: cache.shape[2] for cache in caches.values()}
    return {
        name: (min(held, most[name.removeprefix(_SLOTS)]),)
        for name in graph.inputs
        if name.startswith(_SLOTS)
    }


@dataclass
class _Constant:
    name: str = ""
    size: int = 0
    rows: int = 1
    width: int = 1


@dataclass
class _Counter:
    tally: Tally
    graph: Graph
    shapes: Mapping[str, tuple[int, ...]]
    caches: Mapping[str, CacheTensor]
    files: Mapping[str, _Stored]
    sizes: CallSizes
    _constants: dict[str, _Constant] = field(default_factory=dict)
    _held: dict[str, str] = field(default_factory=dict)  # caches by their variables
    _arrays: dict[str, tuple[int, ...]] = field(default_factory=dict)
    _symbols: dict[str, int] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)  # of buffers
    _written: set[str] = field(default_factory=set)  # caches that loops have written
    _uses: Counter[str] = field(default_factory=Counter)  # calls that have a variable

    def counted(self, package: Path, code: str) -> ProgramTraffic:
        """Count all calls; raises KvcastError for C++ that is not Inductor's."""
        body = _BODY.search(code)
        if body is None:
            raise KvcastError(f"{package}: the C++ has no run_impl; export it again")
        self._read_constants(code)
        variables = {int(i): variable for i, variable in _INPUT.findall(code)}
        if len(variables) != len(self.graph.inputs):
            raise KvcastError(f"{package}: the C++ has other arguments; export it again")
        shapes = {variables[i]: self.shapes[name] for i, name in enumerate(self.graph.inputs)}
        self._held = {
            variables[i]: name for i, name in enumerate(self.graph.inputs) if name in self.caches
        }
        lines = body[1].splitlines()
        calls = (line for line in lines if (call := _CALL.search(line)) and _is_work(call[1]))
        self._uses = Counter(word for line in calls for word in set(re.findall(r"\w+", line)))
        for line in lines:
            self._read(line, shapes)
        for name in self.caches.keys() & set(self.graph.outputs):
            size = self._bytes(name)
            self.tally.cache(name, "result", size, written=size)
        return self.tally.traffic()

    def _read_constants(self, code: str) -> None:
        described: dict[str, dict[str, str]] = {}
        for number, what, value in _CONSTANT.findall(code):
            described.setdefault(number, {})[what] = value
        for about in described.values():
            name = about.get("original_fqn", about["name"]).removeprefix(_PREFIX)
            shape = [int(part) for part in about.get("shape", "").strip("{} ").split(",") if part]
            constant = _Constant(
                name=_REDUCED.sub(".weight.", name),
                size=int(about.get("data_size", 0)),
                rows=shape[0] if shape else 1,
                width=len(shape),
            )
            self._constants[about["name"]] = self._measured(name, constant)

    def _measured(self, name: str, constant: _Constant) -> _Constant:
        """Return a constant's size in the file, where a packed matrix is several tensors."""
        packed, found, _ = name.rpartition("_packed.")
        parts = [part for key, part in self.files.items() if key.startswith(f"{packed}_packed.")]
        if name in self.files:
            return replace(constant, size=self.files[name].size)
        if found and parts:
            return replace(constant, size=sum(p.size for p in parts), rows=parts[0].rows)
        return constant

    def _read(self, line: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
        if match := _SYMBOL.search(line):
            self._symbols[match[1]] = shapes[match[2]][int(match[3])]
        elif match := _ARRAY.search(line):
            self._arrays[match[1]] = _evaluated(match[2], self._symbols)
        elif match := _BUFFER.search(line):
            self._counts[match[2]] = prod(self._arrays[match[1]])
        elif (match := _VIEW.search(line)) or (match := _MOVED.search(line)):
            if match[2] in self._held:
                self._held[match[1]] = self._held[match[2]]
            if match[2] in self._counts:
                self._counts[match[1]] = self._counts[match[2]]
        elif (match := _CALL.search(line)) and _is_work(match[1]):
            self._count(match[1], line)

    def _count(self, function: str, line: str) -> None:
        fused = function.startswith("cpp_fused")
        name = "fused loops" if fused else re.sub(r"^aoti_torch_(cpu_|cuda_)?_*", "", function)
        words = dict.fromkeys(re.findall(r"\w+", line))
        constants = [self._constants[word] for word in words if word in self._constants]
        self.tally.operator(name, [constant.name for constant in constants])
        for constant in constants:
            size = constant.size
            is_table = fused and constant.width == 2 and constant.rows > _TABLE
            if is_table or _LOOK_UP in function:
                size = size // constant.rows * self.sizes.rows * self.sizes.new
            self.tally.weight(constant.name, min(size, constant.size))
        if fused:
            self._count_loops(name, line)
        else:
            self._count_operator(function, name, line)

    def _count_loops(self, by: str, line: str) -> None:
        pointers = [(not constant, word) for constant, word in _POINTER.findall(line)]
        largest = max((self._counts.get(word, 0) for writes, word in pointers if writes), default=0)
        for writes, word in pointers:
            if (cache := self._held.get(word)) is None:
                continue
            size, seen = self._bytes(cache), self._read_bytes(cache)
            line_bytes = size // self.caches[cache].shape[2]
            if self.caches[cache].kind == "state":
                given = {"read": seen, "written": size} if writes else {"read": seen}
            elif writes:
                new = min(self.caches[cache].shape[2], self.sizes.new)
                # What nothing else reads is read by the loops that write it. Divided loops each
                # write a part of an entry.
                once = cache not in self._written
                self._written.add(cache)
                read = seen * (self._uses[word] == 1)
                given = {"read": read, "written": line_bytes * new * once}
            elif self._is_copied(cache, largest, seen):
                given = {"copied": seen}
            else:
                given = {"read": seen}
            self.tally.cache(cache, by, size, **given)

    def _is_copied(self, cache: str, count: int, seen: int) -> bool:
        """Return whether loops that read a cache fill a buffer of the same element count."""
        about = self.caches[cache]
        return about.kind not in FIXED_SIZE and count * _ITEMS[about.dtype] >= seen > 0

    def _count_operator(self, function: str, by: str, line: str) -> None:
        done: set[str] = set()
        for viewed, array, word in _SEEN.findall(line):
            cache = self._held.get(viewed or word)
            if cache is None or cache in done:
                continue
            done.add(cache)
            size = self._bytes(cache)
            item = _ITEMS[self.caches[cache].dtype]
            part = prod(self._arrays[array]) * item if array else size
            slots = self.caches[cache].shape[2]
            new = size // slots * min(slots, self.sizes.new)
            if _WRITES.match(function):
                self.tally.cache(cache, by, size, written=new)
            elif _COPIES.match(function):
                self.tally.cache(cache, by, size, copied=part)
            else:
                own = self.caches[cache].kind not in ENCODED
                self.tally.cache(cache, by, size, read=max(0, part - own * new))

    def _bytes(self, cache: str) -> int:
        return prod(self.caches[cache].shape) * _ITEMS[self.caches[cache].dtype]

    def _read_bytes(self, cache: str) -> int:
        """Return the bytes of the entries from before the call that loops read."""
        about, size = self.caches[cache], self._bytes(cache)
        if about.kind in ENCODED or about.kind == "state":
            return size
        return size // about.shape[2] * min(about.shape[2], self.sizes.seen(about.window))


def _is_work(function: str) -> bool:
    return not _BOOKKEEPING.match(function)


_ARITHMETIC: Mapping[type[ast.AST], Callable[[Any, Any], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: Mapping[str, Callable[..., int]] = {
    "div_floor_integer": operator.floordiv,
    "max": max,
    "min": min,
    "int64": lambda number: number,
}


def _evaluated(code: str, symbols: Mapping[str, int]) -> tuple[int, ...]:
    """Return the values of expressions of C++ over sizes; KvcastError for others."""
    code = code.strip(" ,")
    text = re.sub(r"static_cast<\w+>", "int64", code).replace("c10::", "").replace("std::", "")
    text = re.sub(r"<\w+>(?=\()", "", re.sub(r"(\d+)L+", r"\1", text))
    try:
        tree = ast.parse(f"({text},)", mode="eval").body
        return tuple(_value(part, symbols) for part in tree.elts)  # type: ignore[attr-defined]
    except (SyntaxError, KeyError, TypeError, ZeroDivisionError, RecursionError):
        raise KvcastError(f"a size in the C++ is no arithmetic over sizes: {code!r}") from None


def _value(node: ast.AST, symbols: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name):
            return symbols[name]
        case ast.UnaryOp(op=ast.USub(), operand=part):
            return -_value(part, symbols)
        case ast.BinOp(left=left, op=sign, right=right):
            return _ARITHMETIC[type(sign)](_value(left, symbols), _value(right, symbols))
        case ast.Call(func=ast.Name(id=name), args=given):
            return _FUNCTIONS[name](*(_value(part, symbols) for part in given))
    raise TypeError(ast.dump(node))
