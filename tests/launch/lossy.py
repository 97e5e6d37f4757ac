"""A bad cable: frames that come in on one device leave by the other, except some that are lost.

lossy.py --plain DEVICE      makes the kernel pass on whole packets with checksums there (needed at both far ends)
lossy.py DEVICE DEVICE PERCENT SEED   loses that many of a hundred frames from SIGUSR1 to SIGUSR2
"""

import fcntl
import random
import select
import signal
import socket
import struct
import sys

SIOCETHTOOL = 0x8946
# Send checksums, scatter-gather, TCP and generic segmentation offload, generic receive offload: see ethtool.h.
OFFLOADS = [0x17, 0x19, 0x1F, 0x24, 0x2C]
ETH_P_ALL = 3


def plain(device):
    import ctypes

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        for command in OFFLOADS:
            value = ctypes.create_string_buffer(struct.pack("II", command, 0))
            request = struct.pack("16sQ", device.encode(), ctypes.addressof(value))
            fcntl.ioctl(s, SIOCETHTOOL, request + bytes(16))


def forward(first, second, percent, seed):
    chance = random.Random(seed)
    lost_of_hundred = 0.0

    def lose(signal_number, _):
        nonlocal lost_of_hundred
        lost_of_hundred = percent if signal_number == signal.SIGUSR1 else 0.0

    signal.signal(signal.SIGUSR1, lose)
    signal.signal(signal.SIGUSR2, lose)
    ends = {}
    for device, other in ((first, second), (second, first)):
        s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        s.bind((device, 0))
        ends[s] = other
    by_name = {s.getsockname()[0]: s for s in ends}
    while True:
        for s in select.select(list(ends), [], [])[0]:
            frame, address = s.recvfrom(65536)
            if address[2] == socket.PACKET_OUTGOING:
                continue
            if chance.uniform(0, 100) >= lost_of_hundred:
                by_name[ends[s]].send(frame)


if sys.argv[1] == "--plain":
    plain(sys.argv[2])
else:
    forward(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
