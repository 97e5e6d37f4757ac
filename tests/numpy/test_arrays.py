"""tutti_array: every operation against NumPy, that data are not copied, and error messages. test_arrays.py LIBTUTTI"""
import array
import contextlib
import importlib.util
import io
import os
import re
from unittest import mock

import ranks

if importlib.util.find_spec("numpy") is not None:
    import numpy as np

REDUCED = {"sum": lambda a: a.sum(0), "prod": lambda a: a.prod(0), "max": lambda a: a.max(0), "min": lambda a: a.min(0), "avg": lambda a: a.mean(0)}


def of(rank, shape=(6, 5), dtype="float64"):
    """A rank's values: small integers, so that all sums are exact."""
    return ((np.arange(np.prod(shape)).reshape(shape) * 7 + rank * 3) % 11 + 1).astype(dtype)


def everybodys(comm, *arguments):
    return np.stack([of(rank, *arguments) for rank in range(comm.size)])


def same(found, expected):
    assert np.array_equal(found, expected), f"{found} instead of {expected}"


def test_reductions(comm):
    for op, reduce in REDUCED.items():
        for dtype in ("int64", "float32", "float64", "uint8", "float16")[: 3 if op == "prod" else 5]:
            if op == "avg" and dtype not in ("float32", "float64"):
                continue
            expected = reduce(everybodys(comm, (6, 5), dtype)).astype(dtype)
            mine = of(comm.rank, (6, 5), dtype)
            out = np.empty_like(mine)
            assert comm.all_reduce(mine, op, out=out) is out
            same(mine, of(comm.rank, (6, 5), dtype))
            np.testing.assert_allclose(out.astype(float), expected.astype(float), rtol=1e-6)
            assert comm.all_reduce(mine, op) is mine
            same(mine, out)
            mine = of(comm.rank, (6, 5), dtype)
            comm.reduce(mine, op, root=1)
            same(mine, out if comm.rank == 1 else of(comm.rank, (6, 5), dtype))
            same(comm.reduce_scatter(of(comm.rank, (6, 5), dtype), op), np.split(out, comm.size)[comm.rank])


