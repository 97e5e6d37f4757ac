"""Tutti for arrays in host memory, without torch: whatever has __dlpack__, __array_interface__ or a buffer, such as NumPy's.

    import tutti_array
    comm = tutti_array.init()    # started by mpirun, srun or torchrun, or with TUTTI_RANK, TUTTI_NRANKS and TUTTI_ROOT
    comm.all_reduce(array)       # in place
"""
from .communicator import Communicator, Handle, init
from .errors import TuttiError

__all__ = ["Communicator", "Handle", "TuttiError", "init"]
