#!/usr/bin/env bash
# Hosts with several networks between them, some of them broken: network namespaces joined by bridges, a rank on each, over
# TCP. A job that can run must give right results; one that cannot must end with an error that says why, and never hang.
#   networks.sh TOOLS_DIR
# Exits 77 (skipped) with the reason where root, ip, tc, bridges or namespaces are missing.
set -u
perf=$1/all_reduce_perf

# shellcheck source=tests/launch/hosts.sh
. "$(dirname "$0")/hosts.sh"
out=$(mktemp)
export TUTTI_SECRET=networks TUTTI_TUNE_FILE=/dev/null TUTTI_INIT_TIMEOUT=20 TUTTI_LOG=info
small=(-b 0 -e 1M -f 16 -n 2)

# start N ROOT [VAR=VALUE...] -- PERF OPTIONS...: one rank on each of N hosts; output in $out.RANK
start() {
  local n=$1 root=$2 i
  local -a settings=()
  shift 2
  while [ "$1" != -- ]; do settings+=("$1"); shift; done
  shift
  port=$((${port:-29800} + 1)) pids=()
  rm -f "$out".[0-9]
  for i in $(seq "$n"); do
    on "$i" env TUTTI_RANK=$((i - 1)) TUTTI_NRANKS="$n" TUTTI_ROOT="$root:$port" "${settings[@]}" \
      timeout 150 "$perf" "$@" >"$out.$((i - 1))" 2>&1 &
    pids+=($!)
  done
}
show() { local file; for file in "$out".[0-9]; do echo "-- ${file##*.}"; cat "$file"; done; }

# works NAME N ROOT ...: like start; all ranks end well, and all values are right.
works() {
  local name=$1 pid status=0
  shift
  start "$@"
  for pid in "${pids[@]}"; do wait "$pid" || status=1; done
  [ $status = 0 ] && grep -q '^# Out of bounds values : 0 OK' "$out.0" || { show; fail "$name"; }
  echo "ok: $name"
}
# ends NAME PATTERN: the job ends with an error on every rank, in time; all outputs match the pattern.
ends() {
  local name=$1 pattern=$2 pid
  for pid in "${pids[@]}"; do
    wait "$pid"
    case $? in 0) show; fail "$name: a rank ended well" ;; 124) show; fail "$name: a rank hangs" ;; esac
  done
  for file in "$out".[0-9]; do grep -q "$pattern" "$file" || { show; fail "$name: '$pattern' is not in the output of ${file##*.}"; }; done
  echo "ok: $name: $(grep -ho "$pattern" "$out".[0-9] | head -1)"
}
sent() { on "$1" cat "/sys/class/net/$2/statistics/tx_bytes"; }  # host, device

hosts 4 2 10.78

works "four hosts with two networks" 4 10.78.1.1 -- "${small[@]}"

before=$(sent 1 nic1)
works "the second network is asked for" 2 10.78.2.1 TUTTI_SOCKET_IFNAME=nic2 -- "${small[@]}"
[ $(($(sent 1 nic1) - before)) -lt 10000 ] || fail "the first network has carried $(($(sent 1 nic1) - before)) bytes"

ip -n "$(host 2)" link set nic1 down
works "one host's first device is down" 2 10.78.2.1 -- "${small[@]}"
ip -n "$(host 2)" link set nic1 up

for i in 1 2; do
  for k in 1 2; do
    ip -n "$(host $i)" addr add fd78:0:0:$k::$i/64 dev nic$k nodad
    ip -n "$(host $i)" addr del 10.78.$k.$i/24 dev nic$k
  done
done
works "IPv6 only" 2 "[fd78:0:0:1::1]" -- "${small[@]}"
grep -q 'tcp link to rank [01] at \[fd78:' "$out.0" || { show; fail "no link goes over IPv6"; }
for i in 1 2; do
  for k in 1 2; do
    ip -n "$(host $i)" addr del fd78:0:0:$k::$i/64 dev nic$k
    ip -n "$(host $i)" addr add 10.78.$k.$i/24 dev nic$k
  done
done

