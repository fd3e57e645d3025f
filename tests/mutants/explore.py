"""Bugs in explorations: fronts, bounds, what is counted, workers that die."""

from __future__ import annotations

from vdla.bench import sweep
from vdla.compiler.targets.vdla.target import Accelerator
from vdla.explore import front
from vdla.explore.ladder import Ladder
from vdla.explore.surrogate import Prediction, SurrogateSearch
from vdla.hw.fpga import resources
from vdla.hw.fpga.resources import ClockModel
from vdla.report import bounds

from .checks import tests
from .plant import Mutant

EXPLORE = (
    Mutant("as good is not good enough", "explore", front.dominates,
           "a <= b", "a < b",
           tests("explore/test_front.py")),
    Mutant("a hypervolume of one slice", "explore", front._volume,
           "points[:count]", "points[:1]",
           tests("explore/test_front.py")),
    Mutant("a bound that a run beats", "explore", Ladder.bound,
           "weight * self._macs", "2 * weight * self._macs",
           tests("explore/test_exploration.py::test_no_run_is_below_its_bound")),
    Mutant("the host is free", "explore", Ladder.exact,
           "if covered < self._macs.get(name, 0):", "if False:",
           tests("explore/test_exploration.py::"
                 "test_designs_that_leave_more_to_the_host_do_not_count")),
    Mutant("areas of the last library", "explore", Ladder.exact,
           "cells)[0]", "cells)[-1]",
           tests("explore/test_silicon.py::test_the_front_in_cells")),
    Mutant("a network in cells runs once", "explore", Ladder.each_in_cells,
           "sum(n * energy", "sum(energy",
           tests("explore/test_silicon.py::test_the_front_in_cells")),
    Mutant("designs come again", "explore", SurrogateSearch.ask,
           "self._open[chosen] = False", "pass",
           tests("explore/test_replay.py::test_the_surrogate_proposes_every_possible_design_once")),
    Mutant("a killed process is a failed design", "explore", sweep._measured,
           "range(ATTEMPTS)", "range(1)",
           tests("explore/test_workers.py::test_a_process_that_is_killed_loses_nothing")),
    Mutant("one copy for all ports", "explore", resources._mapped,
           "blocks = reads * -(", "blocks = -(",
           tests("hw/fpga/test_resources.py::test_block_rams_are_those_of_yosys")),
    Mutant("last rows have blocks of their own", "explore", resources._mapped,
           "-(-turns * padded // bits)", "turns * -(-padded // bits)",
           tests("hw/fpga/test_resources.py::test_block_rams_are_those_of_yosys")),
    Mutant("a clock has seen its sample", "explore", ClockModel.fit.__func__,
           "others = np.arange(len(samples)) != index", "others = periods > -1",
           tests("hw/fpga/test_resources.py::"
                 "test_the_error_of_a_clock_is_of_placements_that_were_not_seen")),
    Mutant("a program keeps the knobs of another machine", "explore", Accelerator._own,
           "program.params == self.machine.params", "program.params",
           tests("compiler/targets/vdla/plan/test_cache.py")),
    Mutant("a worker keeps a model that has changed", "explore", sweep._content,
           "hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else model", "model",
           tests("bench/test_sweep.py::test_a_model_that_changes_is_compiled_again")),
    Mutant("schedules are not measured apart", "explore", Ladder.points,
           "vthreads=design.vthreads", "vthreads=2",
           tests("explore/test_replay.py::test_schedules_are_measured_apart")),
    Mutant("each step of a reduction is written", "explore", bounds.scratchpad_accesses,
           "insn.iterations // group", "insn.iterations",
           tests("explore/test_energy.py::test_counts_are_those_of_the_rtl")),
    Mutant("instructions are not fetched", "explore", bounds.dram_traffic,
           "+ fetched}", "}",
           tests("explore/test_energy.py::test_counts_are_those_of_the_rtl")),
    Mutant("records of another machine", "explore", Ladder.records,
           "self._records.where(machine=machine_key(*design.machine))",
           "self._records",
           tests("explore/test_records.py::"
                 "test_without_a_file_they_are_those_of_the_variable")),
    Mutant("records are not compiled with", "explore", sweep._work.__wrapped__,
           ", records=found)", ")",
           tests("explore/test_records.py::test_a_design_with_records_has_their_cycles"),
           caches=(sweep._work,)),
    Mutant("what is believed is still uncertain", "explore", Prediction.believe,
           "self.variance - row**2", "self.variance",
           tests("explore/test_replay.py::test_what_is_believed_is_as_if_it_were_seen")),
    Mutant("the first machine is not known", "explore", SurrogateSearch._list_candidates,
           "self._known[len(found)] = np.array(self._objectives(ladder.first), float)",
           "self._known[len(found)] = 7 * np.array(bounds[-1], float)",
           tests("explore/test_replay.py::test_the_surrogate_begins_at_the_front_of_the_bounds")),
)  # fmt: skip
