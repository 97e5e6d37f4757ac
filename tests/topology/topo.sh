#!/usr/bin/env bash
# tutti-topo on topologies of machines that need not exist, and in a job of four processes.
#   topo.sh TUTTI_TOPO FOLDER_OF_GOLDEN_FILES yes|no     the last: whether hwloc is available
set -u
topo=$(realpath "$1") golden=$2 hwloc=$3
check=$(dirname "$(realpath "$0")")/drawing.py
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
fail() { echo "FAILED: $*"; exit 1; }
cd "$golden" || exit 1  # keeps names in the output short

# same NAME OPTIONS...: the output must equal NAME.txt, and the drawing must satisfy drawing.py.
same() {
  local name=$1 ranks
  shift
  "$topo" "$@" --svg "$out/$name.svg" >"$out/$name.txt" || fail "tutti-topo $*"
  diff -u "$name.txt" "$out/$name.txt" || fail "$name.txt is different"
  ranks=$(grep -c '^  [0-9]*: ' "$name.txt")
  python3 "$check" "$out/$name.svg" "$ranks" || fail "$name.svg"
}
# refused WORDS OPTIONS...: the program must fail and say so.
refused() {
  local words=$1
  shift
  "$topo" "$@" >"$out/refused" 2>&1 && fail "tutti-topo $* succeeds"
  grep -q -- "$words" "$out/refused" || { cat "$out/refused"; fail "tutti-topo $* does not say '$words'"; }
}

if [ "$hwloc" = yes ]; then
  same servers --host 'pack:2 numa:2 core:8 pu:1' --host 'pack:2 numa:2 core:8 pu:1' --ranks 10 --cyclic
  same flat --host 'pack:1 core:64 pu:1' --ranks 64
  same hybrid --host hybrid.xml --ranks 12
  refused 'not a topology' --host 'pack:x'
  refused '--host nofile.xml: there is no such file' --host nofile.xml
  refused '--host nofile: there is no such file' --host nofile
  echo garbage >"$out/garbage.xml"
  refused 'not a topology' --host "$out/garbage.xml"
  TUTTI_TOPO_FILE=$out/missing.xml refused "TUTTI_TOPO_FILE.*missing.xml.*No such file"
else
  refused '-Dhwloc=enabled' --host 'pack:2 numa:2 core:8 pu:1'