ip -n "$(host 1)" link set nic1 mtu 9000
ip -n "$(host 2)" link set nic1 mtu 1400
works "different MTUs" 2 10.78.1.1 -- "${small[@]}"
ip -n "$(host 1)" link set nic1 mtu 1500
ip -n "$(host 2)" link set nic1 mtu 1500

# To host 2 by the first network, back by the second.
ip -n "$(host 2)" route add 10.78.1.1/32 dev nic2 src 10.78.1.2
before=$(sent 2 nic2)
works "asymmetric routes" 2 10.78.1.1 TUTTI_SOCKET_IFNAME=nic1 -- "${small[@]}"
[ $(($(sent 2 nic2) - before)) -gt 1000000 ] || fail "the second network has carried $(($(sent 2 nic2) - before)) bytes back"
ip -n "$(host 2)" route del 10.78.1.1/32

# Everything that host 2 sends to host 1 on both networks is lost, as in a firewall: it goes to a nonexistent device.
for k in 1 2; do ip -n "$(host 2)" neigh replace 10.78.$k.1 lladdr 02:00:00:00:00:99 dev nic$k nud permanent; done
start 2 10.78.1.1 TUTTI_INIT_TIMEOUT=5 -- "${small[@]}"
ends "what host 2 sends gets lost" \
  'timeout: rank 1 of 2 never joined\|timeout: rank 1 could not join .*10\.78\.1\.1:[0-9]*: no answer'
for k in 1 2; do ip -n "$(host 2)" neigh del 10.78.$k.1 dev nic$k; done

# busy HOST NIC...: waits until each of these devices has sent $much bytes (default 30 MB) since the last `start`.
busy() {
  local i=$1 k much=${much:-30000000}
  shift
  for k in "$@"; do
    for _ in $(seq 200); do
      [ $(($(sent "$i" "nic$k") - ${before[$k]})) -gt "$much" ] && break
      sleep 0.1
    done
    [ $(($(sent "$i" "nic$k") - ${before[$k]})) -gt "$much" ] || { show; fail "nic$k of host $i carries nothing"; }
  done
}
# loses I J K: everything that host I sends to host J on network K is lost. found I J K: no longer.
loses() { ip -n "$(host "$1")" neigh replace "10.78.$3.$2" lladdr 02:00:00:00:00:99 dev "nic$3" nud permanent; }
found() { ip -n "$(host "$1")" neigh del "10.78.$3.$2" dev "nic$3"; }
long=(-b 4M -e 4M -n 40)  # 3.4 s or more, as half of it is in place

# begin NAME [VAR=VALUE...] -- PERF OPTIONS...: two ranks that use both networks; returns in the middle of their run.
begin() {
  before=(0 "$(sent 1 nic1)" "$(sent 1 nic2)")
  start 2 10.78.2.1 "$@"
  busy 1 1 2
}
goes_on() {
  local name=$1 pid status=0
  for pid in "${pids[@]}"; do wait "$pid" || status=1; done
  [ $status = 0 ] && grep -q '^# Out of bounds values : 0 OK' "$out.0" || { show; fail "$name"; }
  echo "ok: $name"
}
given_up() { grep -h "$1" "$out".[01] | head -1; grep -q "$1" "$out".[01] || { show; fail "no warning says '$1'"; }; }

# Networks so slow that all ranks wait for them: the length of a run does not depend on the machine, whose CPUs others
# may be using.
command -v tc >/dev/null || skip "tc is not installed (Debian: iproute2)"
rates() {  # of networks 1 and 2
  local i k
  for i in 1 2; do
    for k in 1 2; do tc -n "$(host $i)" qdisc replace dev nic$k root tbf rate "${!k}" burst 64kb latency 50ms; done
  done
}

rates 100mbit 25mbit
before=(0 "$(sent 1 nic1)" "$(sent 1 nic2)")
works "two networks of unequal speed" 2 10.78.1.1 -- -b 4M -e 4M -n 6 -w 3
fast=$(($(sent 1 nic1) - before[1])) slow=$(($(sent 1 nic2) - before[2]))
# A fifth is right; without knowing the rates it would get three tenths.
[ $((slow * 100 / (fast + slow))) -le 26 ] || fail "the slow network had $slow bytes, the fast one only $fast"
rates 400mbit 400mbit

