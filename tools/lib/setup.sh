# shellcheck shell=bash
# What tools/quickstart, tools/check and tools/compare share: stages with a log, and installing what is missing.
# To be sourced with the repository's root as the working directory and $log set.
: "${log:?the file that takes the output of a stage}"
lists_are_new=no

say() { printf '%s\n' "$*"; }
minutes() { printf '%d:%02d' $(($1 / 60)) $(($1 % 60)); }

# timed LABEL COMMAND...: measures nothing here; tools/lib/stages.sh replaces it.
timed() { "${@:2}"; }

# stage LABEL COMMAND...: runs the command with its output in $log; shows the end of the output if it fails.
stage() {
  local label=$1 started=$SECONDS
  shift
  printf '%-44s' "$label ..."
  if timed "$label" "$@" >"$log" 2>&1 </dev/null; then
    printf ' %s\n' "$(minutes $((SECONDS - started)))"
    return 0
  fi
  printf ' FAILED\n\n'
  tail -n 40 "$log"
  printf '\n%s failed; its full output is in %s\n' "$label" "$log"
  return 1
}

# ---- what is installed -------------------------------------------------------------------------------------------

has_command() { command -v "$1" >/dev/null 2>&1; }
has_library() { pkg-config --exists "$1" 2>/dev/null; }
# Such as "ccache g++".
cxx() { ${CXX:-c++} "$@"; }
has_header() { printf '#include <%s>\n' "$1" | cxx -x c++ -std=c++20 -E -o /dev/null - 2>/dev/null; }
# The command may belong to another package, without the headers.
compiles_mpi() { printf '#include <mpi.h>\n' | "$1" -x c++ -std=c++20 -E -o /dev/null - 2>/dev/null; }
has_module() { python3 -c "import $1" 2>/dev/null || /usr/bin/python3 -c "import $1" 2>/dev/null; }
has_meson() {
  local version
  version=$(meson --version 2>/dev/null) || return 1
  printf '1.0.1\n%s\n' "$version" | sort -V -C
}

# For a package of Debian and Ubuntu: whether what it provides is there, from any source.
package_is_there() {
  case $1 in
    g++) cxx --version >/dev/null 2>&1 && ${CC:-cc} --version >/dev/null 2>&1 ;;
    meson) has_meson ;;
    ninja-build) has_command ninja ;;
    pkg-config) has_command pkg-config ;;
    libsodium-dev) has_library libsodium ;;
    libipsec-mb-dev) has_header intel-ipsec-mb.h ;;
    libhwloc-dev) has_library hwloc ;;
    libibverbs-dev) has_library libibverbs ;;
    libcli11-dev) has_header CLI/CLI.hpp ;;
    libeigen3-dev) has_library eigen3 ;;
    nlohmann-json3-dev) has_header nlohmann/json.hpp ;;
    catch2) has_header catch2/catch.hpp || has_header catch2/catch_all.hpp ;;
    openmpi-bin) has_command mpirun.openmpi ;;
    libopenmpi-dev) compiles_mpi mpicxx.openmpi ;;
    mpich) has_command mpiexec.mpich ;;
    libmpich-dev) compiles_mpi mpicxx.mpich ;;
    libgloo-dev) has_header gloo/allreduce.h ;;
    python3-matplotlib) has_module matplotlib ;;
    iproute2) has_command ip ;;
    python3-yaml | python3-jsonschema) has_module "${1#python3-}" ;;
    slurm-client) has_command sbatch ;;
    munge) has_command munged ;;
    dpkg-dev) has_command dpkg-buildpackage ;;
    debhelper) has_command dh ;;
    python3-venv) has_module ensurepip ;;
    python3-dev) [ -e "$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ] ;;
    python3-torch) has_command torchrun || [ -x "${TUTTI_TORCHRUN:-}" ] ;;
    *) has_command "$1" ;;
  esac
}

missing_packages() {
  local package
  for package in "$@"; do package_is_there "$package" || printf '%s ' "$package"; done
}

# Compilers for which the tree has no warnings. Another one may warn of more, which must not be a user's failure.
compiler_is_known() {
  local major
  major=$(cxx -dumpversion) || return 1
  major=${major%%.*}
  if cxx --version | grep -q clang; then
    [ "$major" = 14 ]
  else
    [ "$major" = 12 ]
  fi
}

# ---- installing --------------------------------------------------------------------------------------------------

# Sets `as_root` to the prefix that runs a command as root; fails if there is none.
find_root() {
  as_root=()
  [ "$(id -u)" = 0 ] && return 0
  as_root=(sudo)
  has_command sudo || return 1
  sudo -n true 2>/dev/null && return 0
  [ -t 0 ] && sudo true  # may ask for the password here, in the foreground
}

apt_update() { "${as_root[@]}" apt-get update; }
apt_install() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
}

# A third-party source that is down must not be fatal: only an installation counts.
update_lists() {
  [ $lists_are_new = yes ] && return
  stage "updating the package lists" apt_update || say "continuing with the existing lists"
  lists_are_new=yes
}

# Whether apt could install a package; true if that cannot be known.
offers_package() {
  if ! has_command apt-get || ! find_root; then return 0; fi
  update_lists
  apt-cache show "$1" >/dev/null 2>&1
}

# require_packages PACKAGE...: installs those that are missing; if that is impossible it fails and says what to do.
require_packages() {
  local -a missing
  read -ra missing <<<"$(missing_packages "$@")"
  [ ${#missing[@]} = 0 ] && return 0
  say "missing: ${missing[*]}"
  local by_hand="apt-get install --no-install-recommends ${missing[*]}"
  if ! has_command apt-get; then
    say "There is no apt-get here. Install what these Debian packages contain, then run this again:"
    say "  ${missing[*]}"
    return 1
  fi
  if ! find_root; then
    say "Installing needs root, and sudo is missing or refuses. Run this as root, then run this script again:"
    say "  $by_hand"
    return 1
  fi
  update_lists
  if ! stage "installing ${#missing[@]} packages" apt_install "${missing[@]}"; then
    say "Install them by hand, then run this again:"
    say "  $by_hand"
    return 1
  fi
  read -ra missing <<<"$(missing_packages "$@")"
  [ ${#missing[@]} = 0 ] && return 0
  say "apt-get installed no ${missing[*]}, or one that is too old; install a newer one by hand, then run this again"
  return 1
}

# shellcheck disable=SC2034  # for the scripts that source this
build_packages=(g++ pkg-config meson ninja-build libsodium-dev libhwloc-dev libcli11-dev nlohmann-json3-dev)
# AES for TUTTI_ENCRYPT at full speed; without it libsodium's is used.
[ "$(uname -m)" != x86_64 ] || build_packages+=(libipsec-mb-dev)
# For RDMA, where there are devices; without it there is no libtutti-verbs.so.
[ -z "$(ls -A /sys/class/infiniband 2>/dev/null)" ] || build_packages+=(libibverbs-dev)
# Without it Meson installs into lib64, where Debian's linker, pkg-config and CMake do not look.
! has_command dpkg || build_packages+=(dpkg-dev)
