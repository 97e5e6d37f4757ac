#!/usr/bin/env bash
# The kernels' tests as a 64-bit ARM program, in QEMU: the NEON kernels against the scalar reference. (QEMU cannot show
# the order of memory accesses, or speed.)
#   neon.sh SOURCE_ROOT
# Exits 77 (skipped) with the reason where the cross compiler or QEMU is missing.
set -eu
root=$1
compiler=aarch64-linux-gnu-g++
skip() { echo "skipped: $1 (apt install g++-aarch64-linux-gnu qemu-user-static)"; exit 77; }
command -v $compiler >/dev/null || skip "there is no $compiler"
qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64) || skip "there is no qemu-aarch64"
[ -e /usr/include/catch2/catch.hpp ] || { echo "skipped: Catch2's headers of version 2 are not in /usr/include"; exit 77; }

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/include"
ln -s /usr/include/catch2 "$folder/include/"  # without this machine's other headers
sources="kernels/kernels.cpp kernels/cpu/scalar.cpp kernels/cpu/neon.cpp tests/main.cpp"
for name in at_fork dtype env limits log result; do sources="$sources lib/base/$name.cpp"; done
for test in "$root"/tests/kernels/test_*.cpp; do sources="$sources tests/kernels/${test##*/}"; done
# With the library's flags, as far as results depend on them.
echo "$sources" | tr ' ' '\n' | xargs -P 2 -I{} sh -c '
  '"$compiler"' -std=c++20 -O2 -ffp-contract=off -ffunction-sections -I"$1" -I"$1/lib" -I"$1/include" -I"$1/tests" -I"$2/include" \
    -c "$1/{}" -o "$2/$(echo {} | tr / _).o"' sh "$root" "$folder"
# What nobody calls goes, and so need not be linked with what it calls.
$compiler -static -Wl,--gc-sections "$folder"/*.o -o "$folder/test_kernels" -pthread
"$qemu" "$folder/test_kernels"
