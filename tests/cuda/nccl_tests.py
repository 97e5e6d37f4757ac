"""NCCL's own tests, unmodified, over libnccl.so.2 and a CUDA runtime that is made up (cudart/cudart.h): they are compiled to
PTX, which is interpreted. nccl_tests.py LIBCUDART LIBTUTTI LIBNCCL NVCC FOLDER

NCCL_TESTS names the folder of their source, NCCL_HEADER an nccl.h beside which its other headers lie; else packages'
places are looked at. FOLDER is for what is built, which takes minutes the first time.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys

NAMES = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "sendrecv")
RANKS = (["-g", "2"], ["-g", "4"], ["-t", "4"], ["-t", "2", "-G", "2"])
ARGUMENTS = ["-d", "all", "-o", "all", "-b", "4", "-e", "1K", "-f", "16", "-n", "1", "-w", "1"]
LARGER = ["-d", "float", "-b", "64K", "-e", "4M", "-f", "64", "-n", "1", "-w", "0"]
ROW = re.compile(r"^ +\d+ +\d+ +\w+ .*$", re.M)


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def header():
    named = os.environ.get("NCCL_HEADER", "").split(":")[0]
    places = [named] if named else ["/usr/include/nccl.h", "/usr/local/include/nccl.h", "/usr/local/cuda/include/nccl.h"]
    places += [os.path.join(folder, "nvidia/nccl/include/nccl.h") for folder in sys.path]
    return next((pathlib.Path(place) for place in places if os.path.isfile(place)), None)


def complaint_of(output):
    """Checks rows of a time, two bandwidths and a count of wrong numbers, out of place and in place."""
    rows = ROW.findall(output)
    for row in rows:
        words = row.split()
        if words[-5] != "0" or words[-1] not in ("0", "N/A"):
            return f"wrong: {row}"
    if not rows or "# Out of bounds values : 0 OK" not in output:
        return "no table, or not all of it"
    return None


def link(folder, name, file):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(file)


def build(source, nccl_h, libraries, nvcc, folder):
    cudart, tutti, nccl = libraries
    for file in nccl_h.parent.glob("nccl*"):
        link(folder / "home/include", file.name, file)
    for name in ("libnccl.so", "libnccl.so.2"):
        link(folder / "home/lib", name, nccl)
    for name, file in (("libcudart.so.13", cudart), ("libcuda.so.1", cudart), ("libtutti.so.0", tutti), ("libnccl.so.2", nccl)):
        link(folder / "run", name, file)
    shutil.copytree(source, folder / "source", ignore=shutil.ignore_patterns(".git", "build"), dirs_exist_ok=True)
    top = subprocess.run([nvcc, "--dryrun", "-E", "-x", "cu", "/dev/null"], capture_output=True, text=True, check=True).stderr
    cuda = os.path.normpath(re.search(r"TOP=(\S+)", top)[1])
    subprocess.run(["make", "-s", "-C", folder / "source/src", f"-j{os.cpu_count()}", f"CUDA_HOME={cuda}",
                    f"NCCL_HOME={folder}/home", f"BUILDDIR={folder}/made",
                    "NVCC_GENCODE=-gencode=arch=compute_90,code=compute_90", *(f"{folder}/made/{name}_perf" for name in NAMES)],
                   check=True, env={**os.environ, "NVCC_APPEND_FLAGS": "-no-compress", "LD_LIBRARY_PATH": str(folder / "run")})


def run(folder, name, arguments):
    env = {**os.environ, "LD_LIBRARY_PATH": str(folder / "run"), "TUTTI_TEST_GPUS": "4", "TUTTI_TEST_PTX_COUNTS": "1"}
    done = subprocess.run([folder / f"made/{name}_perf", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", timeout=300, env=env, check=False)
    complaint = complaint_of(done.stdout) or (f"exit status {done.returncode}" if done.returncode else None)
    counts = re.findall(r"^PTX: .*$", done.stdout, re.M)
    print(f"{name}_perf {' '.join(arguments)}: {complaint or '0 wrong'}, {len(ROW.findall(done.stdout))} rows; {' '.join(counts)}",
          flush=True)
    if complaint:
        print(done.stdout[-4000:])
    return complaint is None


def main():
    row = " 8 2 float sum -1 58.46 0.00 0.00 {} 55.10 0.00 0.00 {}\n# Out of bounds values : {}\n"
    if complaint_of(row.format(0, "N/A", "0 OK")):
        sys.exit("a table without a mistake is refused")
    for planted in (row.format(1, 0, "0 OK"), row.format(0, 2, "0 OK"), row.format(0, 0, "4 FAILED"), "# Out of bounds values : 0 OK"):
        if not complaint_of(planted):
            sys.exit(f"a planted mistake was not found: {planted}")
    *libraries, nvcc, folder = map(os.path.abspath, sys.argv[1:])
    source, nccl_h = os.environ.get("NCCL_TESTS"), header()
    if not source or not (pathlib.Path(source) / "src/all_reduce.cu").is_file():
        skip("NCCL_TESTS does not name a folder with src/all_reduce.cu")
    if nccl_h is None:
        skip("there is no nccl.h: NCCL_HEADER may name one")
    folder = pathlib.Path(folder)
    build(source, nccl_h, libraries, nvcc, folder)
    good = [run(folder, name, [*ranks, *arguments]) for name in NAMES for ranks, arguments in
            [(ranks, ARGUMENTS) for ranks in RANKS] + [(["-g", "2"], LARGER), (["-g", "4"], LARGER)]]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