def test_movements(comm):
    for dtype in ("float32", "complex128", "bool", "datetime64[s]"):
        mine, everything = of(comm.rank, (6, 2), dtype), everybodys(comm, (6, 2), dtype)
        same(comm.all_gather(mine), everything)
        gathered = comm.gather(mine, root=1)
        assert (gathered is None) == (comm.rank != 1)
        if gathered is not None:
            same(gathered, everything)
        same(comm.scatter(mine if comm.rank == 0 else None, out=np.empty((6 // comm.size, 2), dtype)), np.split(everything[0], comm.size)[comm.rank])
        same(comm.all_to_all(mine), np.concatenate([np.split(part, comm.size)[comm.rank] for part in everything]))
        same(comm.broadcast(mine, root=2), everything[2])
        ring = np.empty_like(mine)
        request = comm.send(of(comm.rank, (6, 2), dtype), (comm.rank + 1) % comm.size, async_op=True)
        comm.recv(ring, (comm.rank - 1) % comm.size, async_op=True).wait()
        request.wait()
        same(ring, everything[comm.rank - 1])
    comm.barrier()


def test_large_messages_both_ways(comm):
    """Of more than a link holds: with send and recv one after the other each rank would wait for the next."""
    mine, got = of(comm.rank, (1_000_000,), "float64"), np.empty(1_000_000)
    to, source = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    assert comm.sendrecv(mine, to, got, source) is got
    same(got, of(source, (1_000_000,), "float64"))
    got[:] = 0
    same(comm.sendrecv(mine, to, got, source, async_op=True).wait(60), of(source, (1_000_000,), "float64"))
    complaint("peer", comm.sendrecv, mine, comm.size, got, source)
    complaint("overlap", comm.sendrecv, mine, to, mine, source)
    comm.barrier()


def test_under_way(comm):
    handles = [comm.all_reduce(np.full(1000, float(i + comm.rank)), async_op=True) for i in range(20)]
    comm.barrier()
    for i, handle in enumerate(handles):
        same(handle.wait(60), np.full(1000, float(sum(i + rank for rank in range(comm.size)))))
        assert handle.done()


def test_wait_with_a_limit(comm):
    """In another group of the same ranks, whose operation the others call after rank 0 has timed out once."""
    import tutti_array

    with tutti_array.init() as other:
        if comm.rank == 0:
            handle = other.barrier(async_op=True)
            complaint("has not finished within 0.05 s", handle.wait, 0.05)
            assert not handle.done()
            comm.barrier()
            handle.wait(60)
        else:
            comm.barrier()
            other.barrier()


class Interface:
    """Has only __array_interface__."""

    def __init__(self, values):
        self.values = values
        self.__array_interface__ = values.__array_interface__


class Capsule:
    """Has only DLPack's two methods."""

    def __init__(self, values):
        self.values = values

    def __dlpack__(self, **options):
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()


def test_other_arrays(comm):
    total = float(sum(range(comm.size)))
    buffer = array.array("d", [comm.rank, 1])
    assert comm.all_reduce(buffer) is buffer
    assert buffer.tolist() == [total, comm.size]
    by_dlpack = () if np.lib.NumpyVersion(np.__version__) < "2.3.0" else (Capsule,)  # earlier versions make it read-only
    for kind in Interface, *by_dlpack:
        thing = kind(np.array([comm.rank, 1.0]))
        assert comm.all_reduce(thing) is thing
        same(thing.values, [total, comm.size])
    if importlib.util.find_spec("ml_dtypes") is not None:
        import ml_dtypes

        for dtype in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
            same(comm.all_reduce(np.ones(3, dtype)).astype(float), np.full(3, float(comm.size)))
        comm.barrier()


class Tensor(Capsule):
    """Like torch's tensors."""

    def __array__(self, *_, **__):
        return self.values


def test_numpy_before_2_3(comm):
    """It takes all memory from DLPack for read-only. An object with nothing else remains so, and one that NumPy copies."""
    def read_only(thing):
        array = thing.values.view()
        array.flags.writeable = False
        return array

    class Copied(Capsule):
        def __array__(self, *_, **__):
            return self.values.copy()

    with mock.patch.object(np, "from_dlpack", read_only):
        thing = Tensor(np.array([comm.rank, 1.0]))
        assert comm.all_reduce(thing) is thing
        same(thing.values, [sum(range(comm.size)), comm.size])
        for kind in Capsule, Copied:
            complaint("read-only", comm.all_reduce, kind(np.ones(2)))


def complaint(pattern, function, *arguments, **options):
    import tutti_array

    try:
        function(*arguments, **options)
    except tutti_array.TuttiError as error:
        assert re.search(pattern, str(error)), f"'{error}' does not say '{pattern}'"
        return
    raise AssertionError(f"no error says '{pattern}'")


def test_what_cannot_be(comm):
    read_only = np.ones(2)
    read_only.flags.writeable = False
    complaint("not contiguous.*numpy.ascontiguousarray", comm.all_reduce, np.ones((4, 4)).T[1:])
    complaint("read-only.*out=", comm.all_reduce, read_only)
    complaint("read-only", comm.all_reduce, np.float64(3))
    complaint("read-only", comm.all_reduce, b"abc")
    complaint("not an array.*numpy.asarray", comm.all_reduce, [1, 2])
    complaint("complex128.*astype", comm.all_reduce, np.ones(2, complex))
    complaint("byte order", comm.all_reduce, np.ones(2, np.dtype("float64").newbyteorder()))
    complaint("not aligned", comm.all_reduce, np.frombuffer(bytearray(17), np.float64, 2, 1))
    complaint("Python objects.*pickle", comm.all_gather, np.array([{}]))
    complaint("multiple of 3", comm.reduce_scatter, np.ones(4))
    complaint("none of sum", comm.all_reduce, np.ones(2), "xor")
    complaint(r"out has 3 elements.*\(2,\) of float64", comm.all_reduce, np.ones(2), out=np.ones(3))
    complaint("out has 2 elements of type int64.*of float64", comm.all_reduce, np.ones(2), out=np.ones(2, np.int64))
    if comm.rank == 0:
        complaint("times as many as out, which has 2 of float64", comm.scatter, np.ones(6, np.int64), out=np.ones(2))
    complaint("root", comm.broadcast, np.ones(2), root=99)
    same(comm.all_reduce(read_only, out=np.empty(2)), np.full(2, comm.size))


def test_readme(comm):
    """The README's program, in one more group of the same ranks."""
    text = (ranks.ROOT / "lib/numpy/README.md").read_text(encoding="utf-8")
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(re.search(r"^```python\n(.*?)^```$", text, re.M | re.S)[1], {})
    assert said.getvalue() == f"rank {comm.rank} of 3: 6\n", said.getvalue()


def test_exception_in_a_block(comm):
    """An exception ends the group at once, and arrives unchanged."""
    import tutti_array

    try:
        with tutti_array.init() as other:
            if comm.rank == 1:
                raise KeyError("a mistake")
            complaint("rank", other.barrier)
            other.abort()
    except KeyError:
        assert comm.rank == 1
    complaint("was closed", other.barrier)
    comm.barrier()


def test_what_was_under_way_at_the_end(comm):
    """It says why there is no result, even when the communicator no longer exists."""
    import tutti_array

    with tutti_array.init() as other:
        if comm.rank == 0:
            handle = other.recv(np.empty(2), 1, async_op=True)
            other.abort()
            complaint("was closed before the operation was done", handle.wait)
        else:
            handle = other.barrier(async_op=True)
            complaint("rank 0 .* called tuttiCommAbort", handle.wait)
            other.abort()
            complaint("rank 0 .* called tuttiCommAbort", handle.wait)
    comm.barrier()


def test_ends_in_the_order_of_creation(comm):
    """On all ranks, or they would wait for each other. One that cannot be closed does not keep the others open."""
    from tutti_array import communicator

    ended = []

    class Stub:
        def close(self):
            ended.append(self)
            raise communicator.TuttiError("it is broken")

    before = communicator._open
    stubs = [Stub() for _ in range(8)]
    communicator._open = type(before)()
    try:
        for stub in stubs:
            communicator._open[stub] = None
        communicator._at_exit()
    finally:
        communicator._open = before
    assert ended == stubs, ended


def test_forked_child_ends_in_silence(comm):
    """A forked child has no part in the group, which goes on."""
    from tutti_array import communicator

    child = os.fork()
    if child == 0:
        with contextlib.redirect_stderr(io.StringIO()) as said:
            communicator._at_exit()
        os._exit(said.getvalue() != "")
    assert os.waitpid(child, 0)[1] == 0, "a child complained at its exit"
    comm.barrier()


if __name__ == "__main__":
    ranks.main(globals(), "numpy", n_ranks=3)
