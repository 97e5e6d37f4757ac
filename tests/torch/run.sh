#!/usr/bin/env bash
# run.sh LIBTUTTI SCRIPT ARGUMENTS...: runs a Python script with the PyTorch backend of this tree, installed as users have
# it; from a wheel with the libtutti in that. The interpreter is TUTTI_PYTHON, that of the environment which
# tools/check --torch makes, or python3; it is said if it has no torch.
set -u
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export TUTTI_LIBRARY=$1 BUILT_LIBRARY=$1 PYTHONPATH=$root/tests/torch PYTHONDONTWRITEBYTECODE=1
shift
for python in "${TUTTI_PYTHON:-}" "$root/build/torch-venv/bin/python" python3; do
  command -v "$python" >/dev/null && break
done
unset TUTTI_PYTHON
site=$(mktemp -d) || exit
trap 'rm -rf "$site"' EXIT
"$python" "$root/tests/torch/install.py" "$site" "$TUTTI_LIBRARY" || exit
for library in "$site"/tutti_torch/lib/libtutti.so.0 "$site"/tutti_torch/lib/*/libtutti.so.0; do
  [ ! -f "$library" ] || export TUTTI_LIBRARY=$library
done
export PYTHONPATH=$site:$PYTHONPATH
"$python" "$@"
