#!/bin/sh
# correct.sh FOLDER COLLECTIVES ARGS...: runs the tools of these collectives with these arguments, for every type, operator,
# root and size. Sizes: 0 bytes, one element, some thousand bytes, and an odd one that takes many messages.
set -u
folder=$1
collectives=$2
shift 2
# shellcheck source=tests/tools/tool.sh
. "$(dirname "$0")/tool.sh"

types=12

for collective in $collectives; do
  traits "$collective"
  if [ "$collective" = barrier ]; then
    run barrier 1 -c 5 "$@" || exit 1
    continue
  fi
  if [ "$collective" = all_reduce_quantized ]; then
    run "$collective" 3 -b 0 -e 20000 -f 1031 "$@" || exit 1
    run "$collective" 1 -b 1000000 -e 1000000 --wire f8e4m3 -o avg "$@" || exit 1
    continue
  fi
  # The flags are words. all.sh combines all types with all operators and all roots.
  flags=${op_flags:-$root_flags}
  run "$collective" $((types * 3 * ops)) -b 0 -e 20000 -f 1031 -d all $flags "$@" || exit 1
  run "$collective" $ops -b 1000003 -e 1000003 -d uint8 $op_flags $root_flags "$@" || exit 1
done
