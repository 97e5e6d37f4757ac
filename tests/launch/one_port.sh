#!/usr/bin/env bash
# TUTTI_PORT between two network namespaces that stand for hosts, with two processes on each, of one or two ranks: a
# firewall lets TCP through for that port only, and no process listens at another one.
#   one_port.sh TOOLS_DIR
# Exits 77 (skipped) with the reason where root, ip, ss, rules by port or namespaces are missing.
set -u
perf=$1/all_reduce_perf

# shellcheck source=tests/launch/hosts.sh
. "$(dirname "$0")/hosts.sh"
command -v ss >/dev/null || skip "ss is not installed (Debian: iproute2)"
out=$(mktemp)
port=24680
export TUTTI_TUNE_FILE=/dev/null TUTTI_SECRET=one-port TUTTI_INIT_TIMEOUT=40
two_hosts 10.81.1

# The firewall: packets of connections to the port have a route to the other host, in both directions; other TCP has none.
for ns in "$a" "$b"; do
  for which in dport sport; do
    ip -n "$ns" rule add pref 100 ipproto tcp $which $port lookup main 2>/dev/null ||
      skip "ip has no rules by port here"
  done
  ip -n "$ns" rule add pref 200 ipproto tcp to 10.81.1.0/24 prohibit
done

# start [VAR=VALUE...] -- PERF OPTIONS: four processes, alternately on the two hosts; output in $out.PROCESS
start() {
  local rank ns
  local -a settings=()
  while [ "$1" != -- ]; do settings+=("$1"); shift; done
  shift
  pids=()
  for rank in 0 1 2 3; do
    ns=$a
    [ $((rank % 2)) = 1 ] && ns=$b
    ip netns exec "$ns" env TUTTI_RANK=$rank TUTTI_NRANKS=4 TUTTI_ROOT=10.81.1.1:$port "${settings[@]}" \
      timeout 100 "$perf" "$@" >"$out.$rank" 2>&1 &
    pids+=($!)
  done
}
show() { tail -n +1 "$out".?; }
ends_well() {
  local pid status=0
  for pid in "${pids[@]}"; do wait "$pid" || status=1; done
  [ $status = 0 ] && grep -q '^# Out of bounds values : 0 OK' "$out.0" || { show; fail "$1"; }
  echo "ok: $1"
}

start TUTTI_INIT_TIMEOUT=3 -- -b 8 -e 8 -n 1
for pid in "${pids[@]}"; do wait "$pid" && { show; fail "the firewall lets everything through"; }; done
grep -q 'cannot be reached: .*Permission denied' "$out".? || { show; fail "it is not the firewall that keeps them apart"; }
echo "ok: without TUTTI_PORT the firewall keeps the group from forming"

start TUTTI_PORT=$port TUTTI_LOG=info -- -b 64 -e 1M -f 16 -n 5 -t 2
ends_well "all ranks of both hosts, processes and threads, meet and work by one port"
cat "$out".? | grep -q 'tcp link to rank [0-9]* at 10\.81\.1\.' || { show; fail "no link goes between the hosts"; }

# An all-reduce that goes on until all processes have been checked.
start TUTTI_PORT=$port TUTTI_LOG=info -- -b 8 -e 8 -n 100000000 -c 0
for _ in $(seq 400); do
  [ "$(grep -l 'ranks is ready' "$out".? | wc -l)" = 4 ] && break
  sleep 0.1
done
[ "$(grep -l 'ranks is ready' "$out".? | wc -l)" = 4 ] || { show; fail "not all ranks are ready"; }
for ns in "$a" "$b"; do
  listeners=$(ip netns exec "$ns" ss -Htln | awk '{ print $4 }' | sort -u)
  case $listeners in
    *$'\n'*|"") show; fail "there are other listeners than one: $listeners" ;;
    *:$port) ;;
    *) show; fail "the listener is $listeners" ;;
  esac
done
echo "ok: nobody listens at another port"
kill "${pids[0]}"
for pid in "${pids[@]}"; do wait "$pid"; done
grep -q 'remote error: .*rank 0 ' "$out.3" || { show; fail "the loss of a rank is not named"; }

start TUTTI_PORT=$port -- -b 8 -e 8 -n 1
ends_well "the port is free again after a process was killed"
TUTTI_SECRET=another TUTTI_RANK=1 TUTTI_NRANKS=2 TUTTI_INIT_TIMEOUT=5 TUTTI_ROOT=10.81.1.1:$port TUTTI_PORT=$port \
  ip netns exec "$b" timeout 60 "$perf" -b 8 -e 8 -n 1 >"$out.1" 2>&1 &
pids=($!)
TUTTI_RANK=0 TUTTI_NRANKS=2 TUTTI_INIT_TIMEOUT=5 TUTTI_ROOT=10.81.1.1:$port TUTTI_PORT=$port \
  ip netns exec "$a" timeout 60 "$perf" -b 8 -e 8 -n 1 >"$out.0" 2>&1
wait "${pids[0]}"
grep -q "does not know this group's secret" "$out.0" || { show; fail "another secret is not named as the cause"; }
echo "ok: who has another secret is told so, by the same port"
