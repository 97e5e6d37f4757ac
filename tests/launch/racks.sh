#!/usr/bin/env bash
# Four hosts in two racks that are joined at 200 Mb/s; four one of which is slow; four that are described as 1 ms apart; and
# four at two sites with a round trip of 20 ms: network namespaces at 1 Gb/s, with one rank each in the worst order.
# tutti-tune measures racks, speeds and distances, and its file tells the library.
#   racks.sh PERF_DIR TUTTI_TUNE FAR            test: counts the bytes that a 2 MiB all-reduce sends between racks, from a
#                                               slow host and between sites
#   racks.sh PERF_DIR TUTTI_TUNE FAR --bench    prints times as well, with and without the file
# Exits 77 (skipped) with the reason where root, ip, tc or namespaces are missing.
set -u
perf=$1/all_reduce_perf tune=$(realpath "$2") far=$3 bench=${4:-}
# shellcheck source=tests/launch/hosts.sh
. "$(dirname "$0")/hosts.sh"
out=$(mktemp)
export TUTTI_SECRET=racks TUTTI_INIT_TIMEOUT=60 TUTTI_LOG=info
hosts 4 1 10.85
command -v tc >/dev/null || skip "tc is not installed (Debian: iproute2)"
limit() { tc -n "$1" qdisc replace dev "$2" root tbf rate "$3" burst 64kb latency 50ms || skip "tc has no tbf here"; }
speed() { limit "$(host "$1")" nic1 "$2"; limit "$(host 0)" "h$1-1" "$2"; }
for i in 1 2 3 4; do speed $i 1gbit; done

# Hosts 3 and 4 get their own switch; up1 and up2 are the two ends of the cable between the racks.
switch=$(host 0)
ip -n "$switch" link add net2 up type bridge
ip -n "$switch" link add up1 up master net1 type veth peer name up2
ip -n "$switch" link set up2 up master net2
for i in 3 4; do ip -n "$switch" link set h$i-1 master net2; done

# on_all TUNING_FILE PROGRAM OPTIONS...: ranks 0 to 3 on hosts 1, 3, 2, 4
on_all() {
  local file=$1 rank status=0
  local -a pids=() at=(1 3 2 4)
  shift
  port=$((${port:-29900} + 1))
  for rank in 0 1 2 3; do
    on "${at[rank]}" unshare --uts sh -c 'hostname "$1"; shift; exec "$@"' - "h${at[rank]}" \
      env TUTTI_RANK=$rank TUTTI_NRANKS=4 TUTTI_ROOT=10.85.1.1:$port TUTTI_TUNE_FILE="$file" \
      timeout 100 "$@" >"$out.rank$rank" 2>&1 &
    pids+=($!)
  done
  for rank in 0 1 2 3; do wait "${pids[$rank]}" || status=1; done
  [ $status = 0 ] || { cat "$out".rank?; fail "$*"; }
}
job() { # tuning file, perf options
  on_all "$1" "$perf" "${@:2}"
  grep -q '^# Out of bounds values : 0 OK' "$out.rank0" || { cat "$out".rank?; fail "$perf $*"; }
}
# measure NAME PATTERN...: writes a description of the network, with lines that match the patterns, and a tuning file for it
measure() {
  local file=$out.$1.json pattern
  on_all /dev/null env -C "${file%/*}" "$tune" --network "${file##*/}"
  grep '^[# ] ' "$out.rank0"
  grep -q "network = $file\$" "$out.rank0" || fail "the line that names the file does not say where it is"
  for pattern in "${@:2}"; do
    tr -d ' \n' <"$file" | grep -qE "$pattern" || { cat "$file"; fail "what was measured has no $pattern"; }
  done
  echo "network = $file" >"$out.$1"
}
sent() { ip netns exec "$1" cat "/sys/class/net/$2/statistics/tx_bytes"; }
# of_each FILE NAMESPACE DEVICE BYTES: what the device sends for one all-reduce, in percent of its bytes: from eight
# additional ones out of place and in place, so that other traffic does not count
of_each() {
  local before few
  before=$(sent "$2" "$3")
  job "$1" -b "$4" -e "$4" -n 2 -w 1 -c 1
  few=$(($(sent "$2" "$3") - before))
  before=$(sent "$2" "$3")
  job "$1" -b "$4" -e "$4" -n 6 -w 1 -c 1
  share=$((($(sent "$2" "$3") - before - few) * 100 / (8 * $4)))
}
times() { # what it is, file, perf options
  job "$2" "${@:3}"
  awk -v what="$1" '/^ *[0-9]/ { printf "%-40s %10d B %12s us\n", what, $1, $6 }' "$out.rank0"
}

