#!/usr/bin/env bash
# Runs the jobs of tools/jobs unchanged, on network namespaces that stand for machines.
#   jobs.sh slurm|torchrun|mpirun|ray LIBTUTTI PERF_FOLDER
# Exits 77 (skipped) with the reason where the launcher, torch, or the right to make namespaces is missing.
set -u
launcher=$1 library=$2 perf=$3 here=$(dirname "$(realpath "$0")")
tree=$here/../.. build=$(dirname "$library")
# shellcheck source=tests/launch/hosts.sh
. "$here/hosts.sh"
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# What the machines have installed: the tools by their installed names, and a Python with torch.
mkdir "$out/bin"
ln -s "$perf/all_reduce_perf" "$out/bin/tutti-all-reduce-perf"
printf '#!/bin/sh\nhostname "$1" && mount --bind %s/etc_hosts /etc/hosts && shift && exec "$@"\n' "$out" >"$out/bin/become"
chmod +x "$out/bin/become"
for python in "${TUTTI_PYTHON:-}" "$build/torch-venv/bin/python" python3; do
  command -v "$python" >/dev/null && "$python" -c 'import torch' 2>/dev/null && break
  python=
done
torch_is_there() { [ -n "$python" ] || skip "there is no Python with torch (tools/check --torch installs one)"; }
if [ -n "$python" ]; then printf '#!/bin/sh\nexec %s "$@"\n' "$(realpath -s "$(command -v "$python")")" >"$out/bin/python3"; fi
[ ! -f "$out/bin/python3" ] || chmod +x "$out/bin/python3"
export PATH=$out/bin:$PATH PYTHONPATH=$tree/lib/torch TUTTI_LIBRARY=$library OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1

# node I COMMAND...: runs it on machine I, under the machine's name
node() {
  local i=$1
  shift
  nsenter --net="/run/netns/$(host "$i")" unshare --uts --mount "$out/bin/become" "node$i" "$@"
}
# nodes N SUBNET: makes the machines, which know each other by name
nodes() {
  local i
  hosts "$1" 1 "$2"
  { echo "127.0.0.1 localhost"; for i in $(seq "$1"); do echo "$2.1.$i node$i"; done; } >"$out/etc_hosts"
  made=$1
  trap 'clean_up' EXIT
}
clean_up() {
  local i pid
  for pid in $daemons; do kill "$pid" 2>/dev/null && wait "$pid" 2>/dev/null; done
  for i in $(seq 0 "$made"); do ip netns del "$(host "$i")" 2>/dev/null; done
  rm -rf "$out"
}
daemons='' made=0

