#!/usr/bin/env bash
# How good the library's choices are: each group measures six collectives with every algorithm and with the library's choice.
#   regret.sh TUTTI_TUNE [-o FOLDER] [-r JOBS] [GROUP...] [-- TUTTI_TUNE OPTIONS]
# A group is shm:N or tcp:N, of N ranks on this host; or HOSTSxRANKS or RANKS+RANKS+..., of network namespaces that are
# joined at 1 Gb/s in each direction (needs root). Without groups: those below. Each is measured by JOBS jobs (3), one
# after the other, because the system places each job's ranks on CPUs differently: that makes up to 1.6 times between
# two algorithms. Prints each job's table and finally a line for each group, of the medians. With -o the samples stay in
# FOLDER, for tutti-tune --fit.
set -u
here=$(dirname "$0")
tune=$1
shift
folder= jobs=3 groups=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  case $1 in
    -o) folder=$2; shift ;;
    -r) jobs=$2; shift ;;
    *) groups+=("$1") ;;
  esac
  shift
done
[ "${1:-}" = -- ] && shift
options=("$@")
[ ${#options[@]} -gt 0 ] || options=(-b 8 -e 64M -f 8 -n 5)
[ ${#groups[@]} -gt 0 ] || groups=(shm:2 shm:4 shm:8 tcp:2 tcp:4 4x1 2x2 4x2 3x1 5x1 7x1)
kept=$(mktemp -d)
mkdir -p "${folder:=$kept}"
export TUTTI_INIT_TIMEOUT=60

# The ranks are numbered host by host, as launchers do.
between_hosts() (
  # shellcheck source=tests/launch/hosts.sh
  . "$here/hosts.sh"
  out=$(mktemp)
  case $1 in
    *x*) for _ in $(seq "${1%x*}"); do ranks_of+=("${1#*x}"); done ;;
    *) IFS=+ read -ra ranks_of <<<"$1" ;;
  esac
  n=${#ranks_of[@]}
  hosts "$n" 1 10.78
  limit="tbf rate 1gbit burst 128kb latency 20ms"
  for i in $(seq "$n"); do
    # shellcheck disable=SC2086  # several words on purpose
    tc -n "$(host "$i")" qdisc add dev nic1 root $limit || skip "tc has no tbf here"
    # shellcheck disable=SC2086
    tc -n "$(host 0)" qdisc add dev "h$i-1" root $limit
  done
  host_of=()
  for i in $(seq "$n"); do for _ in $(seq "${ranks_of[i - 1]}"); do host_of+=("$i"); done; done
  for rank in $(seq $((${#host_of[@]} - 1)) -1 0); do
    on "${host_of[rank]}" env TUTTI_RANK="$rank" TUTTI_NRANKS=${#host_of[@]} TUTTI_ROOT=10.78.1.1:29700 \
      TUTTI_SECRET=regret "$tune" "${@:2}" >"$out.$rank" 2>&1 &
    [ "$rank" -gt 0 ] || rank_0=$!
  done
  wait "$rank_0" || { cat "$out".*; fail "rank 0"; }
  wait
  cat "$out.0"
)

measure() {  # GROUP SAMPLES
  case $1 in
    shm:* | tcp:*) "$tune" --check --procs "${1#*:}" --transport "${1%:*}" --samples "$2" "${options[@]}" ;;
    *x* | *+*) between_hosts "$1" --check --transport shm,tcp --samples "$2" "${options[@]}" ;;
    *) echo "'$1' is none of shm:N, tcp:N, HOSTSxRANKS, RANKS+RANKS" >&2; exit 2 ;;
  esac
}

for job in $(seq "$jobs"); do
  for group in "${groups[@]}"; do
    echo "== $group, job $job of $jobs"
    measure "$group" "$folder/${group/:/-}.$job.json"
  done
done
echo
for group in "${groups[@]}"; do
  verdict=$("$tune" --check --fit "$folder/${group/:/-}".*.json) || continue  # it was skipped
  verdict=${verdict#\# as it is: }
  printf '%-8s %s\n' "$group" "${verdict%%; of facts*}"
done
rm -rf "$kept"
