"""All-reduce inside JAX programs: 500 sums of two processes, under jit, and an error. test_jax.py LIBTUTTI"""
import importlib.util

import ranks

if importlib.util.find_spec("jax") is not None:
    import jax
    import jax.numpy as jnp
    import numpy as np


def test_500_sums(comm):
    from tutti_array.jax import all_reduce

    step = jax.jit(lambda tree: all_reduce(comm, {name: leaf * 2 for name, leaf in tree.items()}))
    wrong = 0
    for i in range(250):
        many, few = np.arange(1000) % 50 + i + comm.rank, np.full((3, 4), i - comm.rank)
        found = step({"many": many.astype(np.float32), "few": few.astype(np.int32)})
        wrong += int((found["many"] != 2 * (2 * (np.arange(1000) % 50 + i) + 1)).sum())
        wrong += int((found["few"] != 2 * (2 * i - 1)).sum())
    assert wrong == 0, f"{wrong} wrong elements"


def test_in_a_loop(comm):
    from tutti_array.jax import all_reduce

    found = jax.jit(lambda x: jax.lax.fori_loop(0, 20, lambda _, x: all_reduce(comm, x, "avg") + 1, x))(jnp.full(5, float(comm.rank), jnp.bfloat16))
    assert found.astype(float).tolist() == [20.5] * 5, found


def test_errors(comm):
    import tutti_array
    from tutti_array.jax import all_reduce

    for array, op, said in ((jnp.ones(2, bool), "sum", "convert it"), (jnp.ones(2), "xor", "none of sum")):
        try:
            all_reduce(comm, array, op)
        except tutti_array.TuttiError as error:
            assert said in str(error), error
        else:
            raise AssertionError(f"no error says '{said}'")


def test_what_arrives_in_jax(comm):
    """The error text of an operation that fails inside XLA."""
    from tutti_array.jax import all_reduce

    try:
        jax.block_until_ready(all_reduce(comm, jnp.ones(2 + comm.rank)))
    except Exception as error:  # JAX chooses the type
        assert "Tutti: " in str(error), error
    else:
        raise AssertionError("ranks reduce arrays of different sizes, and nobody minds")
    comm.abort()


if __name__ == "__main__":
    ranks.main(globals(), "jax", n_ranks=2)
