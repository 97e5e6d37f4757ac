#!/usr/bin/env bash
# Boots the guest and runs commands in it, as root, with bash; prints what they print and exits with their status, or with
# 125 if the guest ended without one.
#   boot.sh VM_DIR SHARED_DIR COMMANDS...     VM_DIR: made by tools/verbs-check; SHARED_DIR: becomes the guest's /mnt
# Environment: GUEST_SECONDS (limit, 900), GUEST_MIB (memory, 1536), GUEST_CPUS (2), GUEST_DEVICES (further options
# for the emulator).
set -u
vm=$1 shared=$2
shift 2
rm -f "$shared/status"
printf '%s\n' "$@" >"$shared/command"
root=$vm/fetched/usr
emulator=$root/bin/qemu-system-x86_64
data=$root/share
[ -x "$emulator" ] || { emulator=$(command -v qemu-system-x86_64) && data=/usr/share; } || { echo "there is no qemu-system-x86_64"; exit 125; }
# In the foreground, so that it ends with the process group of its caller.
# shellcheck disable=SC2086  # several options on purpose
LD_LIBRARY_PATH=$root/lib/x86_64-linux-gnu timeout --foreground -k 5 "${GUEST_SECONDS:-900}" "$emulator" \
  -L "$data/qemu" -L "$data/seabios" -nodefaults -no-user-config -no-reboot -display none -serial stdio \
  -accel tcg,thread=multi -machine q35 -cpu max -smp "${GUEST_CPUS:-2}" -m "${GUEST_MIB:-1536}" \
  -kernel "$vm/vmlinux" -initrd "$vm/initramfs" -append "console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable no_timer_check" \
  -virtfs local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap \
  -virtfs local,path="$vm/fetched",mount_tag=fetched,security_model=none,readonly=on \
  -virtfs local,path="$shared",mount_tag=shared,security_model=none ${GUEST_DEVICES:-} </dev/null 2>&1
[ -f "$shared/status" ] || { echo "the guest ended without a status: it crashed, or took more than ${GUEST_SECONDS:-900} s"; exit 125; }
exit "$(cat "$shared/status")"
