# shellcheck shell=bash disable=SC2034  # what it sets is for who sources it
# To be sourced: two network namespaces that stand for two hosts, joined by a veth pair.
#   skip REASON...    ends the test as skipped
#   fail REASON...    ends it as failed
#   two_hosts SUBNET  makes them (needs root): namespaces $a and $b, with the addresses SUBNET.1 and SUBNET.2 on the
#                     devices $va and $vb. They are removed when the script ends, and so are $out and the files $out.*
#   hosts N NICS SUBNET
#                     makes N namespaces, host 1 2 3 ... (needs root), joined by NICS networks: SUBNET.K.I is the address of
#                     host I's device nicK. They are removed when the script ends, and so are $out and the files $out.*
#   host I            the name of host I's namespace
#   on I COMMAND...   runs a command there
#   lay_cable FAR N A B MILLISECONDS PERCENT
#                     joins two devices of host 0, behind which the N hosts are, by a cable with this one-way delay and
#                     this packet loss

skip() { echo "skipped: $*"; exit 77; }
fail() { echo "FAILED: $*"; exit 1; }

two_hosts() {
  local subnet=$1 ns
  [ "$(id -u)" = 0 ] || skip "making network namespaces needs root"
  command -v ip >/dev/null || skip "ip is not installed (Debian: iproute2)"
  a=tutti-a-$$ b=tutti-b-$$ va=ta$$ vb=tb$$
  ip netns add "$a" 2>/dev/null || skip "network namespaces cannot be made here"
  trap 'ip netns del "$a"; ip netns del "$b"; rm -rf "$out" "$out".*' EXIT
  ip netns add "$b"
  ip link add "$va" netns "$a" type veth peer name "$vb" netns "$b" || skip "veth pairs cannot be made here"
  ip -n "$a" addr add "$subnet.1/24" dev "$va" && ip -n "$b" addr add "$subnet.2/24" dev "$vb"
  for ns in "$a" "$b"; do ip -n "$ns" link set lo up; done
  ip -n "$a" link set "$va" up && ip -n "$b" link set "$vb" up
}

host() { echo "tutti-$$-$1"; }
on() { local i=$1; shift; ip netns exec "$(host "$i")" "$@"; }

hosts() {
  local n=$1 nics=$2 subnet=$3 i k
  [ "$(id -u)" = 0 ] || skip "making network namespaces needs root"
  command -v ip >/dev/null || skip "ip is not installed (Debian: iproute2)"
  ip netns add "$(host 0)" 2>/dev/null || skip "network namespaces cannot be made here"  # the switches
  # with the current number of hosts
  trap "[ -z \"\${cable-}\" ] || kill \$cable; for i in \$(seq 0 $n); do ip netns del \$(host \$i) 2>/dev/null; done; rm -rf \"\$out\" \"\$out\".*" EXIT
  for k in $(seq "$nics"); do
    ip -n "$(host 0)" link add net$k up type bridge 2>/dev/null || skip "bridges cannot be made here"
  done
  for i in $(seq "$n"); do
    ip netns add "$(host "$i")"
    ip -n "$(host "$i")" link set lo up
    for k in $(seq "$nics"); do
      ip -n "$(host 0)" link add h$i-$k up master net$k type veth peer name nic$k netns "$(host "$i")"
      ip -n "$(host "$i")" addr add "$subnet.$k.$i/24" dev nic$k
      ip -n "$(host "$i")" link set nic$k up
    done
  done
}

lay_cable() {
  local far=$1 n=$2 a=$3 b=$4 delay=$5 percent=$6 lossy i
  lossy=$(dirname "${BASH_SOURCE[0]}")/lossy.py
  for i in $(seq "$n"); do
    on "$i" python3 "$lossy" --plain nic1 2>"$out.plain" || skip "no plain packets here: $(tail -1 "$out.plain")"
  done
  ip netns exec "$(host 0)" "$far" "$a" "$b" "$delay" "$percent" 1 2>"$out.cable" &
  cable=$!
  sleep 0.2
  kill -0 $cable 2>/dev/null || skip "no packet sockets here: $(cat "$out.cable")"
}