begin TUTTI_TCP_CONNECTIONS=0 -- "${long[@]}"
goes_on "two networks carry the data side by side"

begin -- "${long[@]}"
ip -n "$(host 0)" link set h1-1 down
goes_on "one of two networks fails in the middle"
given_up 'connection 1 of 2, at 10.78.1.* was given up: nothing was acknowledged'
ip -n "$(host 0)" link set h1-1 up

# The kernel gives up what it cannot send, here after 3 s instead of 15 min: by then control connections have moved.
for i in 1 2; do on $i sysctl -qw net.ipv4.tcp_retries2=3; done
begin -- -b 4M -e 4M -n 120
ip -n "$(host 0)" link set h1-1 down
goes_on "one of two networks fails in the middle, and the kernel gives up its connections"
given_up 'a control connection to rank [01] is left: its network does not answer'
ip -n "$(host 0)" link set h1-1 up
for i in 1 2; do on $i sysctl -qw net.ipv4.tcp_retries2=15; done

# At least 26 s besides the outage: on a busy machine it takes a while until the connection is back (with 13 s one of
# three runs beside five other tests ended before that).
begin -- -b 4M -e 4M -n 320
ip -n "$(host 0)" link set h1-1 down
sleep 3
ip -n "$(host 0)" link set h1-1 up
before=(0 "$(sent 1 nic1)")
busy 1 1
echo "nic1 has sent $(($(sent 1 nic1) - before[1])) bytes since it is back"
goes_on "one of two networks fails in the middle, is mended, and takes its share again"

begin TUTTI_TCP_CONNECTIONS=5 -- "${long[@]}"
loses 2 1 2
goes_on "what one host sends on one of two networks gets lost from now on"
given_up 'connection [24] of 5, at 10.78.2.* was given up: nothing was acknowledged'
found 2 1 2

begin -- "${long[@]}"
stopped=$(for pid in $(ip netns pids "$(host 2)"); do [ "$(cat "/proc/$pid/comm")" = all_reduce_perf ] && echo "$pid"; done)
kill -STOP "$stopped" || { show; fail "no rank of host 2 can be stopped"; }
sleep 12
kill -CONT "$stopped"
goes_on "a rank is stopped for longer than TUTTI_TCP_TIMEOUT"
grep -q 'given up' "$out".[01] && { show; fail "a connection was given up"; }

loses 2 1 1
works "one of two networks works in one direction only at the start" 2 10.78.2.1 -- "${small[@]}"
found 2 1 1

# Timing decides whether a connection's silence or the kernel's failure to find the peer is noticed first.
broken='has not answered\|TUTTI_TCP_TIMEOUT\|timed out\|No route to host\|rank [01] .*died'
begin -- -b 4M -e 4M -n 1000000 -c 0
for k in 1 2; do ip -n "$(host 0)" link set h1-$k down; done
ends "all networks fail in the middle" "$broken"
for k in 1 2; do ip -n "$(host 0)" link set h1-$k up; done

# Over a single connection.
before=(0 "$(sent 1 nic1)")
start 2 10.78.1.1 TUTTI_SOCKET_IFNAME=nic1 -- -b 4M -e 4M -n 1000000 -c 0
busy 1 1
ip -n "$(host 0)" link set h1-1 down
ends "the only network fails in the middle" "$broken"
ip -n "$(host 0)" link set h1-1 up

# Small messages go both ways over one connection, so that the waiting rank has something in flight, too.
before=(0 "$(sent 1 nic1)")
start 2 10.78.1.1 TUTTI_SOCKET_IFNAME=nic1 -- -b 64 -e 64 -n 100000000 -c 0
much=1000000 busy 1 1
ip -n "$(host 0)" link set h1-1 down
ends "the only network fails amid small messages" "$broken"
ip -n "$(host 0)" link set h1-1 up
works "and is whole again" 2 10.78.1.1 -- "${small[@]}"
echo "ok: several networks"
