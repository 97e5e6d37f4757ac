#!/usr/bin/env bash
# What tutti-doctor says of the network between hosts; the hosts are network namespaces.
#   doctor.sh TUTTI_DOCTOR ALL_REDUCE_PERF
# Exits 77 (skipped) with the reason where root, ip or namespaces are missing.
set -u
doctor=$1 all_reduce=$2
# shellcheck source=tests/launch/hosts.sh
. "$(dirname "$0")/hosts.sh"
out=$(mktemp)
export TUTTI_TUNE_FILE=/dev/null
hosts 3 1 10.83

# job COMMAND...: four ranks, one on each host and a second one on the last.
job() {
  local rank status=0
  local -a pids=()
  port=$((${port:-29880} + 1))
  for rank in 0 1 2 3; do
    on $((rank < 3 ? rank + 1 : 3)) env TUTTI_RANK="$rank" TUTTI_NRANKS=4 TUTTI_ROOT=10.83.1.1:$port \
      TUTTI_SECRET=doctor timeout 60 "$@" >"$out.$rank" 2>&1 &
    pids+=($!)
  done
  for rank in 0 1 2 3; do wait "${pids[$rank]}" || status=1; done
  cat "$out.0"
  return $status
}
expect() { grep -qE -e "$1" "$out.0" || fail "lacks: $1"; }

job "$doctor" || fail "the exit status where all is well is not 0"
expect '^ok +network between the hosts +6 paths'
expect '^ok +data between 4 ranks on 3 hosts'
job "$doctor" --ranks 5000
expect 'CPUs +.* for 5000 ranks here'
(ulimit -n 300; job "$doctor") || fail "a limit that only might be too low is an error"
expect '^warn +open files .* 300, of which each of 4 ranks may take 320'

# The switch silently drops large packets to the third host.
ip -n "$(host 0)" link set h3-1 mtu 1000
for i in 1 2 3; do on $i ip link set nic1 gso_max_segs 1; done  # else a veth pair would take several packets as one
job "$doctor" && fail "packets that are too large are no error"
expect '^BAD +network: .* \(10.83.1.1\) to .* \(10.83.1.3\) +packets of more than 1000 bytes do not arrive, and nic1 has an MTU of 1500: large messages will not arrive'
expect '-> ip link set nic1 mtu 1000'
grep -q 'BAD.*10.83.1.1) to .*10.83.1.2)' "$out.0" && fail "a good path is called bad"
# A job meets there, and says which packets do not arrive.
TUTTI_TCP_TIMEOUT=2 job "$all_reduce" -b 64K -e 64K -n 2 && fail "a job goes on without large packets"
cat "$out".? | grep -q 'the network may drop large packets, here of 1448 bytes' || { cat "$out".?; fail "the MTU is not named"; }
TUTTI_TCP_MSS=900 job "$all_reduce" -b 64K -e 64K -n 2 || fail "small packets do not help"
expect '^# Out of bounds values : 0 OK'
echo "ok: the doctor between hosts"