compare() { # what it is, file, sizes: with --bench, the times with the file and without it in turns
  [ "$bench" = --bench ] || return 0
  local round
  for round in 1 2 3; do
    times "$1, round $round, described" "$2" "${@:3}" -f 4 -n 3 -c 0
    times "$1, round $round, unknown" /dev/null "${@:3}" -f 4 -n 3 -c 0
  done
}

limit "$switch" up1 200mbit
limit "$switch" up2 200mbit
# Clocks of different machines cannot tell which rank came first, however often they are compared.
on_all /dev/null "$1/barrier_perf" -n 1 -c 32
[ "$(awk '$1 == 0 && $5 == -1 { print $9 }' "$out.rank0")" = N/A ] || { cat "$out.rank0"; fail "barriers of several machines are checked"; }

measure racks '"racks":2,"hosts_per_rack":2,' '"hosts":\["h1","h2","h3","h4"\]' '"rack":\{"gbit_per_s":0\.[12]' \
  '"exceptions":\[\]'
of_each "$out.racks" "$switch" up1 2097152
grep -q 'order of ranks: 0 | 2 || 1 | 3' "$out.rank0" || { cat "$out.rank0"; fail "the order of ranks does not know the racks"; }
echo "two racks: $share % of an all-reduce's bytes go from one to the other"
[ "$share" -ge 90 ] && [ "$share" -le 110 ] || fail "not 90 to 110 %"
compare "two racks" "$out.racks" -b 256K -e 4M

limit "$switch" up1 1gbit
limit "$switch" up2 1gbit
speed 4 100mbit
measure slow '"racks":1,"hosts_per_rack":4,' '"exceptions":\[\{"host":3,"gbit_per_s":(0\.1|0\.09)'
of_each "$out.slow" "$(host 4)" nic1 1048576
echo "a slow host: sends $share % of an all-reduce's bytes"
[ "$share" -ge 90 ] && [ "$share" -le 112 ] || fail "not 90 to 112 %"
compare "a slow host" "$out.slow" -b 64K -e 1M

speed 4 1gbit
echo '{"racks": 1, "hosts_per_rack": 4, "ranks_per_host": 1, "hosts": ["h1", "h2", "h3", "h4"],
  "local": {"gbit_per_s": 100, "latency_us": 1}, "nic": {"gbit_per_s": 1, "latency_us": 1000}}' >"$out.lanes.json"
echo "network = $out.lanes.json" >"$out.lanes"
job "$out.lanes" -b 256K -e 4M -f 16 -n 2 -w 1 -c 1 --explain
[ "$(grep -c 'in two lanes, ' "$out.rank0")" = 1 ] && grep -q 'AllReduce of 4194304 .* in two lanes, ' "$out.rank0" ||
  { cat "$out.rank0"; fail "4 MiB are not, or 256 KiB are in two lanes between hosts that are 1 ms apart"; }

ip -n "$switch" link del up1
for end in 1 2; do
  ip -n "$switch" link add up$end up master net$end type veth peer name end$end
  ip -n "$switch" link set end$end up
done
lay_cable "$far" 4 end1 end2 10 0
measure sites '"racks":2,"hosts_per_rack":2,' '"rack":\{"gbit_per_s":[0-9.]*,"latency_us":1[0-9]{4}'
of_each "$out.sites" "$switch" up1 4194304
echo "two sites: $share % of an all-reduce's bytes go from one to the other"
[ "$share" -ge 90 ] && [ "$share" -le 110 ] || fail "not 90 to 110 %"
job /dev/null -b 8 -e 8 -n 1 -w 1
grep -Eq 'hosts are far apart, 1[0-9]\.[0-9] ms' "$out.rank0" || { cat "$out.rank0"; fail "nobody has noticed how far the sites are"; }
compare "two sites" "$out.sites" -b 1K -e 16M
echo "ok: racks, slow hosts and sites"
