# shellcheck shell=sh
# To be sourced by tests of programs: $tmp is a folder that is removed at the end, $failures counts.
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
failures=0

run() {
  "$@" >"$tmp/out" 2>&1
  status=$?
}
# check NAME STATUS TEXT: the last run must have had this exit status, and this text in its output.
check() {
  if [ "$status" -ne "$2" ]; then
    echo "FAILED $1: exit status $status instead of $2"
  elif [ -n "$3" ] && ! grep -q -- "$3" "$tmp/out"; then
    echo "FAILED $1: no '$3' in the output"
  else
    echo "ok $1"
    return
  fi
  failures=$((failures + 1))
  cat "$tmp/out"
}
