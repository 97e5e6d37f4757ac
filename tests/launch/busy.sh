#!/usr/bin/env bash
# Ranks that are not bound to CPUs, beside processes that only use CPU time: a benchmark, not a test.
#   busy.sh FOLDER_OF_PERF_TOOLS [PROCESSES [RANKS [RUNS]]]
# Prints the median and the slowest of RUNS (default 7) of an all-reduce in microseconds, out of place and in place, over
# shared memory and TCP. A run that does not end within 20 s counts as endless.
set -u
tools=$1 processes=${2-1} ranks=${3-2} runs=${4-7}
trap 'kill $busy 2>/dev/null' EXIT
busy=
for _ in $(seq "$processes"); do
  sh -c 'while :; do :; done' &
  busy="$busy $!"
done
printf '%-10s %10s %10s %10s\n' transport bytes median slowest
for transport in shm tcp; do
  for of_size in 8:100000 4096:50000 40000:10000 262144:2000; do
    for _ in $(seq "$runs"); do
      timeout 20 "$tools/all_reduce_perf" -b "${of_size%:*}" -e "${of_size%:*}" -n "${of_size#*:}" -w 50 -c 0 \
        --transport $transport --procs "$ranks" | awk '!/^#/ && NF > 9 { print $6; print $10; some = 1 } END { if (!some) print "inf" }'
    done | sort -g | awk -v t=$transport -v b="${of_size%:*}" '{ v[NR] = $1 }
      END { printf "%-10s %10s %10s %10s\n", t, b, v[int((NR + 1) / 2)], v[NR] }'
  done
done
