"""Bugs in the tuner: features, ranks, the walk, bounds and records."""

from __future__ import annotations

from vdla.compiler.choose.records import Records
from vdla.compiler.targets.vdla import planner
from vdla.compiler.tune import boosted, explorer, features, loop_features
from vdla.compiler.tune.annealing import ModelAnnealing
from vdla.compiler.tune.search import Search

from .checks import tests
from .plant import Mutant

_EXPLORERS = "compiler/tune/test_explorers.py"

TUNE = (
    Mutant("numbers are no features", "compiler", features.knob_features,
           "np.log2(1.0 + column)", "0.0 * column",
           tests(f"{_EXPLORERS}::test_a_model_ranks_what_it_has_not_seen")),
    Mutant("integers are not counted", "compiler", loop_features._operations,
           "integer + (not is_float)", "integer",
           tests("compiler/tune/test_features.py")),
    Mutant("ranks upside down", "compiler", boosted._speeds,
           "cost.min() / cost", "1.0 - cost.min() / cost",
           tests(f"{_EXPLORERS}::test_a_model_ranks_what_it_has_not_seen")),
    Mutant("chains begin again", "compiler", ModelAnnealing.propose,
           "self.walk(count)", "begun = self.chains; self.walk(count); self.chains = begun",
           tests(f"{_EXPLORERS}::test_chains_go_on_from_where_they_were_when_the_model_has_learned")),
    Mutant("points come again", "compiler", explorer.Explorer._take,
           "self.known[point] = True", "self.known[point] = False",
           tests(f"{_EXPLORERS}::"
                 "test_the_same_seed_makes_the_same_trials_and_no_point_comes_twice[ga]")),
    Mutant("outcomes as they come", "compiler", Search.run,
           "outcomes[index] for index in range(len(points))", "*outcomes.values()",
           tests(f"{_EXPLORERS}::test_outcomes_in_any_order_belong_to_their_knobs")),
    Mutant("records of any machine", "compiler", Records.find,
           "self._best.get(Key(target, machine, template, workload))",
           "next((r for k, r in self._best.items() if (k[0], *k[2:])"
           " == (target, template, workload)), None)",
           tests("compiler/choose/test_records.py")),
    Mutant("a floor too high", "compiler", planner._floor,
           "stored), steps)", "stored), 1.3 * steps)",
           tests("bench/test_tuning.py::test_no_program_beats_the_floor_of_the_cost_model")),
)  # fmt: skip
