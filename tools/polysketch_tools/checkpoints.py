"""Reads checkpoints with the names of the authors' code into {path: array}: the msgpack files and Orbax folders of Flax
programs, and files of tensors of other programs."""

import ast
import json
import pathlib

import ml_dtypes  # registers bfloat16 with numpy
import msgpack
import numpy as np

from polysketch_tools import safetensors, torch_files
from polysketch_tools.checkpoint_steps import find_checkpoint, orbax_items
from polysketch_tools.errors import ToolError
from polysketch_tools.file_kinds import (
    MSGPACK,
    OLD_TORCH,
    SAFETENSORS,
    TORCH,
    describe,
    listed,
)

_EXPECTED = (
    "expected a msgpack file of flax.serialization, an Orbax folder, a folder of numbered steps, a safetensors file or a"
    " PyTorch file"
)

# Beside 'params' in a saved training state; not part of a model.
_TRAINING_ONLY = {"step", "opt_state"}


class Parameters:
    """A parameter tree by "/"-joined path. Shapes are known at once, values are read on demand."""

    def __init__(self, source: pathlib.Path, shapes: dict[str, tuple[int, ...]], read):
        self._source = source
        self._shapes = dict(shapes)
        self._read = read

    def check(self, expected: dict[str, tuple[int, ...]]) -> None:
        """Raises ToolError naming every missing, wrong and left-over tensor."""
        if not expected.keys() & self._shapes.keys():
            raise ToolError(
                f"{self._source}: expected the parameters of a PolySketchFormer, {listed(list(expected))};"
                f" found {listed(sorted(self._shapes)) or 'none'}"
            )
        problems = []
        for path, shape in expected.items():
            if path not in self._shapes:
                problems.append(f"missing tensor {path}: expected shape {list(shape)}")
            elif self._shapes[path] != shape:
                problems.append(
                    f"tensor {path}: expected shape {list(shape)}, found {list(self._shapes[path])}"
                )
        for path in self._shapes.keys() - expected.keys():
            problems.append(
                f"left-over tensor {path} of shape {list(self._shapes[path])}: expected none of this name"
            )
        if problems:
            raise ToolError(
                f"{self._source} does not fit the config:\n  " + "\n  ".join(sorted(problems))
            )

    def read(self, path: str) -> np.ndarray:
        array = np.asarray(self._read(path))
        if array.dtype not in (np.float32, np.float16, ml_dtypes.bfloat16, np.float64):
            raise ToolError(
                f"{self._source}: tensor {path}: expected a float type, found {array.dtype}"
            )
        return array


def open_checkpoint(path: pathlib.Path, step: int | None = None) -> Parameters:
    """Opens a file or an Orbax folder, or a step (None: the newest) of a folder of numbered steps."""
    if not path.exists():
        raise ToolError(f"{path}: no such file or folder")
    path = find_checkpoint(path, step)
    if path.is_dir():
        return _open_orbax(path)
    found = describe(path)
    opener = {
        MSGPACK: _open_msgpack,
        SAFETENSORS: _open_safetensors,
        TORCH: _open_torch,
        OLD_TORCH: _open_torch,
    }.get(found)
    if opener is None:
        raise ToolError(f"{path}: {_EXPECTED}; found {found}")
    return opener(path)


