#!/bin/sh
# tune.sh PERF_FOLDER TUTTI_TUNE: tutti-tune measures and writes prices, and the library uses them; mistakes in a file are
# reported, and ranks with different files are told.
set -u
perf=$1/all_reduce_perf
tune=$2
# shellcheck source=tests/tools/checks.sh
. "$(dirname "$0")/checks.sh"
unset TUTTI_TUNE_FILE
export XDG_CONFIG_HOME="$tmp/config"

run "$tune" --help
check "help" 0 'Examples:'
run "$tune" -b 0
check "sizes" 2 'must be sizes from 1 up'
run "$tune" --fit "$tmp/absent"
check "samples that are not there" 2 'absent cannot be read'
run "$tune" --fit "$tmp"
check "a folder instead of samples" 2 'cannot be read: Is a directory'
echo '[{"facts": 7}]' >"$tmp/odd"
run "$tune" --fit "$tmp/odd"
check "samples that are none" 2 'odd holds no samples'

run "$tune" -b 64 -e 64 -n 1
check "one rank" 2 'one rank alone sends nothing'
run "$tune" --procs 2 --network "$tmp/network"
check "a network of one host" 2 'between hosts, and all ranks are on'
run "$tune" --procs 2 --network "$tmp/network" --samples "$tmp/none"
check "samples of a network" 2 '--samples cannot be combined with --network'
run "$tune" --procs 2 --network "$tmp/network" -b 8
check "sizes of a network" 2 '-b cannot be combined with --network'
for option in "--procs 2" "-t 2" "-b 8" "-e 64" "-f 8" "-n 3" "--transport tcp"; do
  # shellcheck disable=SC2086  # an option and its value
  run "$tune" --fit "$tmp/absent" $option
  check "measuring nothing, with $option" 2 "${option%% *} cannot be combined with --fit"
done

mkdir -p "$tmp/config"
small="-b 64 -e 4K -f 64 -n 1"
# shellcheck disable=SC2086  # several options on purpose
run "$tune" --procs 2 $small --samples "$tmp/samples"
check "measuring" 0 "# written: $tmp/config/tutti/tuning"
for price in shm.hop shm.byte loopback.message sum.byte; do
  grep -q "^$price = " "$tmp/config/tutti/tuning" || { echo "FAILED: no $price in the file"; failures=$((failures + 1)); }
done
grep -q "^network.hop" "$tmp/config/tutti/tuning" && { echo "FAILED: a price that nobody measured"; failures=$((failures + 1)); }
run "$perf" --procs 2 -b 64 -e 64 -n 1 --explain
check "the user's file is taken" 0 "from $tmp/config/tutti/tuning.*\*shm.hop"
run "$tune" --fit "$tmp/samples" -o "$tmp/fitted"
check "fitting again" 0 "# written: $tmp/fitted"
grep '=' "$tmp/fitted" >"$tmp/lines" && grep '=' "$tmp/config/tutti/tuning" | cmp -s - "$tmp/lines"
status=$?
check "the same samples give the same prices" 0 ''
"$tune" --fit "$tmp/samples" --check >/dev/full 2>"$tmp/out"
status=$?
check "a full stdout" 3 'cannot be written'
printf 'network.hop = 12000.75\nnetwork = racks.json\n' >"$tmp/kept"
run "$tune" --fit "$tmp/samples" -o "$tmp/kept"
check "fitting over a file" 0 "# written: $tmp/kept"
grep -q '^network.hop = 12000.75 ' "$tmp/kept" && grep -q '^network = racks.json$' "$tmp/kept" && grep -q '^shm.hop = ' "$tmp/kept"
status=$?
check "what was not measured stays in it" 0 ''
# The system's file, which applies while the user has none. Tested where /etc can be replaced for a while.
cat >"$tmp/in_etc" <<'SCRIPT'
cp /etc/ld.so.cache "$tmp" && mount -t tmpfs none /etc && cp "$tmp/ld.so.cache" /etc && mkdir /etc/tutti || exit 77
echo '{"hosts_per_rack": 1, "ranks_per_host": 1, "racks": 1, "local": {"gbit_per_s": 100, "latency_us": 1},
  "nic": {"gbit_per_s": 1, "latency_us": 20}}' >/etc/tutti/racks.json
printf 'network.hop = 12000\nnetwork = racks.json\n' >/etc/tutti/tuning
XDG_CONFIG_HOME=$tmp/new "$tune" --fit "$tmp/samples" && XDG_CONFIG_HOME=$tmp/new "$perf" -t 2 -b 8 -e 8 -n 1 --explain
SCRIPT
mkdir "$tmp/new"
tmp=$tmp tune=$tune perf=$perf unshare --mount --propagation private sh "$tmp/in_etc" >"$tmp/out" 2>&1
status=$?
if [ $status = 77 ] || grep -q '^unshare:' "$tmp/out"; then
  echo "skipped: a system's file: $(head -n 1 "$tmp/out")"
else
  check "what is not measured is as in the system's file" 0 '\*network.hop 12000'
  cp "$tmp/new/tutti/tuning" "$tmp/out"
  check "and its network" 0 '^network = /etc/tutti/racks.json$'
