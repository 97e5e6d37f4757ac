#!/usr/bin/env bash
# try_deb.sh FOLDER: installs the packages in FOLDER and uses them, in a copy of this system that goes when this ends: a
# layer over its root directory, in a mount namespace. Needs root.
set -euo pipefail
tree=$(realpath "$(dirname "$0")/../..")
if [ "${2:-}" != inside ]; then
  copy=$(mktemp -d)
  trap 'rmdir "$copy"' EXIT
  unshare --mount --propagation private "$0" "$1" inside "$copy"
  exit
fi

copy=$3
mount -t tmpfs none "$copy"
mkdir "$copy/upper" "$copy/work" "$copy/top"
mount -t overlay overlay -o "lowerdir=/,upperdir=$copy/upper,workdir=$copy/work" "$copy/top"
for folder in proc sys dev; do mount --rbind /$folder "$copy/top/$folder"; done
mkdir "$copy/top/packages"
cp "$1"/*.deb "$copy/top/packages/"
# example README LANGUAGE: the first program in that document
example() { awk -v start="\`\`\`$2" '$0 == start { on = 1; next } /^```/ { if (on) exit } on' "$tree/$1"; }
example README.md c >"$copy/top/packages/example.c"
example lib/numpy/README.md python >"$copy/top/packages/example.py"

cat >"$copy/top/packages/use" <<'INSIDE'
set -euxo pipefail
cd /packages
unset LD_LIBRARY_PATH PYTHONPATH TUTTI_LIBRARY
dpkg -i ./*.deb || DEBIAN_FRONTEND=noninteractive apt-get install -y -f
for program in $(dpkg -L tutti-tools | grep ^/usr/bin/); do "$program" --help >/dev/null; done
tutti-all-reduce-perf --procs 2 -b 8 -e 64K -f 16 -n 5 | grep "Out of bounds values : 0 OK"
LD_PRELOAD=$(pkg-config --variable=libdir tutti)/tutti/libnccl.so.2 /bin/true
# As on a machine that has no other -dev packages.
mkdir pc
cp "$(pkg-config --variable=pcfiledir tutti)/tutti.pc" pc
# shellcheck disable=SC2046
cc -std=c99 example.c $(PKG_CONFIG_LIBDIR=pc pkg-config --cflags --libs tutti) -o example
export TUTTI_NRANKS=2 TUTTI_ROOT=localhost:4711
# two COMMAND...: as two ranks
two() { TUTTI_RANK=1 "$@" & TUTTI_RANK=0 "$@"; wait $!; }
two ./example | grep "the last sum is 2997"
if /usr/bin/python3 -c "import numpy"; then two /usr/bin/python3 example.py | grep "rank 1 of 2: 3"; fi
dpkg --purge $(for deb in ./*.deb; do dpkg-deb --field "$deb" Package; done)
[ ! -e /usr/include/tutti ]
INSIDE
chroot "$copy/top" /bin/bash /packages/use
