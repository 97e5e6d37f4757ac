"""Network namespaces that stand for hosts: each has the interface nic1 on one switch, 1 Gb/s either way. Needs root."""
import contextlib
import pathlib
import subprocess

INTERFACE = "nic1"  # as in bench.h
SPEED = "1 Gb/s"
REMOTE_SHELL = str(pathlib.Path(__file__).with_name("in_host"))
SHAPE = "root tbf rate 1gbit burst 128kb latency 20ms"


def name_of(network, number):
    """Of a host; hosts are numbered from 1, and 0 is the switch."""
    return f"{network}-{number}"


def in_host(host):
    """The prefix of a command that runs on the host, with the namespace's name as host name."""
    return ("ip", "netns", "exec", host, "unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', host)


def run(command):
    try:
        done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    except OSError as error:
        raise RuntimeError(f"--hosts: {error}") from error
    if done.returncode != 0:
        raise RuntimeError(f"--hosts: '{command}' failed (it needs root): {done.stderr.strip()}")


@contextlib.contextmanager
def hosts(network, count):
    """Makes `count` hosts, or none. They are removed with the context."""
    if count == 0:
        yield
        return
    switch = name_of(network, 0)
    try:
        run(f"ip netns add {switch}")
        run(f"ip -n {switch} link add net up type bridge")
        for i in range(1, count + 1):
            host = name_of(network, i)
            run(f"ip netns add {host}")
            run(f"ip -n {host} link set lo up")
            run(f"ip -n {switch} link add h{i} up master net type veth peer name {INTERFACE} netns {host}")
            run(f"ip -n {host} addr add 10.80.1.{i}/24 dev {INTERFACE}")
            run(f"ip -n {host} link set {INTERFACE} up")
            run(f"tc -n {host} qdisc add dev {INTERFACE} {SHAPE}")
            run(f"tc -n {switch} qdisc add dev h{i} {SHAPE}")
        yield
    finally:
        for i in range(count + 1):
            subprocess.run(["ip", "netns", "del", name_of(network, i)], capture_output=True, check=False)
