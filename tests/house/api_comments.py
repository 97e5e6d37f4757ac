"""Every function of tutti.h, ddp.h and trace.h that returns a tuttiResult_t has a comment that tells of its errors, or of the function whose
contract it shares; the others have a comment."""
import re

import tree

# A declaration that starts with TUTTI_API, with the comment right above it.
DECLARATION = re.compile(r"^TUTTI_API\s+(?P<type>[\w ]+[*\s]\s*)(?P<name>tutti\w+)\(", re.M)


def comment_above(text, position):
    before = text[:position].rstrip()
    return before[before.rfind("/*") :] if before.endswith("*/") else ""


def complaints_of(text):
    functions = list(DECLARATION.finditer(text))
    names = {f["name"] for f in functions}
    found = []
    for function in functions:
        name, comment = function["name"], comment_above(text, function.start())
        shared = any(other in comment for other in names - {name})
        if not comment:
            found.append(f"{name}: no comment")
        elif function["type"].strip() == "tuttiResult_t" and not shared and not re.search(r"[Ee]rror", comment):
            found.append(f"{name}: the comment says nothing of errors")
    return found, len(functions)


def main():
    planted = "/* Errors: none. */\nTUTTI_API tuttiResult_t tuttiA(int);\nTUTTI_API const char* tuttiB(void);\n" \
              "/* Does it. */\nTUTTI_API tuttiResult_t tuttiC(void);\n"
    found, functions = complaints_of("".join(tree.read(f"include/tutti/{name}.h") for name in ("tutti", "membership", "ddp", "trace")))
    if [line.split(":")[0] for line in complaints_of(planted)[0]] != ["tuttiB", "tuttiC"]:
        found.append("this test does not find planted omissions")
    tree.finish(found, functions)


if __name__ == "__main__":
    main()
