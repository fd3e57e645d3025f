"""Bugs in the tuner: features, ranks, the walk, bounds and records."""

from __future__ import annotations

from vdla.compiler.choose import chooser
from vdla.compiler.choose.records import Records
from vdla.compiler.graph.ops.blocked.windows import Windowed
from vdla.compiler.targets.cpu import llvm
from vdla.compiler.targets.vdla.cost import pipeline_model as replay
from vdla.compiler.targets.vdla.cost import tiling as planner
from vdla.compiler.targets.vdla.templates.searched import ProductsBySteps
from vdla.compiler.te import steps
from vdla.compiler.tune import boosted, explorer, features, loop_features, quality
from vdla.compiler.tune.annealing import ModelAnnealing
from vdla.compiler.tune.auto import builder, gradient, rules
from vdla.compiler.tune.auto.accelerator import _Rules as AcceleratorRules
from vdla.compiler.tune.auto.evolution import Evolution
from vdla.compiler.tune.search import Search

from .checks import tests
from .plant import Mutant

_EXPLORERS = "compiler/tune/test_explorers.py"
_AUTO = "compiler/tune/test_auto_search.py"

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
    Mutant("windows on blocks are no work", "compiler", Windowed.macs,
           "* math.prod(weight)", "* 0",
           tests("compiler/targets/cpu/test_work.py")),
    Mutant("points come again", "compiler", explorer.Explorer._take,
           "self.known[point] = True", "self.known[point] = False",
           tests(f"{_EXPLORERS}::"
                 "test_the_same_seed_makes_the_same_trials_and_no_point_comes_twice[ga]")),
    Mutant("outcomes as they come", "compiler", Search.run,
           "outcomes[index] for index in made", "*outcomes.values()",
           tests(f"{_EXPLORERS}::test_outcomes_in_any_order_belong_to_their_knobs")),
    Mutant("records of any machine", "compiler", Records.find,
           "self._ranked.get(Key(target, machine, template, workload), ())",
           "next((r for k, r in self._ranked.items() if (k[0], *k[2:])"
           " == (target, template, workload)), ())",
           tests("compiler/choose/test_records.py")),
    Mutant("the best record alone is tried", "compiler", chooser.choose,
           "knobs in records if", "knobs in records[:1] if",
           tests("compiler/choose/test_choices.py"
                 "::test_where_the_best_record_does_not_fit_the_next_one_does")),
    Mutant("a floor too high", "compiler", planner._floor,
           "stored), steps)", "stored), 1.3 * steps)",
           tests("bench/test_tuning.py::test_no_program_beats_the_floor_of_the_cost_model")),
    Mutant("a cross is one parent", "compiler", Evolution._crossed,
           "a if self.rng.random() < 0.5 else b", "a",
           tests(f"{_AUTO}::test_a_cross_takes_each_stage_from_one_of_two")),
    Mutant("a cross mixes within a stage", "compiler", Evolution._crossed,
           "if opening.stage not in sides:", "if True:",
           tests(f"{_AUTO}::test_a_cross_takes_each_stage_from_one_of_two")),
    Mutant("a change changes everything", "compiler", builder.as_in,
           "if opening.key in steps and steps[opening.key] in opening.options:", "if False:",
           tests(f"{_AUTO}::test_a_change_keeps_all_other_steps_that_are_still_possible")),
    Mutant("logs are not followed", "compiler", builder.following,
           "if made in opening.options:", "if False:",
           tests(f"{_AUTO}::test_a_log_in_a_record_is_found_again_and_another_one_is_none")),
    Mutant("schedules come again", "compiler", Evolution.ask,
           "self._asked.add(point)", "pass",
           tests(f"{_AUTO}::test_the_same_seed_makes_the_same_trials_and_no_schedule_comes_twice")),
    Mutant("each layer counts once", "compiler", gradient.promise,
           "course.weight * (", "1 * (",
           tests(f"{_AUTO}::test_a_task_that_the_network_has_often_comes_first_and_an_ended_one"
                 "_never")),
    Mutant("stages of one name are one", "compiler", steps.label,
           'f"{item.name}#{place}" if place else item.name', "item.name",
           tests("compiler/te/test_steps.py")),
    Mutant("any reader follows in place", "compiler", rules.reads_in_place,
           "all(r.indices == element", "all(True",
           tests("compiler/tune/test_auto_programs.py::test_who_reads_in_place")),
    Mutant("operands are exchanged", "compiler", AcceleratorRules._operands,
           '{rows: "inp", columns: "wgt"}', '{rows: "wgt", columns: "inp"}',
           tests("compiler/tune/test_auto_accelerator.py::"
                 "test_tensorized_programs_compute_the_right_bits[dense]")),
    Mutant("steps of any size", "compiler", ProductsBySteps._refuse,
           "return workload.context.budget.lack(Code(func, params).used)", 'return ""',
           tests(f"{_AUTO}::test_steps_that_need_more_than_the_share_of_a_layer_are_refused")),
    Mutant("a trial is scored by its own model", "compiler", quality.held_out_scores,
           "scores[asked] = model.score(at[asked])", "scores[learned] = model.score(at[learned])",
           tests(f"{_EXPLORERS}::test_a_trial_is_scored_by_a_model_that_did_not_learn_from_it")),
    Mutant("shares are no features", "compiler", features.Features._computed,
           "parts.append(np.log2(LEAST_SHARE + shares))", "pass",
           tests(f"{_EXPLORERS}::test_shares_of_the_cycles_are_features")),
    Mutant("buffers of the tiling before", "compiler", replay._replay_each.__wrapped__,
           "results[buffer] = 0.0", "pass",
           tests("compiler/targets/vdla/cost/test_pipeline_model.py")),
    Mutant("indices of elements never wrap", "compiler", llvm._Emitter._index,
           'a, b) if _is_total(expr):', "a, b):",
           tests("compiler/targets/cpu/test_cpu_expressions.py::"
                 "test_an_index_computed_from_elements_wraps_as_its_dtype_does")),
)  # fmt: skip
