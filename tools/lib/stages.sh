# shellcheck shell=bash
# How tools/check runs its stages: it keeps their times, for a table at the end, and runs some in parallel with others.
# To be sourced after tools/lib/setup.sh, with $stage_times set to a file for the times, and $beside_at to a folder for the
# output of stages in parallel.
: "${stage_times:?a file for the times of stages}" "${beside_at:?a folder for what is printed beside}"

# ---- times -------------------------------------------------------------------------------------------------------

# Seconds of CPU time of process $1 and of all processes that it has waited for.
cpu_seconds() {
  local -a fields
  read -ra fields <"/proc/$1/stat"
  echo $(((fields[13] + fields[14] + fields[15] + fields[16]) / 100))
}

# timed LABEL COMMAND...: runs in a subshell, so that the CPU time is its own; variables that the command sets are lost. Adds
# a line to $stage_times: label, start, duration and CPU time, in seconds.
timed() {
  local label=$1 began=$SECONDS
  shift
  (
    self=$BASHPID
    "$@"
    status=$?
    printf '%s\t%d\t%d\t%d\n' "$label" "$began" $((SECONDS - began)) "$(cpu_seconds "$self")" >>"$stage_times"
    exit $status
  )
}

# Stages that ran in parallel overlap with others.
print_stages() {
  local label began took cpu
  [ -s "$stage_times" ] || return 0
  printf '\n%-44s %7s %7s %9s\n' stage began took "CPU time"
  while IFS=$'\t' read -r label began took cpu; do
    printf '%-44s %7s %7s %9s\n' "$label" "$(minutes "$began")" "$(minutes "$took")" "$(minutes "$cpu")"
  done < <(sort -t $'\t' -k 2,2n -s "$stage_times")
}

# ---- in parallel -------------------------------------------------------------------------------------------------

declare -A beside=()  # names to process groups

# begin NAME COMMAND...: runs it in parallel with what follows; its output is kept until it is awaited.
begin() {
  local name=$1
  shift
  set -m  # makes it a process group
  "$@" >"$beside_at/$name.beside" 2>&1 </dev/null &
  set +m
  beside[$name]=$!
}

is_beside() { [ -n "${beside[$1]:-}" ]; }

# Waits for a command that was begun, prints its output, and returns its status.
await() {
  local status=0
  wait "${beside[$1]}" || status=$?
  unset "beside[$1]"
  cat "$beside_at/$1.beside"
  rm -f "$beside_at/$1.beside"
  return $status
}

# after NAME COMMAND...: runs it once the command that was begun as NAME has ended.
after() {
  ! is_beside "$1" || tail --pid="${beside[$1]}" -f /dev/null
  "${@:2}"
}

# in_spare_time COMMAND...: uses only CPU time that nothing else needs.
in_spare_time() {
  renice -n 19 "$BASHPID" >/dev/null
  "$@"
}

end_beside() {
  local group
  for group in "${beside[@]}"; do kill -- "-$group" 2>/dev/null; done
  beside=()
}
trap end_beside EXIT
