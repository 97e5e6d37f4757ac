"""Makes what the emulator boots from an unpacked Debian kernel package: the kernel as an ELF file, and an initramfs with a
static busybox, an init and the modules that the guest needs, in the order in which they can be loaded.

image.py KERNEL_TREE BUSYBOX INIT OUT_DIR MODULE...
"""
import gzip
import lzma
import re
import struct
import sys
from pathlib import Path


def elf_kernel(image):
    """The kernel itself from a bzImage: the emulator enters it directly, which saves the guest the decompression."""
    setup_sectors = image[0x1F1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)
    begin = (setup_sectors + 1) * 512 + offset
    payload = image[begin : begin + length]
    if payload.startswith(b"\xfd7zXZ\0"):
        return lzma.LZMADecompressor().decompress(payload)
    if payload.startswith(b"\x1f\x8b"):
        return gzip.decompress(payload[:-4])
    sys.exit(f"the kernel is compressed in a way that is unknown here: it begins with {payload[:6].hex()}")


def name_of(path):
    return path.name.split(".ko")[0].replace("-", "_")


def contents(path):
    data = path.read_bytes()
    return lzma.decompress(data) if path.suffix == ".xz" else data


def modules_in_order(tree, wanted):
    """Name and content of the wanted modules and of all that they depend on, dependencies first."""
    files = {name_of(path): path for path in tree.rglob("*.ko*")}
    order = {}

    def add(name):
        if name in order or name not in files:  # the latter: it is built in
            return
        data = contents(files[name])
        for needed in re.search(rb"\0depends=([^\0]*)\0", data)[1].decode().split(","):
            add(needed.replace("-", "_"))
        order[name] = data

    for name in wanted:
        if name not in files:
            sys.exit(f"the kernel has no module {name}")
        add(name)
    return order


def archive(entries):
    """A cpio archive of (path, mode, contents), in the format that the kernel unpacks."""
    out = bytearray()
    for number, (path, mode, data) in enumerate([*entries, ("TRAILER!!!", 0, b"")], 1):
        name = path.encode() + b"\0"
        out += b"070701" + b"".join(b"%08X" % field for field in
                                    (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name), 0)) + name
        out += b"\0" * (-len(out) % 4) + data
        out += b"\0" * (-len(out) % 4)
    return bytes(out)


def main():
    tree, busybox, init, out = map(Path, sys.argv[1:5])
    modules = modules_in_order(tree, sys.argv[5:])
    kernel = next((tree / "boot").glob("vmlinuz-*"))
    (out / "vmlinux").write_bytes(elf_kernel(kernel.read_bytes()))
    entries = [(folder, 0o40755, b"") for folder in ("dev", "modules")]
    entries += [("busybox", 0o100755, busybox.read_bytes()), ("init", 0o100755, init.read_bytes())]
    entries += [(f"modules/{name}.ko", 0o100644, data) for name, data in modules.items()]
    entries.append(("modules/order", 0o100644, "".join(f"{name}\n" for name in modules).encode()))
    (out / "initramfs").write_bytes(gzip.compress(archive(entries), 1))
    print(f"{kernel.name}, modules {' '.join(modules)}")


if __name__ == "__main__":
    main()
