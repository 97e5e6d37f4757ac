"""libtutti.so exports exactly the functions that tutti.h, ddp.h and trace.h declare, and calls itself libtutti.so.0.
It loads at run time, into interpreters, too: nothing of it lies at a fixed place of each thread's memory."""
import re
import subprocess
import sys

import tree


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main():
    library = sys.argv[1]
    headers = "".join(tree.read(f"include/tutti/{name}.h") for name in ("tutti", "membership", "ddp", "trace"))
    declared = set(re.findall(r"^TUTTI_API[^;]*?\b(tutti\w+)\(", headers, re.M))
    lines = output_of("nm", "-D", "--defined-only", library).splitlines()
    exported = {line.split()[-1] for line in lines}
    found = [f"{name} is declared but not exported" for name in declared - exported]
    found += [f"{name} is exported but not declared in tutti.h, ddp.h or trace.h" for name in exported - declared]
    dynamic = output_of("readelf", "-d", library)
    if "STATIC_TLS" in dynamic:
        found.append("STATIC_TLS is set: variables of threads with tls_model(\"initial-exec\")")
    soname = re.search(r"SONAME.*\[(.*)\]", dynamic)
    if soname is None or soname[1] != "libtutti.so.0":
        found.append(f"SONAME is {soname and soname[1]}, not libtutti.so.0")
    tree.finish(found, len(declared))


if __name__ == "__main__":
    main()