fi
"$topo" --graph graphs/four_pcie.xml >"$out/graph" || fail "a graph of NCCL's file"
grep -q '^ring: 20.0 GB/s' "$out/graph" && grep -q '  GPU 3, nearest NIC eth0; . links' "$out/graph" || { cat "$out/graph"; fail "its ring"; }
"$topo" --graph ../../tools/sim/two_racks.json --host graphs/dgx_h100.xml >"$out/graph" || fail "a graph of a cluster"
grep -q '^ring: 50.0 GB/s' "$out/graph" && grep -q '  host 5, GPU 7, nearest NIC host 5, mlx5_7;' "$out/graph" || { cat "$out/graph"; fail "its ring"; }
for file in graphs/*.xml; do
  "$topo" --graph "$file" --xml "$out/written.xml" >"$out/graph" || fail "tutti-topo --graph $file --xml"
  "$topo" --graph "$out/written.xml" | diff -u "$out/graph" - || fail "what is written of $file has another ring"
done
refused 'two_racks.json: there are several hosts' --graph ../../tools/sim/two_racks.json --host graphs/dgx_h100.xml --xml "$out/written.xml"
refused 'xml.*No space' --graph graphs/vm.xml --xml /dev/full
refused 'give --graph, too' --xml "$out/written.xml"
refused 'leave out --graph' --graph graphs/vm.xml --svg "$out/graph.svg"
refused 'a graph has no ranks' --graph graphs/vm.xml --ranks 2
refused 'a graph has no ranks' --graph graphs/vm.xml --cyclic
refused 'give one --host' --graph ../../tools/sim/two_racks.json --host graphs/vm.xml --host graphs/vm.xml
refused 'give --ranks, too' --cyclic
"$topo" --graph this-host >"$out/graph" && grep -q '^ring: ' "$out/graph" || fail "this host's graph"
refused 'cannot be read: No such file' --graph nowhere.json
mkdir "$out/folder.json"
refused 'cannot be read: Is a directory' --graph "$out/folder.json"
refused 'there is no option --rank; did you mean --ranks?' --rank 4
"$topo" --bogus 2>"$out/bogus"
[ $? = 2 ] || fail "an unknown option does not end with 2"
refused 'at most 65536' --ranks 65536 --host '' --host ''
"$topo" --svg "$out/machine.svg" >"$out/machine.txt" && python3 "$check" "$out/machine.svg" 0 || fail "machine.svg"
refused 'svg.*No space' --svg /dev/full
"$topo" >/dev/full 2>"$out/full" && fail "a full stdout is no error"
grep -q 'stdout cannot be written' "$out/full" || fail "nothing is said of a full stdout"

port=$((20000 + $$ % 10000))
# job SETTING...: four ranks, whose exit statuses are in `statuses`.
job() {
  local rank
  port=$((port + 1)) statuses=
  for rank in 3 2 1 0; do
    env TUTTI_RANK=$rank TUTTI_NRANKS=4 TUTTI_ROOT=127.0.0.1:$port TUTTI_SECRET=topo "$@" timeout 60 "$topo" \
      >"$out/job.$rank" 2>&1 &
    pids[rank]=$!
  done
  for rank in 0 1 2 3; do wait "${pids[rank]}"; statuses+=" $?"; done
}
# Without hwloc nothing can be dumped anywhere: that is an error, too.
job TUTTI_TOPO_DUMP=/dev/full
cat "$out/job.0"
[ "$statuses" = " 1 1 1 1" ] || { cat "$out"/job.*; fail "a dump that cannot be written ends with$statuses"; }
for rank in 0 1 2 3; do
  grep -q 'cannot be written.*TUTTI_TOPO_DUMP' "$out/job.$rank" || fail "rank $rank does not say what was not written"
done
if [ "$hwloc" = yes ]; then job TUTTI_TOPO_DUMP="$out/%h.xml"; else job TUTTI_LOG=warn; fi
cat "$out/job.0"
[ "$statuses" = " 0 0 0 0" ] || { cat "$out"/job.*; fail "a job's ranks end with$statuses"; }
[ "$hwloc" = no ] || [ -s "$out/$(uname -n).xml" ] || fail "the topology is not dumped"
grep -q '^ring, host by host: ' "$out/job.0" || fail "a job's ring is not shown"
grep -q '0 -> .: shm; they share ' "$out/job.0" || fail "a job's paths are not shown"
[ ! -s "$out/job.1" ] || fail "others than rank 0 say something"
# What needs no job is shown and written by rank 0 alone.
for options in "--graph graphs/vm.xml --xml $out/alone.xml" "--ranks 2 --svg $out/alone.svg"; do
  # shellcheck disable=SC2086  # several options on purpose
  TUTTI_RANK=1 TUTTI_NRANKS=2 TUTTI_ROOT=127.0.0.1:1 "$topo" $options >"$out/alone" 2>&1 || fail "tutti-topo $options as rank 1"
  [ ! -s "$out/alone" ] && [ ! -e "$out/alone.xml" ] && [ ! -e "$out/alone.svg" ] || fail "rank 1 shows or writes what rank 0 does: $options"
  # shellcheck disable=SC2086
  TUTTI_RANK=0 TUTTI_NRANKS=2 TUTTI_ROOT=127.0.0.1:1 "$topo" $options >"$out/alone" 2>&1 && [ -s "$out/alone" ] || fail "tutti-topo $options as rank 0"
  rm -f "$out"/alone.*
done
# A launcher's incomplete variables make no job, and the program says so.
TUTTI_RANK=1 TUTTI_NRANKS=2 "$topo" >"$out/alone" 2>&1 || fail "tutti-topo in half a launcher"
grep -q "tutti-topo: showing this host alone, not the job: TUTTI_ROOT is not set" "$out/alone" || fail "half a launcher is not said"

# A secret that can be guessed is refused where everything is to be encrypted, as by every program.
TUTTI_RANK=0 TUTTI_NRANKS=1 TUTTI_ROOT=127.0.0.1:$((20000 + $$ % 20000)) TUTTI_ENCRYPT=1 "$topo" >"$out/alone" 2>&1 &&
  fail "tutti-topo encrypts with a secret that can be guessed"
grep -q "TUTTI_SECRET is not set" "$out/alone" || fail "that TUTTI_SECRET is not set is not said"

echo "ok: tutti-topo"
