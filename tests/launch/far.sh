#!/usr/bin/env bash
# Two hosts that are far apart: network namespaces, a cable with a delay and losses. A benchmark: the rate of all-reduces,
# and of parallel iperf3 streams in both directions.
#   far.sh FAR TOOLS_DIR [MILLISECONDS [PERCENT [STREAMS [MBITS]]]]
# MILLISECONDS is the round trip. STREAMS 0: no iperf3. With DESCRIBED=1 a file tells the library the speed and distance.
# Exits 77 (skipped) with the reason where root, ip, tc, namespaces, iperf3 or packet sockets are missing.
set -u
far=$1 perf=$2/all_reduce_perf delay=${3:-80} percent=${4:-0.01} streams=${5:-16} mbits=${6:-200}
here=$(dirname "$0")
# shellcheck source=tests/launch/hosts.sh
. "$here/hosts.sh"
for command in tc iperf3 python3; do
  command -v $command >/dev/null || skip "$command is not installed (Debian: iproute2, iperf3, python3)"
done
out=$(mktemp)
tuning=/dev/null
if [ -n "${DESCRIBED:-}" ]; then
  tuning=$out.tuning
  echo "network = $out.json" >"$tuning"
  printf '{"racks": 1, "hosts_per_rack": 2, "ranks_per_host": 1, "hosts": ["h1", "h2"], "local": {"gbit_per_s": 100, "latency_us": 1},
    "nic": {"gbit_per_s": %s, "latency_us": %s}}' "$(python3 -c "print($mbits / 1000)")" "$(python3 -c "print($delay * 500)")" >"$out.json"
fi
hosts 2 1 10.85
for i in 1 2; do
  ip -n "$(host 0)" link set h$i-1 nomaster
  tc -n "$(host $i)" qdisc add dev nic1 root tbf rate "${mbits}mbit" burst 32kb latency 100ms || skip "tc has no tbf here"
done
lay_cable "$far" 2 h1-1 h2-1 "$(python3 -c "print($delay / 2)")" "$percent"

if [ "$streams" != 0 ]; then
  on 2 iperf3 -s -1 >"$out.server" 2>&1 &
  sleep 0.5
  on 1 iperf3 -c 10.85.1.2 -P "$streams" -t 20 --bidir -J >"$out.iperf" 2>&1 || { tail -5 "$out.iperf"; fail "iperf3"; }
fi
for rank in 0 1; do
  on $((rank + 1)) unshare --uts sh -c 'hostname "$1"; shift; exec "$@"' - h$((rank + 1)) \
    env TUTTI_RANK=$rank TUTTI_NRANKS=2 TUTTI_ROOT=10.85.1.1:29850 TUTTI_SECRET=far TUTTI_TUNE_FILE="$tuning" timeout -s KILL 300 "$perf" -b 1M -e 64M -f 4 -n 5 -w 2 -c 0 >"$out.$rank" 2>&1 &
  pids[rank]=$!
done
for rank in 0 1; do wait "${pids[$rank]}" || { cat "$out".?; fail "rank $rank"; }; done
python3 - "$out.iperf" "$out.0" <<PYTHON
import json, sys
theirs, line = $mbits, "$delay ms, $percent % lost, $mbits Mb/s"
if $streams:
    end = json.load(open(sys.argv[1]))["end"]
    theirs = min(end[name]["bits_per_second"] for name in ("sum_received", "sum_received_bidir_reverse")) / 1e6
    line += f": $streams streams of iperf3 {theirs:.0f} Mb/s each way"
print(line)
for row in (line.split() for line in open(sys.argv[2])):
    if row and row[0].isdigit():
        ours = 8 * int(row[0]) / float(row[5])
        print(f"  all-reduce of {int(row[0]) >> 20:2} MiB {float(row[5]) / 1e6:6.3f} s, {ours:4.0f} Mb/s: {100 * ours / theirs:3.0f} %")
PYTHON
