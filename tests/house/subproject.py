"""subproject.py MESON: a project that takes Tutti as a Meson subproject, with default_library=static, gets the static library
and neither tests nor programs. Only configured: what is to be built tells."""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import tree

PROJECT = """project('stranger', 'c')
tutti = dependency('tutti', fallback: ['tutti', 'tutti_dep'])
executable('stranger', 'stranger.c', dependencies: tutti)
"""


def main():
    meson = sys.argv[1]
    with tempfile.TemporaryDirectory() as scratch:
        project = Path(scratch, "project")
        (project / "subprojects").mkdir(parents=True)
        (project / "subprojects" / "tutti").symlink_to(tree.ROOT)
        (project / "meson.build").write_text(PROJECT, encoding="utf-8")
        (project / "stranger.c").write_text("int main(void) { return 0; }\n", encoding="utf-8")
        options = ["--wrap-mode=nodownload", "--force-fallback-for=tutti", "-Ddefault_library=static", "-Dtutti:cuda=disabled"]
        done = subprocess.run([meson, "setup", "build", *options], cwd=project, text=True, capture_output=True, timeout=300)
        if done.returncode:
            tree.finish([done.stdout + done.stderr], 1)
        told = subprocess.run([meson, "introspect", "build", "--targets", "--tests"], cwd=project, check=True, text=True,
                              capture_output=True, timeout=100)
        told = json.loads(told.stdout)
    kinds = {target["name"]: target["type"] for target in told["targets"]}
    found = [f"test {test['name']}" for test in told["tests"]]
    found += [f"{kind} {name}" for name, kind in kinds.items() if kind == "executable" and name != "stranger"]
    if kinds.get("tutti") != "static library":
        found.append(f"tutti is a {kinds.get('tutti')} with default_library=static")
    tree.finish(found, len(kinds))


if __name__ == "__main__":
    main()
