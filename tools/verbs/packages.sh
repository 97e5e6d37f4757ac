# shellcheck shell=bash
# To be sourced, with $vm set to a folder that may be filled: fetch_packages gets what the guest and the emulator need and
# this machine lacks, with apt-get, into $vm/fetched and $vm/kernel. No root is needed and nothing is installed: apt-get keeps
# its lists in $vm, and packages are only unpacked.

wanted=(qemu-system-x86 ibverbs-providers ibverbs-utils perftest iproute2 busybox-static)

own_apt() {
  LC_ALL=C apt-get -qq -o Dir::State="$vm/apt" -o Dir::State::status=/var/lib/dpkg/status -o Dir::Cache="$vm/apt" \
    -o APT::Sandbox::User= -o APT::Install-Recommends=no "$@"
}

# The newest stock kernel: cloud kernels have neither Soft-RoCE nor 9p.
kernel_package() {
  LC_ALL=C apt-cache -o Dir::State="$vm/apt" -o Dir::State::status=/var/lib/dpkg/status -o Dir::Cache="$vm/apt" \
    depends linux-image-amd64 | awk '/Depends: linux-image-/ { print $2; exit }'
}

fetch_packages() {
  local kernel package
  local -a missing
  [ -f "$vm/unpacked" ] && return 0
  mkdir -p "$vm/apt/lists/partial" "$vm/apt/archives/partial" "$vm/debs"
  own_apt update || echo "continuing with the existing lists"
  kernel=$(kernel_package)
  [ -n "$kernel" ] || { echo "apt-get knows no linux-image-amd64"; return 1; }
  # The packages that it would install are the missing ones.
  read -ra missing <<<"$(own_apt -s install "${wanted[@]}" | awk '/^Inst/ { printf "%s ", $2 }')"
  echo "fetching $kernel ${missing[*]}"
  (cd "$vm/debs" && own_apt download "$kernel" "${missing[@]}") || return 1
  rm -rf "$vm/fetched" "$vm/kernel"
  mkdir -p "$vm/kernel" "$vm/fetched/usr/"{bin,sbin,lib,lib64}
  for package in bin sbin lib lib64; do ln -s usr/$package "$vm/fetched/$package"; done
  for package in "$vm"/debs/*.deb; do
    case $package in
      */linux-image-*)
        dpkg --fsys-tarfile "$package" | tar x -C "$vm/kernel" --wildcards './boot/vmlinuz-*' './lib/modules/*.ko*' ;;
      *) dpkg --fsys-tarfile "$package" | tar x -C "$vm/fetched" --keep-directory-symlink --no-same-owner ;;
    esac || return 1
  done
  rm -rf "$vm/debs" "$vm/apt"
  touch "$vm/unpacked"
}