def _strip_params(source: pathlib.Path, paths: list[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """Returns full path -> path below the outermost (or doubled) 'params', without the parts that only training needs."""
    while any(path[0] == "params" and len(path) > 1 for path in paths):
        others = {path[0] for path in paths if path[0] != "params"}
        if unknown := others - _TRAINING_ONLY:
            raise ToolError(
                f"{source}: expected 'params' alone or with {sorted(_TRAINING_ONLY)}, found also {sorted(unknown)}"
            )
        inner = [path[1:] for path in paths if path[0] == "params"]
        if not any(path[0] == "params" for path in inner):
            return {("params", *path): "/".join(path) for path in inner}
        stripped = _strip_params(source, inner)
        return {("params", *path): name for path, name in stripped.items()}
    return {path: "/".join(path) for path in paths}


# --- flax.serialization: msgpack with extension types, large arrays in chunks ---

_EXT_NDARRAY, _EXT_NATIVE_COMPLEX, _EXT_NUMPY_SCALAR = 1, 2, 3


def _decode_array(data: bytes) -> np.ndarray:
    shape, name, buffer = msgpack.unpackb(data, raw=True)
    if not name.decode().isidentifier():
        raise ValueError("expected the name of a type")
    return np.frombuffer(buffer, np.dtype(name.decode())).reshape(shape)


def _decode_extension(code: int, data: bytes):
    try:
        if code in (_EXT_NDARRAY, _EXT_NUMPY_SCALAR):
            return _decode_array(data)
        if code == _EXT_NATIVE_COMPLEX:
            return complex(*msgpack.unpackb(data))
    except (ValueError, TypeError, AttributeError, msgpack.exceptions.UnpackException) as error:
        raise ToolError(f"damaged array: {str(error) or type(error).__name__}") from error
    raise ToolError(f"unknown extension type {code}")


def _join_chunks(tree):
    """Joins arrays beyond 2^30 bytes, stored as {'__msgpack_chunked_array__': True, 'shape': {...}, 'chunks': {...}}."""
    if not isinstance(tree, dict):
        return tree
    if "__msgpack_chunked_array__" in tree:

        def in_order(value):
            return [value[str(i)] for i in range(len(value))]

        return np.concatenate(in_order(tree["chunks"])).reshape(in_order(tree["shape"]))
    return {name: _join_chunks(value) for name, value in tree.items()}


def _flatten(tree: dict, prefix: tuple[str, ...] = ()):
    for name, value in tree.items():
        path = (*prefix, str(name))
        if not path[-1].isprintable():
            raise ToolError("expected names of parameters, found damage")
        if isinstance(value, dict):
            yield from _flatten(value, path)
        else:
            yield path, value


def _open_msgpack(path: pathlib.Path) -> Parameters:
    try:
        tree = _unpack(path.read_bytes())
        if not isinstance(tree, dict):
            raise ToolError(f"expected a tree of parameters, found {type(tree).__name__}")
        leaves = dict(_flatten(_join_chunks(tree)))
    except ToolError as error:
        raise ToolError(f"{path}: {error}") from error
    except (KeyError, ValueError, TypeError) as error:
        raise ToolError(f"{path}: damaged chunked array: {error}") from error
    names = _strip_params(path, list(leaves))
    arrays = {name: leaves[full] for full, name in names.items()}
    for name, array in arrays.items():
        if not isinstance(array, (np.ndarray, np.generic, int, float)):
            raise ToolError(
                f"{path}: tensor {name}: expected an array, found {type(array).__name__}"
            )
    return Parameters(
        path, {name: np.shape(array) for name, array in arrays.items()}, arrays.__getitem__
    )


_DAMAGE = (
    msgpack.exceptions.FormatError,
    msgpack.exceptions.StackError,
    TypeError,  # a list as a key
    UnicodeDecodeError,
)


def _unpack(data: bytes):
    """Decodes msgpack. No message repeats bytes of the file, as the exceptions of msgpack do."""
    try:
        return msgpack.unpackb(data, ext_hook=_decode_extension, raw=False, strict_map_key=False)
    except msgpack.exceptions.ExtraData as error:
        size = len(data) - len(error.extra)
        raise ToolError(
            f"expected the end of the file after {size} bytes, found {len(data)} bytes"
        ) from error
    except _DAMAGE as error:
        raise ToolError("expected a msgpack file of flax.serialization, found damage") from error
    except ValueError as error:
        raise ToolError(
            f"expected a whole msgpack file, found one that ends after {len(data)} bytes, within its content"
        ) from error


# --- Files of tensors by name: the path in the parameter tree, joined by "/" or by "." ---


def _by_path(path: pathlib.Path, tensors: dict[tuple[str, ...], object]) -> dict[str, object]:
    """Returns the tensors by "/"-joined path. A key of `tensors` holds a name, or names of nested dicts."""
    separator = "/" if any("/" in name for names in tensors for name in names) else "."
    found = {
        tuple(part for name in names for part in name.split(separator)): tensor
        for names, tensor in tensors.items()
    }
    return {name: found[full] for full, name in _strip_params(path, list(found)).items()}


def _open_safetensors(path: pathlib.Path) -> Parameters:
    header = safetensors.read_header(path)
    stored = _by_path(path, {(name,): name for name in header})
    return Parameters(
        path,
        {name: header[original].shape for name, original in stored.items()},
        lambda name: safetensors.read_tensor(path, stored[name], header[stored[name]]),
    )


def _open_torch(path: pathlib.Path) -> Parameters:
    tensors = _by_path(path, torch_files.load(path))
    return Parameters(
        path,
        {name: tuple(tensor.shape) for name, tensor in tensors.items()},
        lambda name: torch_files.values(tensors[name]),
    )


# --- Orbax: a folder of zarr arrays, in an OCDBT store or as plain subfolders, listed in _METADATA ---


def _parameter_folder(path: pathlib.Path) -> pathlib.Path:
    """Returns the folder of _METADATA. A checkpoint manager nests it one level down, in "default", "state", "params" ..."""
    if (path / "_METADATA").exists():
        return path
    items = orbax_items(path)
    items = [item for item in items if item.name == "params"] or items
    if not items:
        raise ToolError(f"{path}: {_EXPECTED}; found {describe(path)}")
    if len(items) > 1:
        raise ToolError(
            f"{path}: expected one item of parameters, found {listed([item.name for item in items])};"
            f" --checkpoint takes the folder of one, such as {items[0]}"
        )
    return items[0]


def _damaged(root: pathlib.Path, name: str, error: Exception) -> ToolError:
    # tensorstore appends the specification of the array as JSON.
    message = str(error).split(" [tensorstore_spec", 1)[0]
    return ToolError(f"{root}: tensor {name}: expected a whole Orbax checkpoint, found: {message}")


def _open_orbax(path: pathlib.Path) -> Parameters:
    import tensorstore  # imported here: 60 MB of libraries that msgpack files do not need

    root = _parameter_folder(path)
    try:
        metadata = json.loads((root / "_METADATA").read_text())
        entries = [
            (
                tuple(key["key"] for key in entry["key_metadata"])
                if "key_metadata" in entry
                else ast.literal_eval(name)
            )
            for name, entry in metadata["tree_metadata"].items()
        ]
        zarr3 = bool(metadata.get("use_zarr3", False))
        # Orbax then stores every chunk. Otherwise chunks of zeros are absent.
        all_stored = bool(metadata.get("store_array_data_equal_to_fill_value", False))
    except (ValueError, KeyError, TypeError, AttributeError, SyntaxError) as error:
        raise ToolError(f"{root}/_METADATA: not an Orbax parameter list: {error!r}") from error
    ocdbt = (root / "manifest.ocdbt").exists()

    def open_array(full: tuple[str, ...]):
        name = ".".join(full)
        base = f"file://{root.resolve()}"
        store = (
            {"driver": "ocdbt", "base": base, "path": name}
            if ocdbt
            else {"driver": "file", "path": f"{root.resolve()}/{name}"}
        )
        try:
            return tensorstore.open(
                {
                    "driver": "zarr3" if zarr3 else "zarr",
                    "kvstore": store,
                    "fill_missing_data_reads": not all_stored,
                },
                read=True,
                open=True,
            ).result()
        except (ValueError, OSError) as error:
            raise _damaged(root, "/".join(full), error) from error

    names = _strip_params(root, [tuple(map(str, entry)) for entry in entries])
    opened = {name: open_array(full) for full, name in names.items()}

    def read(name: str) -> np.ndarray:
        try:
            return opened[name].read().result()
        except (ValueError, OSError) as error:
            raise _damaged(root, name, error) from error

    return Parameters(root, {name: tuple(array.shape) for name, array in opened.items()}, read)
