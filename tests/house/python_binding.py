"""What lib/torch says of the C API (prototypes, constants, structs) is what the headers say. Needs no torch."""
import ctypes
import importlib.util
import re
import sys

import tree

PROTOTYPE = re.compile(r"TUTTI_API\s+([\w\s*]+?)(tutti\w+)\(([^)]*)\);")
ENUMERATOR = re.compile(r"^\s*tutti(\w+) = (\d+)", re.M)
SCALARS = {
    "int": ctypes.c_int, "size_t": ctypes.c_size_t, "tuttiDataType_t": ctypes.c_int, "tuttiRedOp_t": ctypes.c_int,
    "tuttiResult_t": ctypes.c_int, "tuttiScalarResidence_t": ctypes.c_int, "tuttiComm_t": ctypes.c_void_p,
    "tuttiStream_t": ctypes.c_void_p, "unsigned int": ctypes.c_uint, "uint64_t": ctypes.c_uint64,
}
# Names of enumerators in the package, and struct fields that it fills in.
CONSTANTS = {
    "SUCCESS": "Success", "INVALID_ARGUMENT": "InvalidArgument", "INVALID_USAGE": "InvalidUsage",
    "REMOTE_ERROR": "RemoteError", "IN_PROGRESS": "InProgress", "TIMEOUT": "Timeout", "INT8": "Int8", "UINT8": "Uint8",
    "INT32": "Int32", "UINT32": "Uint32", "INT64": "Int64", "UINT64": "Uint64", "FLOAT16": "Float16",
    "FLOAT32": "Float32", "FLOAT64": "Float64", "BFLOAT16": "Bfloat16", "FLOAT8E4M3": "Float8e4m3",
    "FLOAT8E5M2": "Float8e5m2", "SUM": "Sum", "PROD": "Prod", "MAX": "Max", "MIN": "Min", "AVG": "Avg",
    "SCALAR_HOST_IMMEDIATE": "ScalarHostImmediate",
}


def load():
    path = tree.ROOT / "lib/torch/tutti_torch/library.py"
    spec = importlib.util.spec_from_file_location("tutti_library", path)
    module = importlib.util.module_from_spec(spec)
    sys.dont_write_bytecode = True
    spec.loader.exec_module(module)
    return module


def ctype(parameter, library):
    """The ctypes type of a declared parameter."""
    text = re.sub(r"\bconst\b", "", parameter).strip()
    text = re.sub(r"(\W)\w+$", r"\1", text).strip()
    if text == "tuttiUniqueId":
        return library.UniqueId
    if text == "tuttiStreamCallback_t":
        return library.STREAM_CALLBACK
    if not text.endswith("*"):
        return SCALARS[text]
    inner = text[:-1].strip()
    named = {"tuttiUniqueId": library.UniqueId, "tuttiConfig_t": library.Config}
    if inner == "void":
        return ctypes.c_void_p
    if inner in ("tuttiComm_t", "tuttiStream_t", "void*", "void *"):
        return ctypes.POINTER(ctypes.c_void_p)
    if inner == "char":
        return ctypes.c_char_p
    return ctypes.POINTER(named.get(inner) or SCALARS[inner])


def compare(library, header, types):
    found = []
    declared = {name: parameters for _, name, parameters in PROTOTYPE.findall(header)}
    for name, mine in library.PROTOTYPES.items():
        if name not in declared:
            found.append(f"{name} is not in tutti.h")
            continue
        parameters = [p.strip() for p in " ".join(declared[name].split()).split(",")]
        theirs = [] if parameters == ["void"] else [ctype(p, library) for p in parameters]
        if mine != theirs:
            found.append(f"{name}: library.py says {mine}, tutti.h {theirs}")
    values = dict(ENUMERATOR.findall(types))
    for mine, theirs in CONSTANTS.items():
        if getattr(library, mine) != int(values[theirs]):
            found.append(f"{mine} is {getattr(library, mine)} in library.py, tutti{theirs} is {values[theirs]}")
    body = re.search(r"typedef struct \{([^}]*)\} tuttiConfig_t;", types).group(1)
    fields = re.findall(r"^\s*([\w ]+?[ *]+)(\w+);", body, re.M)
    kinds = {"size_t": ctypes.c_size_t, "unsigned int": ctypes.c_uint, "int": ctypes.c_int}
    theirs = [(name, kinds.get(kind.strip(), ctypes.c_char_p)) for kind, name in fields]
    if list(library.Config._fields_) != theirs:
        found.append(f"tuttiConfig_t has {theirs}, library.py {library.Config._fields_}")
    magic = int(re.search(r"TUTTI_CONFIG_MAGIC (0x[0-9a-f]+)u", types).group(1), 16)
    if library.CONFIG_MAGIC != magic:
        found.append("CONFIG_MAGIC differs")
    return found


def main():
    library = load()
    # Comments may contain brackets.
    header, membership, trace, types = (re.sub(r"/\*.*?\*/", "", tree.read(f"include/tutti/{name}"), flags=re.S)
                                 for name in ("tutti.h", "membership.h", "trace.h", "types.h"))
    header += membership + trace
    found = compare(library, header, types)
    for planted in (header.replace("int peer", "size_t peer"), header.replace("tuttiBcast(", "tuttiBcas(")):
        if not compare(library, planted, types):
            found.append("this test does not find planted differences")
    if not compare(library, header, types.replace("int opTimeoutSeconds", "size_t opTimeoutSeconds")):
        found.append("this test does not find a planted field")
    tree.finish(found, len(library.PROTOTYPES))


if __name__ == "__main__":
    main()
