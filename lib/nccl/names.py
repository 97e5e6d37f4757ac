"""The functions that abi.h declares, as what the linker takes to give each its second name: names.py abi.h"""
import re
import sys


def names(text):
    return sorted(set(re.findall(r"\b(nccl[A-Z]\w*)\(", re.sub(r"/\*.*?\*/", "", text, flags=re.S))))


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as header:
        print(*[f"-Wl,--defsym=p{name}={name}" for name in names(header.read())], sep="\n")
