# shellcheck shell=bash disable=SC2034  # what it sets is for who sources it
# To be sourced in the guest, as root, with $build set:
#   check NAME COMMAND...   one test: counted in $passed or $failed, its output shown if it fails
#   two_hosts               namespaces h1 and h2 are two hosts with the RDMA devices rxe1 and rxe2, at the ends of a separate
#                           veth pair; ranks meet over another pair, with the addresses 10.9.0.1 and 10.9.0.2
#   wire A B                two more devices; with rails=2 set, host 1 has rxe1 and rxe3, host 2 rxe2 and rxe4
#   one_of_two              this guest is host $here, 1 or 2, with the RDMA device rxe$here; the other guest is the other host
#   job N [VAR=VALUE...] -- TOOL OPTIONS...
#                           N ranks of a perf tool, the first half of them on h1; output in $out.RANK. With $here set,
#                           only those of this host: the other guest must do the same

passed=0 failed=0 out=/tmp/verbs-out

check() {
  local name=$1 started=$EPOCHREALTIME
  shift
  if "$@" >"$out.check" 2>&1; then
    passed=$((passed + 1))
    printf 'ok      %5.1f s  %s%s\n' "$(seconds_since "$started")" "$name" "${note:+: $note}"
  else
    failed=$((failed + 1))
    printf 'FAILED  %5.1f s  %s\n' "$(seconds_since "$started")" "$name"
    tail -n 40 "$out.check"
  fi
  note=""
}
seconds_since() { awk -v from="$1" -v to="$EPOCHREALTIME" 'BEGIN { print to - from }'; }

# wire A B: RDMA devices rxeA and rxeB at the ends of a wire. They are in the first namespace, and serve all of them.
wire() {
  local i
  ip link add "v$1" mtu 4300 type veth peer name "v$2" mtu 4300
  for i in "$@"; do
    ip link set "v$i" up
    rdma link add "rxe$i" type rxe netdev "v$i"
  done
}

two_hosts() {
  local i
  wire 1 2
  ip link add e1 type veth peer name e2
  for i in 1 2; do
    ip netns add h$i
    ip link set e$i netns h$i
    ip -n h$i addr add 10.9.0.$i/24 dev e$i
    ip -n h$i link set lo up
    ip -n h$i link set e$i up
  done
}

# Ranks meet over the same device.
one_of_two() {
  ip link set eth0 mtu 4300 up
  ip addr add 10.9.0.$here/24 dev eth0
  rdma link add rxe$here type rxe netdev eth0
}

host_of() { echo $((1 + ($1 * 2 >= $2))); }  # rank, ranks

# rank R N PORT VAR=VALUE... -- TOOL OPTIONS...: becomes one rank of a job.
rank() {
  local rank=$1 ranks=$2 port=$3 host
  local -a settings=() namespace=()
  shift 3
  host=$(host_of "$rank" "$ranks")
  [ -n "${here:-}" ] || namespace=(ip netns exec h$host)
  while [ "$1" != -- ]; do settings+=("$1"); shift; done
  shift
  exec "${namespace[@]}" env TUTTI_RANK="$rank" TUTTI_NRANKS="$ranks" TUTTI_ROOT=10.9.0.1:"$port" \
    TUTTI_SECRET=guest TUTTI_TRANSPORTS=shm,verbs TUTTI_IB_HCA=="rxe$host${rails:+,rxe$((host + 2))}" \
    TUTTI_TUNE_FILE=/dev/null \
    "${settings[@]}" "$build/tools/perf/$1_perf" "${@:2}"
}

start_job() {
  local ranks=$1 r
  shift
  port=$((${port:-29400} + 1)) pids=()
  rm -f "$out".[0-9]
  for ((r = 0; r < ranks; r++)); do
    [ "${here:-$(host_of $r "$ranks")}" = "$(host_of $r "$ranks")" ] || continue
    (rank "$r" "$ranks" "$port" "$@") >"$out.$r" 2>&1 &
    pids+=($!)
  done
}

job() {
  local pid status=0
  start_job "$@"
  for pid in "${pids[@]}"; do wait "$pid" || status=1; done
  cat "$out".[0-9]
  [ $status = 0 ] && { [ ! -f "$out.0" ] || grep -q '^# Out of bounds values : 0 OK' "$out.0"; }
}
