#!/bin/sh
# launcher.sh FOLDER: ranks from a launcher's environment, which is written by hand here.
set -u
tool=$1/all_reduce_perf
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
port=$((20000 + $$ % 20000))

launch() {
  for rank in 0 1 2; do
    TUTTI_RANK=$rank TUTTI_NRANKS=3 TUTTI_ROOT=127.0.0.1:$port TUTTI_SECRET=between-us \
      "$tool" -b 0 -e 64K -f 16 "$@" >"$tmp/$rank" 2>&1 &
    eval "pid$rank=\$!"
  done
  for rank in 0 1 2; do
    eval "wait \$pid$rank" || {
      echo "rank $rank with '$*' failed"
      cat "$tmp"/?
      exit 1
    }
  done
}

launch
grep -q '^# Out of bounds values : 0 OK' "$tmp/0" || exit 1
[ "$(grep -c 'Rank .* Pid' "$tmp/0")" -eq 3 ] || exit 1
# No other output: on a busy machine rank 0 may come late, and the others wait for it.
! grep -v "rank 1 warn: rank 1 has not reached the group's root for " "$tmp/1" || exit 1

port=$((port + 1))
launch -t 2
[ "$(grep -c 'Rank .* Pid' "$tmp/0")" -eq 6 ] || exit 1
grep -q '^# Out of bounds values : 0 OK' "$tmp/0"
