"""Each way in which training jobs hang ends with a sentence that names the rank (hangs/README.md has the table)."""
import unittest

import prerequisites

prerequisites.require()
import tutti_torch  # noqa: F401  # before anything forks

from hangs import runner
from hangs.situations import SITUATIONS

# Long enough for a group to form on a busy machine; an upper limit for situations that never end.
TIMEOUT_S, LIMIT_S = 10.0, 120.0
# Torch's store ends these with its own message; the backend is not asked.
_TORCHS_OWN = ("wrong_port",)


class Hangs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.left_out = {name: why for name, s in SITUATIONS.items() if (why := s.lacks())}
        possible = [name for name in SITUATIONS if name not in cls.left_out]
        cls.reports = runner.run(possible, prerequisites.BACKEND, TIMEOUT_S, LIMIT_S, side_by_side=8)

    def of_each(self):
        for name, report in self.reports.items():
            with self.subTest(situation=name, said=report.said()):
                yield name, report, report.situation

    def test_none_was_left_out(self):
        if self.left_out:
            self.skipTest(str(self.left_out))

    def test_nobody_hangs(self):
        for _, report, situation in self.of_each():
            for rank, outcome in enumerate(report.ranks):
                if rank in (*situation.stuck, *situation.dies):
                    continue
                print(f"{situation.name}: rank {rank} {outcome.how} after {outcome.seconds:.1f} s: {outcome.text}")
                self.assertEqual(outcome.how, "ended" if situation.goes_on else "error", f"rank {rank}")

    def test_the_culprit_is_named(self):
        for name, report, situation in self.of_each():
            if situation.goes_on or situation.culprit is None or name in _TORCHS_OWN:
                continue
            for rank, outcome in enumerate(report.ranks):
                if rank != situation.culprit and rank not in situation.stuck:
                    self.assertIn(f"rank {situation.culprit}", outcome.text)

    def test_both_callers_are_named(self):
        """By their lines in the user's file, where both ranks called something."""
        for name, report, situation in self.of_each():
            if name in ("uneven_batches", "skips_backward", "only_on_rank_0", "other_order", "other_shapes", "other_dtypes"):
                self.assertIn("operation", report.said())
                for outcome in report.ranks:
                    lines = set(runner.PLACE.findall(outcome.text))
                    self.assertEqual(len(lines), 1 if name in ("other_shapes", "other_dtypes") else 2, outcome.text)
            elif name in ("stopped", "data_loader", "input_output", "checkpoint", "gpu_stream"):
                waits = report.ranks[1 - situation.culprit].text
                self.assertGreaterEqual(len(runner.PLACE.findall(waits)), 2, waits)
            elif name == "exception":
                self.assertIn("ValueError: sample 17 is not an image at ", report.ranks[0].text)
            elif name == "two_groups":
                self.assertIn("is in another group's operation", report.said())
        self.assertIn("float32[32, 100]", self.reports["other_shapes"].said())
        self.assertIn("float64[32]", self.reports["other_dtypes"].said())

    def test_a_slow_rank_is_said_to_be_slow(self):
        log = [line for _, rank, line in self.reports["slow"].log if rank == 0]
        told = [line for line in log if "no progress" in line or "continued after" in line]
        self.assertRegex(told[0], "no progress for 3 s: waiting for rank 1 .* rank 1 has not called it yet")
        self.assertRegex(told[-1], "continued after .* waiting for rank 1 .*: slow, but not lost")

    def test_who_does_not_come_is_named_in_time(self):
        """Long before the time-out that ends the others' waiting."""
        for name, rank, sentence in (
            ("missing_rank", 0, "rank 2 of 3 did not join the group within 3 s"),
            ("firewall", 0, "rank 1 of 2 did not join the group within 3 s of the first one"),
            ("firewall", 1, "rank 1 has not reached the group's root for 3 s; .* no answer .a firewall"),
        ):
            if name in self.reports:
                log = "\n".join(line for _, of, line in self.reports[name].log if of == rank)
                self.assertRegex(log, sentence)

    def test_an_operation_that_nobody_waited_for(self):
        for rank in (0, 1):
            log = "\n".join(line for _, of, line in self.reports["never_waits"].log if of == rank)
            self.assertRegex(log, "nobody has called its wait.*float32.4. at .*float32.5. at |"
                                  "nobody has called its wait.*float32.5. at .*float32.4. at ")


if __name__ == "__main__":
    unittest.main(verbosity=2)
