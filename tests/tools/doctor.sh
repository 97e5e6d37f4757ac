#!/bin/sh
# doctor.sh TUTTI_DOCTOR: what it reports where all is well, where something is missing, and between ranks.
set -u
doctor=$1
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
failed=0
expect() {
  grep -qE -e "$1" "$tmp/out" || { echo "lacks: $1"; cat "$tmp/out"; failed=1; }
}

"$doctor" >"$tmp/out" 2>&1 || { echo "the exit status of a host where all is well is $?"; failed=1; cat "$tmp/out"; }
expect '^ok +data over shm +undamaged'
expect '^ok +data over tcp +undamaged'
expect '^ok +shared memory \(memfd\)'
"$doctor" >/dev/full 2>"$tmp/out" && { echo 'a full stdout is no error'; failed=1; }
expect 'stdout cannot be written'

cpus=$(nproc)
"$doctor" --ranks "$cpus" >"$tmp/out" 2>&1
expect "^ok +CPUs .* CPUs may be used, for $cpus ranks here"
"$doctor" --ranks $((cpus + 1)) >"$tmp/out" 2>&1
expect "^warn +CPUs .* for $((cpus + 1)) ranks here"
expect '-> run fewer ranks on this host'
if taskset 1 true 2>/dev/null; then
  taskset 1 "$doctor" --ranks 2 >"$tmp/out" 2>&1 || { echo 'one CPU for two ranks is an error'; failed=1; }
  expect '^warn +CPUs +1 of .* for 2 ranks here'
else
  echo 'skipped: one CPU for two ranks: taskset cannot choose the first CPU'
fi

(ulimit -n 100; "$doctor" --ranks 4 >"$tmp/out" 2>&1) && { echo 'too few descriptors are no error'; failed=1; }
expect '^BAD +open files'
expect '-> ulimit -n 320'

(ulimit -n 256; "$doctor" >"$tmp/out" 2>&1) || { echo 'a limit that is enough for one rank is an error'; cat "$tmp/out"; failed=1; }
expect '^warn +open files .* 256, of which each of 1 ranks may take 272'

TUTTI_SLOTS=1 "$doctor" >"$tmp/out" 2>&1 && { echo 'a wrong setting is no error'; failed=1; }
expect '^BAD +settings +TUTTI_SLOTS=1 is not valid'

RANK=1 WORLD_SIZE=2 MASTER_ADDR=localhost "$doctor" >"$tmp/out" 2>&1 || { echo 'half a launcher is an error'; failed=1; }
expect '^warn +launcher .*torchrun: MASTER_PORT is not set'
expect '-> only this host is checked'

TUTTI_TRACE_DIR=/nonexistent "$doctor" >"$tmp/out" 2>&1 || { echo 'a folder for traces is needed'; failed=1; }
expect '^warn +/nonexistent'

# On a host that cannot reach itself: the doctor also names what fails for that reason.
without_lo='ip link add tutti-lo0 type veth peer name tutti-lo1 && ip addr add 10.9.9.1/24 dev tutti-lo0 &&
  ip link set tutti-lo0 up && ip link set tutti-lo1 up'
if unshare -n sh -c "$without_lo" 2>/dev/null; then
  TUTTI_INIT_TIMEOUT=4 unshare -n sh -c "$without_lo && exec \"\$0\"" "$doctor" >"$tmp/out" 2>&1 && { echo 'lo that is down is no error'; failed=1; }
  expect '^BAD +network interfaces .*; lo is down'
  expect '-> ranks of one host need it: ip link set lo up'
  expect '^BAD +data over tcp .*connect to 127.0.0.1.*: ip link set lo up'
else
  echo 'skipped: a host that cannot reach itself: no network namespace with a pair of devices can be made'
fi

# In a cgroup whose parent has a quota, if one can be made.
group=$(sed -nE 's#^[0-9]+:(([^:]*,)?cpu(,[^:]*)?):(.*)#/sys/fs/cgroup/\1\4#p; s#^0::#/sys/fs/cgroup#p' /proc/self/cgroup |
  head -n 1)/tutti-doctor.$$
if mkdir -p "$group/inner" 2>/dev/null; then
  if (echo 100000 >"$group/cpu.cfs_period_us" && echo 150000 >"$group/cpu.cfs_quota_us") 2>/dev/null ||
    (echo '150000 100000' >"$group/cpu.max") 2>/dev/null; then
    # shellcheck disable=SC2016  # for the other shell
    sh -c 'echo $$ >"$1/cgroup.procs" && exec "$2"' sh "$group/inner" "$doctor" >"$tmp/out" 2>&1
    expect '^warn +CPU quota \(cgroup\) +1\.5 CPUs'
  else
    echo "skipped: a CPU quota: none can be set in $group"
  fi
  rmdir "$group/inner" "$group"
else
  echo "skipped: a CPU quota: $group cannot be made"
fi

# Ranks of a launcher; in all but the first call one of them has a different setting.
job() {
  port=$((20000 + ($$ + $1) % 20000))
  shift
  for rank in 0 1 2; do
    [ $rank -eq 2 ] && [ $# -gt 0 ] && export "$1"
    TUTTI_RANK=$rank TUTTI_NRANKS=3 TUTTI_ROOT=127.0.0.1:$port TUTTI_SECRET=between-us "$doctor" >"$tmp/$rank" 2>&1 &
    eval "pid$rank=\$!"
  done
  status=0
  for rank in 0 1 2; do eval "wait \$pid$rank" || status=1; done
  cat "$tmp/0" "$tmp/1" "$tmp/2" >"$tmp/out"
  return $status
}
job 0 || { echo 'a job where all is well fails'; failed=1; }
expect '^ok +data between 3 ranks on 1 hosts +every pair is connected, undamaged'
expect '^ok +the same everywhere'
[ "$cpus" -ge 3 ] || expect "^warn +CPUs +$cpus of .* for 3 ranks here"
(job 2 TUTTI_SOCKET_IFNAME=lo) || { echo "a host's own interface is an error"; failed=1; }
(job 1 TUTTI_OP_TIMEOUT=77) || { echo 'a setting that may differ is an error'; failed=1; }
expect '^warn +the same everywhere +ranks 0 and 2 have TUTTI_OP_TIMEOUT=1800 and TUTTI_OP_TIMEOUT=77'
(job 3 TUTTI_SLOT_BYTES=64K) && { echo 'a setting that must not differ is no error'; failed=1; }
expect "^BAD +the job's group .*TUTTI_SLOT_BYTES="
exit $failed
