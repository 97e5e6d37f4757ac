#!/usr/bin/env bash
# check.sh ROOT: what tools/check does before it builds: with which compilers warnings are errors, which packages it asks
# for, and what --debian13 prints where it cannot run.
set -u
root=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0
fail() {
  echo "$*"
  failures=$((failures + 1))
}

cd "$root" || exit 1
log=$scratch/log
# shellcheck source=tools/lib/setup.sh
. tools/lib/setup.sh

# compiler VERSION NAME: a fake one, which answers what the scripts ask.
compiler() {
  printf '#!/bin/sh\ncase $1 in -dumpversion) echo %s ;; --version) echo "%s %s" ;; esac\n' "$1" "$2" "$1" >"$scratch/c++"
  chmod +x "$scratch/c++"
}
for known in "12 g++" "14.0.6 clang version" "14.0.6 Debian clang version"; do
  compiler "${known%% *}" "${known#* }"
  CXX=$scratch/c++ compiler_is_known || fail "$known is not known"
done
for strange in "11 g++" "14 g++" "12.0.1 clang version" "19.1.7 Debian clang version"; do
  compiler "${strange%% *}" "${strange#* }"
  CXX=$scratch/c++ compiler_is_known && fail "$strange is known"
done

CXX='env c++' CC='env cc' package_is_there g++ || fail "a compiler behind another program is not there"
CXX='env c++' has_header cstddef || fail "a compiler behind another program finds no header"
compiler 12 g++
CXX="env $scratch/c++" compiler_is_known || fail "g++ behind another program is not known"

# A fake apt that has one package.
printf '#!/bin/sh\n[ "$1 $2" = "show offered" ]\n' >"$scratch/apt-cache"
printf '#!/bin/sh\n' >"$scratch/apt-get"
chmod +x "$scratch/apt-cache" "$scratch/apt-get"
find_root() { as_root=(); }
offers() { PATH=$scratch:$PATH offers_package "$1" >/dev/null; }
offers offered || fail "a package that apt has is not offered"
offers absent && fail "a package that apt does not have is offered"

# A tree that git does not know.
cp -r tools "$scratch/tools"
said=$(GIT_CEILING_DIRECTORIES=${scratch%/*} "$scratch/tools/check" --debian13 2>&1)
status=$?
[[ $status = 1 && $said = *"clone Tutti with git"*$'\n0 passed, 1 failed, 0 skipped' ]] ||
  fail "--debian13 outside a repository ends with $status and says: $said"

[ $failures = 0 ] && echo "what tools/check asks and says is right"
exit $((failures != 0))
