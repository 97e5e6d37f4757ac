"""Who may include whom (lib/README.md tells why). With --self-test: the checker finds planted violations."""
import re
import sys
from pathlib import Path

import tree

# room -> the rooms that it may include besides itself. A path prefix covers everything below it.
BASE = {"lib/base"}
TRANSPORT_ABI = {"include/tutti/tutti.h", "include/tutti/membership.h", "include/tutti/types.h", "include/tutti/transport.h"}
LINKS = {"transports/transport.h"} | TRANSPORT_ABI
EXEC = {"lib/schedule", "kernels/kernels.h", "lib/debug"} | LINKS | BASE
ROOMS = {
    "include": set(),
    "lib/base": set(),
    "lib/schedule": BASE,
    "lib/topology": BASE,
    "lib/group": BASE,
    "lib/debug": {"lib/schedule/algorithms.h"} | BASE,
    "kernels": BASE,
    "transports/net": {"transports/transport.h", "transports/adapter.h"} | TRANSPORT_ABI | BASE,
    "transports/shm": {"transports/transport.h", "transports/adapter.h"} | TRANSPORT_ABI | BASE,
    "transports/tcp": {"transports/transport.h", "transports/adapter.h"} | TRANSPORT_ABI | BASE,
    "transports/verbs": {"transports/transport.h", "transports/adapter.h"} | TRANSPORT_ABI | BASE,
    "transports": {"include/tutti"} | BASE,
    "lib/plan": {"lib/schedule", "lib/topology", "lib/debug"} | BASE,
    "lib/exec": EXEC,
    "lib/cuda": {"lib/exec", "lib/plan", "lib/topology", "kernels/cuda"} | EXEC,
    "lib/comm": {"lib/exec", "lib/cuda", "lib/plan", "lib/topology", "lib/group", "include/tutti/tutti.h"} | EXEC,
    "lib/api": {"lib/comm", "lib/exec", "lib/cuda/port.h", "lib/group", "include/tutti"} | BASE,
    "lib/ddp": {"include/tutti/ddp.h"} | TRANSPORT_ABI - {"include/tutti/transport.h"},
    "lib/ddp/cuda": {"lib/ddp", "lib/cuda/port.h", "kernels/cuda", "include/tutti/ddp.h"} | BASE,
    "lib/nccl": {"include"},
    "lib/torch": {"include"},
    "lib/numpy": {"include"},
    "tools": {"include", "lib/base/cgroups.h"},  # the latter is nothing to link with
    "tools/cli": set(),
    # They show what only the inside knows.
    "tools/tune": {"lib/plan", "tools/sim", "tools/perf", "include", "lib/schedule", "lib/topology", "lib/debug"} | BASE,
    "tools/sim": {"tools/perf", "include", "lib/plan", "lib/exec/chunks.h", "lib/schedule", "lib/topology", "lib/debug"} | BASE,
    "tools/doctor": {"lib/group", "include"} | BASE,
    "tools/trace": {"lib/debug"} | BASE,
    "tools/topo": {"lib/topology", "lib/schedule", "lib/comm", "lib/group"} | BASE,
}
# External headers, with the rooms that may include them.
OUTSIDE = {"sodium.h": {"lib/base"}, "intel-ipsec-mb.h": {"lib/base"}, "hwloc.h": {"lib/topology"}, "infiniband/verbs.h": {"transports/verbs"},
           "Python.h": {"lib/torch"}, "cuda.h": {"lib/cuda"}, "nvtx3/nvToolsExt.h": {"lib/debug"}, "cuda_runtime_api.h": {"lib/cuda"}, "cuda_fp16.h": {"kernels"}, "cuda_bf16.h": {"kernels"},
           "cuda_fp8.h": {"kernels"}}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)


def room_of(path):
    """The longest room that contains the path, or None."""
    rooms = [room for room in ROOMS if path.startswith(room + "/")]
    return max(rooms, key=len, default=None)


def resolve(name, includer, exists):
    """The file of the tree that an include names, or None if it is outside the tree."""
    for folder in (str(Path(includer).parent), "lib", ".", "include"):
        candidate = str(Path(folder, name))
        if exists(candidate):
            return candidate
    return None


