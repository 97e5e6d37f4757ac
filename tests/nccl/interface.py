"""libnccl.so.2 exports what NCCL's header declares, under both names, and its structs begin as NCCL's do.

interface.py symbols LIBRARY    against lib/nccl/abi.h, of which NCCL's own functions are made
interface.py header             abi.h against NCCL's nccl.h; skipped where there is none. NCCL_HEADER names one or more
                                (with ':' between them), else it is looked for where packages put it.
"""
import os
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "house"))
import tree  # noqa: E402

# What libtorch_cuda.so of torch 2.14, and of what is built with NCCL 2.31, takes from NCCL beyond nccl.h.
TORCH_NEEDS = {"ncclCommQueryProperties", "ncclDevCommCreate", "ncclDevCommDestroy", "ncclGetLsaMultimemDevicePointer",
               "ncclGetPeerDevicePointer", "ncclGetPeerDeviceLeInfo", "ncclGetMultimemDeviceLeInfo", "ncclTeamLsa"}
# Versions up to this one are supported: a newer header may have more.
NEWEST = (2, 32)


def without_comments(text):
    return re.sub(r"//[^\n]*", "", re.sub(r"/\*.*?\*/", "", text, flags=re.S))


def functions(text):
    """name -> the types of its parameters."""
    found = {}
    for name, parameters in re.findall(r"\b(p?nccl[A-Z]\w*)\s*\(([^()]*)\)\s*;", without_comments(text)):
        types = []
        for parameter in parameters.split(","):
            words = re.sub(r"\s*\*\s*", "* ", parameter.strip())
            types.append(re.sub(r"(?<=[\w*])\s+\w+$", "", words) if words not in ("", "void") else "")
        found[name] = [" ".join(t.replace("unsigned int", "unsigned").split()) for t in types]
    return found


def structs(text):
    """The fields of structs, by the struct's public name."""
    pattern = r"typedef struct(?: \w+)?\s*\{([^{}]*)\}\s*(nccl\w+);"
    return {name: [" ".join(re.sub(r"\s*\*\s*", "* ", f).split()) for f in body.split(";") if f.strip()]
            for body, name in re.findall(pattern, without_comments(text))}


def version_of(text):
    return tuple(int(re.search(rf"#define NCCL_{part}\s+(\d+)", text)[1]) for part in ("MAJOR", "MINOR"))


def compare(ours, theirs):
    """Complaints about abi.h's text, compared with nccl.h's."""
    found = []
    mine, all_of_nccl = functions(ours), functions(theirs)
    for name, types in all_of_nccl.items():
        if name.startswith("p"):
            if name[1:] not in all_of_nccl:
                found.append(f"{name} has no other name")
        elif name not in mine:
            if version_of(theirs) <= NEWEST:
                found.append(f"{name} is missing")
        elif mine[name] != types:
            found.append(f"{name}: {mine[name]} here, {types} in nccl.h")
    my_structs, their_structs = structs(ours), structs(theirs)
    later = [name for name, since in (("ncclCollConfig_t", (2, 31)), ("ncclEncryptionConfig_t", (2, 32)))
             if version_of(theirs) >= since]
    for name in ("ncclConfig_t", "ncclSimInfo_t", "ncclWaitSignalDesc_t", "ncclUniqueId", *later):
        fields, expected = my_structs[name], their_structs.get(name, [])
        length = min(len(fields), len(expected))
        if name == "ncclUniqueId":
            fields, expected = [re.sub(r"\[.*", "", f) for f in fields], [re.sub(r"\[.*", "", f) for f in expected]
        if fields[:length] != expected[:length]:
            found.append(f"{name}: {fields} here, {expected} in nccl.h")
    for number in re.findall(r"#define NCCL_ABI_\w*MAGIC (0x\w+)u", ours):
        if number not in theirs:
            found.append(f"nccl.h has no {number}")
    return found


def headers():
    named = os.environ.get("NCCL_HEADER")
    if named:
        return [Path(name) for name in named.split(":")]
    places = ["/usr/include/nccl.h", "/usr/local/include/nccl.h", "/usr/local/cuda/include/nccl.h"]
    places += [Path(folder, "nvidia/nccl/include/nccl.h") for folder in sys.path]
    return [Path(place) for place in places if Path(place).is_file()]


def check_headers():
    ours, found = tree.read("lib/nccl/abi.h"), []
    if not headers():
        print("skipped: there is no nccl.h here; NCCL_HEADER may name one")
        sys.exit(77)
    for path in headers():
        theirs = path.read_text(encoding="utf-8")
        print(path, "of version", ".".join(map(str, version_of(theirs))), "with", len(functions(theirs)), "functions")
        found += [f"{path}: {line}" for line in compare(ours, theirs)]
        planted = [re.sub(r"ncclMemFree", "ncclMemFreed", theirs), theirs.replace("int nranks", "long nranks"),
                   theirs.replace("int minCTAs;", "int64_t minCTAs;"), theirs.replace("float estimatedTime", "int estimatedTime")]
        for text in planted:
            if version_of(theirs) <= NEWEST and len(compare(ours, text)) <= len(compare(ours, theirs)):
                found.append("this test does not find planted differences")
    tree.finish(found, len(headers()))


def check_symbols(library):
    wanted = {prefix + name for name in functions(tree.read("lib/nccl/abi.h")) for prefix in ("", "p")}
    output = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    exported = {line.split()[-1]: line.split()[-2] for line in output.splitlines()}
    found = [f"{name} is declared in abi.h but not exported" for name in wanted - exported.keys()]
    found += [f"{name} is exported but not declared in abi.h" for name in exported.keys() - wanted]
    found += [f"{name} is missing: torch for CUDA is not loaded without it" for name in TORCH_NEEDS - exported.keys()]
    found += [f"{name} is not a function" for name, kind in exported.items() if kind != "T"]
    dynamic = subprocess.run(["readelf", "-d", library], check=True, capture_output=True, text=True).stdout
    soname = re.search(r"SONAME.*\[(.*)\]", dynamic)
    if soname is None or soname[1] != "libnccl.so.2":
        found.append(f"SONAME is {soname and soname[1]}, not libnccl.so.2")
    found += [f"it needs {name}, which machines without CUDA do not have" for name in re.findall(r"\[(libcud\w*\.so\S*)\]", dynamic)]
    tree.finish(found, len(wanted))


if __name__ == "__main__":
    check_headers() if sys.argv[1] == "header" else check_symbols(sys.argv[2])