# has FILE PATTERN...
has() {
  local file=$1
  shift
  for pattern in "$@"; do grep -Eq "$pattern" "$file" || { cat "$file" "$out"/*.log 2>/dev/null; fail "nothing there says: $pattern"; }; done
}
well_trained='^4 ranks: loss 0\.[0-9]+$' well_reduced='^# Out of bounds values : 0 OK'

case $launcher in
  torchrun)
    torch_is_there
    nodes 2 10.85
    torchrun="python3 -m torch.distributed.run"
    command=$(sed -n 's/.*`torchrun \(--nnodes.*train.py\)`.*/\1/p' "$tree/tools/jobs/README.md")
    [ -n "$command" ] || fail "tools/jobs/README.md has no torchrun command"
    command=${command/FIRST/node1}
    cd "$tree" || exit
    # shellcheck disable=SC2086  # words
    node 2 timeout 100 $torchrun ${command/node-rank 0/node-rank 1} >"$out/second.log" 2>&1 &
    # shellcheck disable=SC2086
    node 1 timeout 100 $torchrun $command >"$out/out" 2>&1 || { cat "$out/out" "$out/second.log"; fail "the first agent"; }
    wait $! || { cat "$out/second.log"; fail "the second agent"; }
    has "$out/out" "$well_trained"
    ;;
  mpirun)
    command -v mpirun.openmpi >/dev/null || skip "mpirun.openmpi is not installed (Debian: openmpi-bin)"
    nodes 2 10.86
    printf 'node1 slots=2\nnode2 slots=2\n' >"$out/hosts"
    # Instead of ssh.
    cat >"$out/bin/agent" <<AGENT
#!/bin/bash
i=\${1#node}; shift
exec nsenter --net=/run/netns/tutti-$$-\$i unshare --uts --mount "$out/bin/become" node\$i sh -c "\$*"
AGENT
    chmod +x "$out/bin/agent"
    command=$(sed -n 's/.*`mpirun \(--hostfile.*\)` |$/\1/p' "$tree/tools/jobs/README.md")
    [ -n "$command" ] || fail "tools/jobs/README.md has no mpirun command"
    # shellcheck disable=SC2086
    node 1 timeout 100 mpirun.openmpi --allow-run-as-root --mca plm_rsh_agent "$out/bin/agent" -x PATH -x TUTTI_LOG=info \
      ${command/HOSTS/$out/hosts} >"$out/out" 2>&1 || { cat "$out/out"; fail "mpirun"; }
    has "$out/out" "$well_reduced" 'through tcp, because shm: it is on another host'
    [ "$(grep -c '^#  Rank' "$out/out")" = 4 ] || { cat "$out/out"; fail "there are not 4 ranks"; }
    ;;
  slurm)
    for program in slurmctld slurmd sbatch munged; do
      command -v $program >/dev/null || skip "$program is not installed (Debian: slurmctld slurmd slurm-client munge)"
    done
    torch_is_there
    nodes 2 10.87
    mkdir "$out/state" "$out/spoolnode1" "$out/spoolnode2" "$out/munge"
    chmod 755 "$out"
    dd if=/dev/urandom of="$out/munge/key" bs=128 count=1 2>/dev/null
    chmod 700 "$out/munge" && chmod 400 "$out/munge/key"
    munged --foreground --force --key-file "$out/munge/key" --socket "$out/munge.socket" --pid-file "$out/munge/pid" \
      --log-file "$out/munge/log" --seed-file "$out/munge/seed" >"$out/munged.log" 2>&1 &
    daemons=$!
    cat >"$out/slurm.conf" <<CONF
ClusterName=tutti
SlurmctldHost=node1
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$out/munge.socket
StateSaveLocation=$out/state
SlurmdSpoolDir=$out/spool%n
SlurmctldPidFile=$out/slurmctld.pid
SlurmdPidFile=$out/slurmd.%n.pid
SlurmctldLogFile=$out/slurmctld.log
SlurmdLogFile=$out/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
NodeName=node[1-2] CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES OverSubscribe=FORCE MaxTime=INFINITE State=UP
CONF
    export SLURM_CONF=$out/slurm.conf
    node 1 slurmctld -D >"$out/ctld.log" 2>&1 &
    daemons="$daemons $!"
    for i in 1 2; do
      node $i slurmd -D >"$out/slurmd$i.log" 2>&1 &
      daemons="$daemons $!"
    done
    cd "$tree" || exit
    for _ in $(seq 300); do
      [ "$(node 1 sinfo -h -o '%D %t' 2>/dev/null)" = "2 idle" ] && break
      sleep 0.1
    done
    node 1 timeout 150 sbatch --wait --output "$out/out" tools/jobs/slurm.sbatch tools/jobs/train.py ||
      { cat "$out/out" "$out"/*.log; fail "sbatch"; }
    has "$out/out" "$well_reduced" "$well_trained" ' on +node1 ' ' on +node2 '
    ;;
  ray)
    torch_is_there
    "$python" -c 'import ray.train' 2>/dev/null || skip "$python has no ray (pip install 'ray[train]')"
    # Ray's workers only know a backend that is installed.
    TUTTI_PYTHON=$python timeout 200 "$tree/tests/torch/run.sh" "$library" "$tree/tools/jobs/ray_train.py" 2 >"$out/out" 2>&1 ||
      { cat "$out/out"; fail "ray_train.py"; }
    has "$out/out" '2 ranks: loss 0\.[0-9]+'
    ;;
  *) fail "unknown launcher $launcher" ;;
esac
cat "$out/out"
echo "ok: $launcher"
