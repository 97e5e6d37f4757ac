"""The programs that tools/compare runs: Tutti, its peers in several tunings, and the floors."""
import dataclasses
import os


@dataclasses.dataclass(frozen=True)
class Program:
    name: str
    library: str  # several programs may be tunings of one library
    kind: str  # tutti, peer or floor
    launcher: tuple = ()
    arguments: tuple = ()
    environment: dict = dataclasses.field(default_factory=dict)


LIBRARIES = ("tutti", "openmpi", "mpich", "gloo", "floor")

# Open MPI's parameters beside its defaults, by transport. Its UCX refuses transports unless told that any will do.
UCX = ("--mca", "pml", "ucx", "--mca", "opal_common_ucx_tls", "any", "--mca", "opal_common_ucx_devices", "any")
TCP = ("--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo")
BIG_TCP = ("--mca", "btl_tcp_eager_limit", "1048576", "--mca", "btl_tcp_max_send_size", "1048576")
SEGMENTS = ("--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", "coll_tuned_allreduce_algorithm", "5",
            "--mca", "coll_tuned_allreduce_algorithm_segmentsize", "262144")
OPENMPI = {
    "shm": {
        "openmpi": (),
        "openmpi ucx": UCX,
        "openmpi sm": ("--mca", "coll_sm_priority", "100"),
        "openmpi eager": ("--mca", "btl_vader_eager_limit", "32768"),
        "openmpi segments": SEGMENTS,
    },
    "tcp": {
        "openmpi": TCP,
        "openmpi ucx": UCX + ("-x", "UCX_TLS=tcp,self", "-x", "UCX_NET_DEVICES=lo"),
        "openmpi eager": TCP + BIG_TCP,
    },
}

ALGORITHM = "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM"
MPICH_OVER = {
    "shm": {},
    "tcp": {"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "lo", "FI_PROVIDER": "tcp"},
}
MPICH = {
    "mpich": {},
    "mpich doubling": {ALGORITHM: "recursive_doubling"},
    "mpich scatter": {ALGORITHM: "reduce_scatter_allgather"},
}
# What these tunings change, only all-reduce takes notice of.
ALL_REDUCE_ONLY = ("openmpi segments", "mpich doubling", "mpich scatter")

GLOO = {"gloo": "ring", "gloo bcube": "bcube", "gloo halving": "halving_doubling"}

FLOORS = {"shm": ("mapped", "cma", "bounce"), "tcp": ("sockets",)}


def tutti(options):
    programs = [Program("tutti", "tutti", "tutti", arguments=("--transport", options.transport))]
    if options.registered:
        registered = ("--transport", options.transport, "--variant", "registered")
        programs.append(Program("registered", "tutti", "tutti", arguments=registered))
    return programs


def openmpi(options):
    # It refuses root and more ranks than CPUs unless told, and binds to CPUs, which nobody else here does.
    launcher = ("mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none")
    if options.ranks > len(os.sched_getaffinity(0)):
        launcher += ("--mca", "mpi_yield_when_idle", "1")
    return [Program(name, "openmpi", "peer", launcher + tuning + ("-np", str(options.ranks)))
            for name, tuning in OPENMPI[options.transport].items()]


def mpich(options):
    return [Program(name, "mpich", "peer", ("mpiexec.mpich", "-np", str(options.ranks)),
                    environment={**MPICH_OVER[options.transport], **tuning}) for name, tuning in MPICH.items()]


def gloo(options):
    """Over TCP whatever the transport: it has nothing else."""
    if options.op == "reduce_scatter":
        return []
    names = GLOO if options.op == "all_reduce" else ["gloo"]
    return [Program(name, "gloo", "peer", arguments=("--variant", GLOO[name])) for name in names]


def floor(options):
    return [Program(name, "floor", "floor", arguments=("--variant", name)) for name in FLOORS[options.transport]]


def programs_for(options, libraries):
    """What to run for these options, of the libraries that could be built. --quick leaves out the tunings."""
    makers = {"tutti": tutti, "openmpi": openmpi, "mpich": mpich, "gloo": gloo, "floor": floor}
    programs = [program for library in libraries for program in makers[library](options)]
    if options.op != "all_reduce":
        programs = [p for p in programs if p.name not in ALL_REDUCE_ONLY]
    if options.quick:
        programs = [p for p in programs if p.kind != "peer" or p.name == p.library]
    return programs


# What the hardware does, measured by the floor program on two ranks: name, its arguments, bytes. "GB/s" are of each
# process, while the other does the same or receives.
LIMITS = (
    ("memcpy of 32 KiB", "GB/s", ("--variant", "bounce", "--op", "copy"), 32 << 10),
    ("memcpy of 1 MiB", "GB/s", ("--variant", "bounce", "--op", "copy"), 1 << 20),
    ("memcpy of 64 MiB", "GB/s", ("--variant", "bounce", "--op", "copy"), 64 << 20),
    ("flag exchange", "us", ("--variant", "bounce", "--op", "barrier"), 4),
    ("socket round trip of 64 B", "us", ("--variant", "sockets", "--op", "round_trip"), 64),
    ("socket stream", "GB/s", ("--variant", "sockets", "--op", "broadcast"), 1 << 20),
)