def allowed(target, room):
    if room_of(target) == room:
        return True
    return any(target == entry or target.startswith(entry + "/") for entry in ROOMS[room])


def violations(path, text, exists):
    room = room_of(path)
    if room is None:
        return [f"{path}: no rule for this folder: add it to tests/house/include_rules.py and lib/README.md"]
    found = []
    for mark, name in INCLUDE.findall(text):
        target = resolve(name, path, exists)
        if target is None and mark == '"':
            found.append(f'{path}: "{name}" is not in the tree; libraries outside are included with <>')
        elif target is None and room not in OUTSIDE.get(name, {room}):
            found.append(f"{path}: <{name}> belongs to {', '.join(sorted(OUTSIDE[name]))}")
        elif target is not None and not allowed(target, room):
            found.append(f"{path}: {room} may not include {target}")
        if room == "include" and target is None and name not in ("stddef.h", "stdint.h"):
            found.append(f"{path}: a public header includes only stddef.h, stdint.h and tutti/, not <{name}>")
    return found


def undescribed():
    """Rooms that are missing in either the table of lib/README.md or the rules. A row covers the rooms below it, too."""
    rows = set(re.findall(r"^\| \[([a-z/]+)\]\(", tree.read(Path("lib/README.md")), re.M))
    rules = {room.removeprefix("lib/") for room in ROOMS} - {"include"}
    lost = {room for room in rules - rows if room.partition("/")[0] != "transports"}
    return [f"lib/README.md and tests/house/include_rules.py differ: {room}" for room in sorted(lost | rows - rules)]


def self_test():
    """The planted lines must be refused, the good ones accepted."""
    present = {"lib/comm/x.h", "lib/base/x.h", "lib/plan/x.h", "kernels/kernels.h", "transports/transport.h",
               "transports/tcp/x.h", "include/tutti/tutti.h", "lib/schedule/x.h"}
    bad = [("lib/base/a.cpp", '#include "comm/x.h"'), ("lib/schedule/a.h", '#  include "plan/x.h"'),
           ("lib/exec/a.cpp", '#include "transports/tcp/x.h"'), ("transports/shm/a.cpp", '#include "transports/tcp/x.h"'),
           ("kernels/a.cpp", '#include "schedule/x.h"'), ("tools/perf/a.cpp", '#include "base/x.h"'),
           ("include/tutti/a.h", "#include <stdlib.h>"), ("include/tutti/a.h", '#include "base/x.h"'),
           ("lib/group/a.cpp", "#include <sodium.h>"), ("lib/api/a.cpp", '#include "plan/x.h"'),
           ("lib/ddp/a.cpp", '#include "base/x.h"'), ("lib/comm/a.cpp", '#include "nowhere.h"'), ("lib/novel/a.cpp", "")]
    good = [("lib/base/a.cpp", '#include "base/x.h"\n#include <sodium.h>'), ("lib/comm/a.cpp", '#include "plan/x.h"'),
            ("lib/exec/a.cpp", '#include "kernels/kernels.h"\n#include "transports/transport.h"'),
            ("transports/tcp/a.cpp", '#include "x.h"\n#include "base/x.h"'),
            ("tools/perf/a.cpp", '#include "tutti/tutti.h"\n#include <string>')]
    exists = present.__contains__
    complaints = [f"not found: {path}: {text}" for path, text in bad if not violations(path, text, exists)]
    complaints += [line for path, text in good for line in violations(path, text, exists)]
    tree.finish(complaints, len(bad) + len(good))


def main():
    if "--self-test" in sys.argv:
        self_test()
    sources = [f for f in tree.code_files() if f.suffix in (".h", ".c", ".cpp", ".cu") and f.parts[0] != "tests"]
    complaints = undescribed()
    for path in sources:
        complaints += violations(str(path), tree.read(path), lambda name: (tree.ROOT / name).is_file())
    tree.finish(complaints, len(sources))


if __name__ == "__main__":
    main()
