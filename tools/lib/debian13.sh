#!/usr/bin/env bash
# What tools/check --debian13 does: makes a bare Debian 13 in build/debian13/root, once, copies the tree there and runs what
# the README says, tools/quickstart and tools/check. The last line is that of tools/check, and so is the exit status.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
log=$PWD/build/debian13/setup.log root=$PWD/build/debian13/root
mkdir -p build/debian13
# shellcheck source=tools/lib/setup.sh
. tools/lib/setup.sh

fail() {
  say "$*"
  say "0 passed, 1 failed, 0 skipped"
  exit 1
}

# The mirror that this machine's apt uses.
debian_mirror() {
  apt-get indextargets --format '$(ORIGIN) $(COMPONENT) $(CODENAME) $(REPO_URI)' 'Created-By: Packages' |
    awk '$1 == "Debian" && $2 == "main" && $3 !~ /security|backports/ {print $4; exit}'
}

make_root() {
  # Does not remove what debootstrap mounted there if it was interrupted.
  "${as_root[@]}" rm -rf --one-file-system "$root.part"
  "${as_root[@]}" debootstrap --variant=minbase --include=ca-certificates trixie "$root.part" "$mirror" &&
    "${as_root[@]}" mv "$root.part" "$root"
}

# The tracked files in their current state. build/ stays there, so that only changes are built again.
copy_tree() {
  "${as_root[@]}" mkdir -p "$root/tutti" &&
    "${as_root[@]}" find "$root/tutti" -mindepth 1 -maxdepth 1 ! -name 'build*' -exec rm -rf {} + &&
    git ls-files -z | tar --null -T - -c | "${as_root[@]}" tar -x --no-same-owner -C "$root/tutti"
}

# Runs a command in the new root, with mounts that end with it, and of this environment only the network's settings.
enter() {
  local -a keep=(PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8)
  local name
  for name in http_proxy https_proxy no_proxy; do [ -n "${!name:-}" ] && keep+=("$name=${!name}"); done
  # shellcheck disable=SC2016  # the inner shell's variables
  "${as_root[@]}" unshare --mount bash -c '
    root=$1
    shift
    # `ip netns` needs its root to be a mount point.
    mount --bind "$root" "$root" && mount -t proc proc "$root/proc" && mount --rbind /sys "$root/sys" &&
      mount --rbind /dev "$root/dev" && mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm" &&
      cp -L /etc/resolv.conf "$root/etc/resolv.conf" &&
      exec chroot "$root" env -i "$@"' enter "$root" "${keep[@]}" "$@" </dev/null
}

has_command git && git ls-files --error-unmatch tools/check >/dev/null 2>&1 ||
  fail "Only what git tracks is copied, and this is not a git repository: clone Tutti with git."
find_root || fail "A root directory is made and entered as root, and sudo is missing or refuses: run this as root."
if ! [ -d "$root" ]; then
  has_command apt-get || fail "There is no apt-get here, and Debian's mirror is taken from its sources: run this on Debian."
  PATH=$PATH:/usr/sbin
  require_packages debootstrap || fail "Without debootstrap no Debian 13 can be created here."
  mirror=$(debian_mirror)
  [ -n "$mirror" ] || fail "apt has no source with Debian's packages here (apt-get indextargets): run this on Debian."
  stage "making a bare Debian 13 in build/" make_root || fail "There is no Debian 13 to test in."
fi
stage "copying the tree" copy_tree || fail "The tree could not be copied to $root/tutti."
enter true || fail "The new root cannot be entered: unshare, mount and chroot have to be allowed, as they are for root on a \
machine, and in a container with --privileged."
say "Debian $(cat "$root/etc/debian_version"), tools/quickstart:"
enter bash -c 'cd /tutti && tools/quickstart' || fail "tools/quickstart failed in $root/tutti."
say
say "Debian $(cat "$root/etc/debian_version"), tools/check:"
enter bash -c 'cd /tutti && tools/check'
