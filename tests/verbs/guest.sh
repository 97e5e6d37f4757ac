# shellcheck shell=bash
# What tools/verbs-check runs in the guest, with $build and $tests set. The last line is "N passed, N failed".
# shellcheck source=tests/verbs/net.sh
. "$tests/net.sh"
verbs=(TUTTI_TRANSPORT_PLUGIN="$build/libtutti-verbs.so" TUTTI_TRANSPORTS=verbs)

# Runs a Catch2 program: $note becomes its number of test cases.
catch() {
  env "${verbs[@]}" CONTRACT_TEST_DIVISOR=20 "$@" >"$out.catch" 2>&1
  local status=$?
  cat "$out.catch"
  note=$(grep -E '^All tests passed|^test cases:' "$out.catch")
  [ -n "$note" ] && return $status
}

# Counters of the devices: packets that a device has sent, bytes of its network interface and of the other one.
sent_packets() { cat "/sys/class/infiniband/rxe${1:-1}/ports/1/hw_counters/sent_pkts"; }
rdma_bytes() { cat /sys/class/net/v1/statistics/tx_bytes; }
tcp_bytes() { ip netns exec h1 cat /sys/class/net/e1/statistics/tx_bytes; }

# Two ranks send 4 MiB to each other 10 times: all of that must cross as RDMA, and almost nothing otherwise.
counts() {
  local packets rdma tcp
  packets=$(sent_packets) rdma=$(rdma_bytes) tcp=$(tcp_bytes)
  job 2 "$@" -- sendrecv -b 4M -e 4M -n 9 -w 0 -c 1 || return 1
  packets=$(($(sent_packets) - packets)) rdma=$(($(rdma_bytes) - rdma)) tcp=$(($(tcp_bytes) - tcp))
  note="$rdma bytes in $packets packets of rxe1, $tcp bytes otherwise"
  echo "$note"
  [ $rdma -ge $((40 << 20)) ] && [ $rdma -le $((46 << 20)) ] && [ "$packets" -ge $((40 << 8)) ] && [ $tcp -le 300000 ]
}

# Retransmissions come after 134 ms. Where the emulated machine gets half a CPU an answer may take longer than the 4 ms that
# would do otherwise, and Soft-RoCE does not always survive a retransmission while the original is still in flight: the
# other end may report "remote invalid request". So tests that need no packet loss use half a second.
lossy() {
  local i status=0
  for i in 1 2; do tc qdisc add dev v$i root netem loss 1% || return 1; done
  job 2 TUTTI_IB_TIMEOUT=15 -- all_reduce -b 64K -e 1M -f 4 -n 3 || status=1
  note="$(tc -s qdisc show dev v1 | grep -o 'dropped [0-9]*') of $(tc -s qdisc show dev v1 | grep -o '[0-9]* pkt')"
  echo "$note"
  for i in 1 2; do tc qdisc del dev v$i root; done
  [ "${note#dropped 0}" = "$note" ] && return $status
}

# Until rank 0 has printed rows: from then on it works for a long time.
at_work() {
  local i
  for i in $(seq 100); do
    [ "$(rdma_bytes)" -gt $((${before:-0} + 20000000)) ] && return 0
    sleep 0.1
  done
  echo "the ranks do not get to work"
  return 1
}

killed() {
  local status=0
  before=$(rdma_bytes)
  start_job 2 -- all_reduce -b 4M -e 4M -n 100000 -c 0 -w 0
  at_work || return 1
  kill -9 "${pids[1]}"
  wait "${pids[0]}" && { echo "rank 0 ended well"; status=1; }
  cat "$out.0"
  note=$(grep -o 'rank 1[^;]*' "$out.0" | head -1)
  [ -n "$note" ] && return $status
}

# Nothing arrives for a while, in the middle of a job, which then goes on.
pauses() {
  local pid status=0
  before=$(rdma_bytes)
  start_job 2 -- all_reduce -b 4M -e 4M -n 20 -c 1
  at_work || return 1
  tc qdisc add dev v1 root netem loss 100%
  sleep 0.5
  tc qdisc del dev v1 root
  for pid in "${pids[@]}"; do wait "$pid" || status=1; done
  cat "$out".[0-9]
  [ $status = 0 ] && grep -q '^# Out of bounds values : 0 OK' "$out.0"
}

# breaks REASON COMMAND...: the command breaks the link for good. Both ranks end with an error; the one that notices first
# names the peer, the port and the reason.
breaks() {
  local status=0 pid reason=$1
  shift
  before=$(rdma_bytes)
  start_job 2 TUTTI_IB_TIMEOUT=15 TUTTI_OP_TIMEOUT=60 -- all_reduce -b 4M -e 4M -n 100000 -c 0 -w 0
  at_work || return 1
  "$@"
  for pid in "${pids[@]}"; do wait "$pid" && status=1; done
  cat "$out".[0-9]
  note=$(grep -ho "verbs link with rank [01]: rxe[12]:1: .*$reason" "$out".[01] | head -1)
  [ -n "$note" ] && return $status
}

# moves COMMAND OPTIONS...: the command breaks one of two wires, in the middle of a job. The operations go on over the
# other one, and a rank reports that, with the wire's name.
moves() {
  local pid status=0 command=$1
  shift
  before=$(rdma_bytes)
  start_job 2 TUTTI_IB_TIMEOUT=15 TUTTI_OP_TIMEOUT=60 "$@"
  at_work || return 1
  $command
  for pid in "${pids[@]}"; do wait "$pid" || status=1; done
  cat "$out".[0-9]
  note=$(grep -ho "rank [01] warn: verbs link with rank [01]: rxe[1-4]:1: [^;.(]*" "$out".[01] | head -1)
  [ $status = 0 ] && [ -n "$note" ] && grep -q '^# Out of bounds values : 0 OK' "$out.0"
}