fi
sed 's/"ns": /"ns": 9/' "$tmp/samples" >"$tmp/slow"
run "$tune" --fit "$tmp/slow" "$tmp/samples" "$tmp/samples" -o "$tmp/of_three"
grep '=' "$tmp/of_three" | cmp -s - "$tmp/lines"
status=$?
check "of several jobs, one of them slow, the median counts" 0 ''
sed 's/of at most [0-9]*;/of at most 0;/' "$tmp/samples" >"$tmp/odd"
run "$tune" --fit "$tmp/odd" --check
check "samples of hosts without ranks" 2 'odd: a sample makes no sense'
cp "$tmp/fitted" "$tmp/before"
run "$tune" --procs 2 --check --transport tcp -b 64 -e 64 -n 1
check "only a check" 0 'as it is: regret'
cmp -s "$tmp/fitted" "$tmp/before"
status=$?
check "a check writes nothing" 0 ''
# The time of operations that add in another order than the promised one is no regret, but the price of the promise.
facts='facts: 4 ranks on 1 hosts of at most 4; 4 ranks for 4 of 4 CPUs; shm, network of 1000000000 bytes per second; caches of 8388608 bytes'
sample() { printf '{"facts": "%s", "collective": "%s", "bytes": 64, "algo": "%s", "free": false, "ns": %s}' "$facts" "$1" "$2" "$3"; }
echo "[$(sample Reduce oneshot 1100), $(sample Reduce direct 1000), $(sample Reduce ring 800)]" >"$tmp/ordered"
run "$tune" --fit "$tmp/ordered" --check
check "the price of the order of ranks" 0 'regret 10.0 % in the mean, .*; the order of ranks costs 25 % at most .Reduce of 64 bytes.'
echo "[$(sample Broadcast tree 1100), $(sample Broadcast direct 1000), $(sample Broadcast ring 800)]" >"$tmp/ordered"
run "$tune" --fit "$tmp/ordered" --check
check "what adds up nothing has no order" 0 'regret .* at worst .Broadcast of 64 bytes by .* 0.80 at best.; predictions are off by [0-9]* % in the median; of'
run "$tune" --fit "$tmp/samples" --simulated tcp -o "$tmp/host"
check "this host, for tutti-sim" 0 ''
run cat "$tmp/host"
check "what messages cost there" 0 '"message_us": [0-9]'
check "that it was over TCP" 0 '"shares_memory": false'
run "$tune" --fit "$tmp/samples" --simulated shm
check "a host without a file" 2 '--simulated needs --fit FILES, and -o FILE'
for option in -o --samples --network; do
  run "$tune" --procs 2 $option "$tmp/no/such/folder"
  check "a file that cannot be written with $option" 3 'no/such/folder cannot be written: .*/no/such: No such file or directory'
  [ "$(wc -l <"$tmp/out")" -le 3 ] || { echo "FAILED: it has measured before"; failures=$((failures + 1)); }
done
for option in -o --samples --network; do
  run "$tune" --procs 2 $option "$tmp"
  check "a folder instead of a file with $option" 3 "$tmp cannot be written: Is a directory"
  [ "$(wc -l <"$tmp/out")" -le 3 ] || { echo "FAILED: it has measured before"; failures=$((failures + 1)); }
done
# For a device the folder need not be writable; to root every folder is, so this runs as another user.
other="setpriv --reuid=65534 --regid=65534 --clear-groups"
# shellcheck disable=SC2086  # several words on purpose
if $other "$tune" --help >"$tmp/out" 2>&1; then
  run env HOME=/ XDG_CONFIG_HOME= $other "$tune" --procs 2 $small --check --samples /dev/null
  check "a device in a folder that only root may write" 0 ''
else
  echo "skipped: a device in a folder that only root may write: this program cannot be run as somebody else"
fi
run "$tune" --fit "$tmp/samples" -o "$tmp/no/such/folder"
check "a file that cannot be written" 3 'no/such/folder'
run "$tune" --fit "$tmp/samples" -o "$tmp"
check "a folder instead of a file" 3 'Is a directory'

printf 'shm.hop = 1\nshm.hopp = 2\n' >"$tmp/bad"
run env TUTTI_TUNE_FILE="$tmp/bad" "$perf" --procs 2 -b 8 -e 8 -n 1
check "a bad line" 3 "bad, line 2: there is no price 'shm.hopp'"
seq 20000 >"$tmp/bad"
run env TUTTI_TUNE_FILE="$tmp/bad" "$perf" --procs 2 -b 8 -e 8 -n 1
check "too long a file" 3 "bad is too long for one: remove it"
echo 'shm.hop = 1' >"$tmp/other"
port=$((20000 + $$ % 20000))
for rank in 0 1; do
  file=/dev/null
  [ $rank = 1 ] && file=$tmp/other
  TUTTI_TUNE_FILE=$file TUTTI_RANK=$rank TUTTI_NRANKS=2 TUTTI_ROOT=127.0.0.1:$port TUTTI_SECRET=tune TUTTI_INIT_TIMEOUT=30 \
    "$perf" -b 8 -e 8 -n 1 >"$tmp/out.$rank" 2>&1 &
done
wait
cat "$tmp/out.0" "$tmp/out.1" >"$tmp/out"
status=0
check "different files" 0 "has the tuning file $tmp/other"
[ "$failures" -eq 0 ]
