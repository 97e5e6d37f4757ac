#!/usr/bin/env bash
# Runs the perf tools under a real launcher and checks what they print.
#   launch.sh LAUNCHER TOOLS_DIR     LAUNCHER: openmpi | mpich | torchrun | namespaces
# Exits 77 (skipped) with the reason where the launcher is not installed.
set -u
launcher=$1
tools=$2

# shellcheck source=tests/launch/hosts.sh
. "$(dirname "$0")/hosts.sh"

# Checks the output of a run of $1 ranks: every rank is listed, and nothing is wrong.
check_output() {
  local ranks=$1 file=$2 listed
  cat "$file"
  listed=$(grep -c '^#  Rank' "$file")
  [ "$listed" = "$ranks" ] || fail "$listed ranks are listed, $ranks were started"
  grep -q '^# Out of bounds values : 0 OK' "$file" || fail "no line says that all values are right"
}

find_torchrun() {
  local candidate
  for candidate in "${TUTTI_TORCHRUN:-}" "$(dirname "$tools")/../torch-venv/bin/torchrun" "$(command -v torchrun)"; do
    [ -n "$candidate" ] && [ -x "$candidate" ] && { echo "$candidate"; return; }
  done
}

out=$(mktemp)
trap 'rm -f "$out" "$out".*' EXIT
export TUTTI_INIT_TIMEOUT=40
LSAN_OPTIONS="suppressions=$(dirname "$(realpath "$0")")/lsan.supp:print_suppressions=0"
export LSAN_OPTIONS
run() { timeout 100 "$@"; }
small=(-b 8 -e 64K -f 16 -n 5)

case $launcher in
  openmpi)
    command -v mpirun.openmpi >/dev/null || skip "mpirun.openmpi is not installed (Debian: openmpi-bin)"
    run mpirun.openmpi --allow-run-as-root --oversubscribe -np 4 "$tools/all_reduce_perf" "${small[@]}" >"$out" 2>&1 ||
      { cat "$out"; fail "mpirun.openmpi all_reduce_perf"; }
    check_output 4 "$out"
    ;;
  mpich)
    command -v mpiexec.mpich >/dev/null || skip "mpiexec.mpich is not installed (Debian: mpich)"
    run mpiexec.mpich -np 4 "$tools/broadcast_perf" "${small[@]}" >"$out" 2>&1 ||
      { cat "$out"; fail "mpiexec.mpich broadcast_perf"; }
    check_output 4 "$out"
    ;;
  torchrun)
    torchrun=$(find_torchrun)
    [ -n "$torchrun" ] || skip "torchrun is not installed (set TUTTI_TORCHRUN, or tools/check --torch)"
    run "$torchrun" --nproc-per-node 3 --no-python "$tools/all_reduce_perf" "${small[@]}" >"$out" 2>&1 ||
      { cat "$out"; fail "torchrun all_reduce_perf"; }
    check_output 3 "$out"
    ;;
  namespaces)
    # Two network namespaces are two hosts: an agent in each, two ranks each, joined by a veth pair.
    torchrun=$(find_torchrun)
    [ -n "$torchrun" ] || skip "torchrun is not installed (set TUTTI_TORCHRUN, or tools/check --torch)"
    two_hosts 10.77.0
    agent() {  # namespace, node rank
      TUTTI_LOG=info ip netns exec "$1" timeout 100 "$torchrun" --nnodes 2 --node-rank "$2" --nproc-per-node 2 \
        --master-addr 10.77.0.1 --master-port 29555 --no-python "$tools/all_reduce_perf" "${small[@]}"
    }
    agent "$b" 1 >"$out.1" 2>&1 &
    agent "$a" 0 >"$out" 2>&1
    status=$?
    wait $! || { cat "$out" "$out.1"; fail "the second agent"; }
    [ $status = 0 ] || { cat "$out" "$out.1"; fail "the first agent"; }
    check_output 4 "$out"
    cat "$out" "$out.1" | grep -q 'link to rank [0-9]* channel [0-9]* through shm' || fail "no shm link inside a host"
    cat "$out" "$out.1" | grep -q 'through tcp, because shm: it is on another host' || fail "no tcp link between the hosts"
    cat "$out" "$out.1" | grep -q 'tcp link to rank [0-9]* at 10\.77\.0\.' || fail "the link does not use the veth pair"
    ;;
  *) fail "unknown launcher $launcher" ;;
esac
echo "ok: $launcher"
