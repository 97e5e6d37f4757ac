#!/bin/sh
# launcher.sh FOLDER: ranks from a launcher's environment, which is written by hand here.
set -u
tool=$1/all_reduce_perf
# shellcheck source=tests/tools/checks.sh
. "$(dirname "$0")/checks.sh"
port=$((20000 + $$ % 20000))

launch() {
  for rank in 0 1 2; do
    TUTTI_RANK=$rank TUTTI_NRANKS=3 TUTTI_ROOT=127.0.0.1:$port TUTTI_SECRET=between-us \
      "$tool" -b 0 -e 64K -f 16 "$@" >"$tmp/$rank" 2>&1 &
    eval "pid$rank=\$!"
  done
  for rank in 0 1 2; do
    eval "wait \$pid$rank" || {
      echo "rank $rank with '$*' failed"
      cat "$tmp"/?
      exit 1
    }
  done
}

launch
grep -q '^# Out of bounds values : 0 OK' "$tmp/0" || exit 1
[ "$(grep -c 'Rank .* Pid' "$tmp/0")" -eq 3 ] || exit 1
# No other output: on a busy machine rank 0 may come late, and the others wait for it.
! grep -v "rank 1 warn: rank 1 has not reached the group's root for " "$tmp/1" || exit 1

port=$((port + 1))
launch -t 2
[ "$(grep -c 'Rank .* Pid' "$tmp/0")" -eq 6 ] || exit 1
grep -q '^# Out of bounds values : 0 OK' "$tmp/0" || exit 1

# Each of the launcher's processes would fork a job of its own, and measure it while the others do the same.
unset RANK WORLD_SIZE OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE PMI_RANK PMI_SIZE PMIX_RANK SLURM_PROCID SLURM_NTASKS \
  SLURM_STEP_ID
run env OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 "$tool" --procs 2 -b 8 -e 8
check "--procs in each of a launcher's processes" 2 'procs starts 2 ranks, but a launcher started several processes (OMPI_COMM_WORLD_SIZE=2)'
check "its remedies" 2 'leave out --procs, .* or start one process (mpirun -np 1; .* env -u OMPI_COMM_WORLD_SIZE)'
run env PMIX_RANK=1 "$tool" --procs 2 -b 8 -e 8
check "--procs under a launcher that does not say how many" 2 '(PMIX_RANK=1)'
run env SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_STEP_ID=0 "$tool" --procs 2 -b 8 -e 8
check "--procs in the shell of srun --pty" 0 '# Out of bounds values : 0 OK'
run env SLURM_PROCID=0 SLURM_NTASKS=4 "$tool" --procs 2 -b 8 -e 8
check "--procs in a batch script of Slurm's" 0 '# Out of bounds values : 0 OK'
exit $failures