# The broken wire's ports are up, so it is tried again and again, which may stop a rank for a second each time: therefore
# at growing intervals.
tries_seldom() {
  local tries
  moves "$@" || return 1
  tries=$(cat "$out".[01] | grep -c "it still cannot be reached through\|Its messages now take")
  note="$tries times, $note"
  [ "$tries" -le 80 ]
}

# until_true SECONDS COMMAND...
until_true() {
  local i
  for i in $(seq $(($1 * 20))); do
    "${@:2}" && return 0
    sleep 0.05
  done
  echo "this has not come about in $1 s: ${*:2}"
  return 1
}
has_sent() { [ "$(sent_packets "$1")" -ge "$2" ]; }       # device, packets
have_said() { [ "$(grep -hc "$1" "$out.0")" -ge "$2" ]; }  # rank 0, what, times

# One of two wires is cut and repaired, twice, during work: the other one carries everything, then both share it.
mends() {
  local pid status=0 turn others shares=""
  start_job 2 TUTTI_IB_TIMEOUT=17 TUTTI_OP_TIMEOUT=60 TUTTI_LOG=info -- all_reduce -b 4M -e 4M -n "$1" -c 1
  for turn in 1 2; do
    until_true 40 has_sent 1 $(($(sent_packets) + 5000)) || status=1
    ip link set v1 down
    until_true 30 have_said "Its messages now take" $turn || status=1
    others=$(sent_packets 3)
    until_true 40 has_sent 3 $((others + 10000)) || status=1
    ip link set v1 up
    until_true 30 have_said "carries its share again" $turn || status=1
    others=$(sent_packets 3)
    until_true 40 has_sent 1 $(($(sent_packets) + 5000)) || status=1
    shares+="5000 packets of rxe1 beside $(($(sent_packets 3) - others)) of rxe3; "
    [ $status = 0 ] || break
  done
  ip link set v1 up
  for pid in "${pids[@]}"; do
    [ $status = 0 ] || kill "$pid"
    wait "$pid" || status=1
  done
  cat "$out".[0-9]
  note=${shares%; }
  [ $status = 0 ] && grep -q '^# Out of bounds values : 0 OK' "$out.0"
}

wrong_setting() {  # expected text, then the setting
  local expected=$1
  shift
  job 2 TUTTI_TRANSPORTS=verbs "$@" -- all_reduce -b 64 -e 64 -n 1 && return 1
  grep -q "$expected" "$out.0"
}

two_hosts
check "verbs, with a device" catch "$build/tests/verbs/test_verbs"
check "contract, one device" catch env TUTTI_IB_HCA==rxe1 "$build/tests/transports/tutti-transport-test"
check "contract, two devices with two queue pairs each" catch env TUTTI_IB_QPS=2 "$build/tests/transports/tutti-transport-test"
check "bytes on the wire" counts TUTTI_LOG=info
check "bytes on the wire, registered memory" counts
# Operations that are larger than their room take long here, and go the same way piece by piece. The GPUs are made up, with
# memory that is a memfd each. A stand-in accepts that as a dmabuf; everything else is done by the devices.
check "from GPU memory to GPU memory (made up, dmabufs by a stand-in)" catch env LD_PRELOAD="$build/tests/verbs/dmabuf_preload.so" \
  DIRECT_TEST_PLUGIN="$build/libtutti-verbs.so" "$build/tests/cuda/test_cuda" "[network]~operations that are larger*"
for tool in all_reduce broadcast sendrecv; do
  check "$tool, 2 ranks, 0 B to 16 MiB" job 2 -- $tool -b 0 -e 16M -f 16 -n 1 -w 0
  check "$tool, 4 ranks, 0 B to 1 MiB" job 4 -- $tool -b 0 -e 1M -f 16 -n 1 -w 0
done
check "all_reduce, registered memory, four queue pairs" job 2 TUTTI_IB_QPS=4 -- all_reduce -b 0 -e 4M -f 16 -n 1 -R 1
check "1 % of the packets lost" lossy
check "a rank is killed" killed
check "nothing arrives for half a second" pauses
# Soft-RoCE may take what was still under way for an invalid request, which the other end learns of at once.
check "nothing arrives any more" breaks "\(no answer after all retries\|the device has ended this connection\)" tc qdisc add dev v1 root netem loss 100%
tc qdisc del dev v1 root
check "a port goes down" breaks "the port is down" ip link set v1 down
ip link set v1 up
check "the port is up again" job 2 -- all_reduce -b 64K -e 64K -n 1
check "no such device" wrong_setting "no port of an RDMA device can be used (TUTTI_IB_HCA=nix): it excludes all that there are: rxe" \
  TUTTI_IB_HCA=nix
check "no such GID" wrong_setting "TUTTI_IB_GID_INDEX=200" TUTTI_IB_GID_INDEX=200
wire 3 4
rails=2
check "two wires" job 2 -- all_reduce -b 64K -e 16M -f 16 -n 1
check "two wires, one is cut and mended, twice" mends 40
check "two wires, one goes down" moves "ip link set v1 down" -- all_reduce -b 4M -e 4M -n 30 -c 1
ip link set v1 up
check "two wires, nothing arrives by one, registered memory" tries_seldom "tc qdisc add dev v1 root netem loss 100%" TUTTI_LOG=info -- all_reduce -b 4M -e 4M -n 30 -c 1 -R 1
echo "$passed passed, $failed failed"
[ $failed = 0 ]
