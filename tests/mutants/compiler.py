"""Bugs in the compiler: graph passes, quantisation, loops, code generation, order and tokens."""

from __future__ import annotations

from vdla.compiler import arena
from vdla.compiler.graph.arithmetic import (
    fixed_point,
    floor_requant,
    requant,
    shifted_scale,
    windows,
)
from vdla.compiler.graph.ir import Graph
from vdla.compiler.graph.ops import normalisation as normalisation_of_graph
from vdla.compiler.graph.ops import softmax as softmax_of_graph
from vdla.compiler.graph.ops.blocked import windows as windows_of_blocks
from vdla.compiler.graph.ops.blocked.matrix import BlockedMatrixConv2d
from vdla.compiler.graph.ops.pooling import QAvgPoolValid
from vdla.compiler.graph.passes import masks
from vdla.compiler.graph.passes.drop_identities import _same_value
from vdla.compiler.graph.passes.fold_activations import fold_activations
from vdla.compiler.graph.passes.fold_pads import _folded
from vdla.compiler.graph.passes.fuse_layer_norm import _Steps
from vdla.compiler.graph.passes.fuse_qdq import QdqFusion
from vdla.compiler.graph.passes.fuse_rotation import _Rotations
from vdla.compiler.graph.passes.fuse_softmax import _Softmax, fuse_softmax
from vdla.compiler.graph.passes.merge_transposes import merge_transposes
from vdla.compiler.graph.passes.split_batch import _is_shared, _split_operator
from vdla.compiler.partition import assign_targets
from vdla.compiler.quantize import caches, expand, four_bits, quantize, runs
from vdla.compiler.quantize.calibrate import Probe
from vdla.compiler.quantize.plan import _is_of_conditions
from vdla.compiler.quantize.rewrite import _Rewriter
from vdla.compiler.targets.common.fuse_elementwise import _ends, fuse_elementwise
from vdla.compiler.targets.cpu import core, llvm_functions, micro_kernel_code
from vdla.compiler.targets.cpu.core import Core
from vdla.compiler.targets.cpu.llvm import _Emitter
from vdla.compiler.targets.cpu.passes import block_channels, transposed_phases
from vdla.compiler.targets.cpu.passes.bit_serial import _packed
from vdla.compiler.targets.cpu.passes.fold_transposes import fold_transposes
from vdla.compiler.targets.cpu.passes.scale_weights import _pays, scale_weights
from vdla.compiler.targets.cpu.passes.stored_products import _Product
from vdla.compiler.targets.cpu.processor import Processor
from vdla.compiler.targets.cpu.templates.tiles import Loads
from vdla.compiler.targets.gpu import overlays, traffic
from vdla.compiler.targets.gpu.passes import narrow_tensors, window_rows
from vdla.compiler.targets.gpu.templates import general, parts, tensor_gemm
from vdla.compiler.targets.gpu.templates.depthwise import Depthwise
from vdla.compiler.targets.gpu.templates.product import Product
from vdla.compiler.targets.gpu.text import _Printer
from vdla.compiler.targets.vdla.cost import tiling as planner
from vdla.compiler.targets.vdla.expressions import tile_positions
from vdla.compiler.targets.vdla.lower import (
    loop_programs,
    order,
)
from vdla.compiler.targets.vdla.lower import (
    split_k as early_products,
)
from vdla.compiler.targets.vdla.lower import (
    vector_patterns as patterns,
)
from vdla.compiler.targets.vdla.lower.codegen import _Walker
from vdla.compiler.targets.vdla.lower.link import Linker, MicroOpRing
from vdla.compiler.targets.vdla.lower.lru_allocation import Rotation
from vdla.compiler.targets.vdla.lower.prefetch_weights import _Copies
from vdla.compiler.targets.vdla.lower.stream import Stream
from vdla.compiler.targets.vdla.machine import Machine
from vdla.compiler.targets.vdla.plan import dram_layout, program_plan, repeats
from vdla.compiler.targets.vdla.plan import scratchpads as sharing
from vdla.compiler.targets.vdla.plan.planner import Planner
from vdla.compiler.targets.vdla.plan.program import LinkedPart
from vdla.compiler.targets.vdla.rewrite import fuse_epilogues as fusing
from vdla.compiler.targets.vdla.rewrite.fold_into_tables import _Function
from vdla.compiler.targets.vdla.rewrite.fuse_tables_into_readers import fuse_tables_into_readers
from vdla.compiler.targets.vdla.rewrite.matmul_as_convolution import _Images
from vdla.compiler.targets.vdla.rewrite.order_by_first_use import order_by_first_use
from vdla.compiler.targets.vdla.templates import (
    concat_slice,
    fused_products,
    masked_softmax_loops,
    softmax,
)
from vdla.compiler.targets.vdla.templates import (
    convolution as products,
)
from vdla.compiler.targets.vdla.templates import (
    matmul as activations,
)
from vdla.compiler.targets.vdla.templates.base import AcceleratorTemplate, _find_cheapest
from vdla.compiler.targets.vdla.templates.channels import ChannelProducts, addition_constants
from vdla.compiler.targets.vdla.templates.convolution import Classifier, Products
from vdla.compiler.targets.vdla.templates.elementwise import Addition
from vdla.compiler.targets.vdla.templates.global_average import Means
from vdla.compiler.targets.vdla.templates.layer_norm import Normalise, RowFactors
from vdla.compiler.targets.vdla.templates.lookup_table import table_words
from vdla.compiler.targets.vdla.templates.masked_softmax_loops import Loops
from vdla.compiler.targets.vdla.templates.matmul import Activations, pack_shared, weight_tiles
from vdla.compiler.targets.vdla.templates.rotation import Rotations
from vdla.compiler.targets.vdla.templates.transpose import GroupsTransposed
from vdla.compiler.targets.vdla.templates.windows import Slide, Windows, plan_slide, slid
from vdla.compiler.te import affine, relations, rfactor
from vdla.compiler.tir import arrivals, bounds, disjoint, races
from vdla.compiler.tir.lower import _StageLowering
from vdla.compiler.tir.passes import (
    asynchronous,
    barriers,
    bulk,
    divisions,
    peel,
    pipeline,
    share_buffers,
)
from vdla.compiler.tir.passes.barriers import _Barriers
from vdla.compiler.tir.passes.launch import _Kernel
from vdla.compiler.tir.passes.vthread import _Interleaver
from vdla.compiler.topi import winograd
from vdla.compiler.topi.elements import merged_axes
from vdla.compiler.tune.together import Together
from vdla.generation.exported import Exported
from vdla.generation.quantised import _Trial
from vdla.isa import depend
from vdla.runtime import layout
from vdla.runtime.executable import Executable

from .checks import missing_tokens, tests, unordered, wrong_digits
from .plant import Mutant

PRODUCTS = "compiler/targets/vdla/templates/test_matmul.py::test_products"
CLASSIFIER = tests("compiler/targets/vdla/templates/test_classifier.py")
WORDS = "generation/test_words.py"
PLACES = "compiler/targets/vdla/rewrite/test_matmul_as_convolution.py"
ADDED = "compiler/targets/vdla/templates/test_convolution_constant.py"
TABLES = "compiler/targets/vdla/templates/test_convolution_table.py"
TOKENS = "compiler/targets/vdla/test_without_attention.py"
MASKS = "compiler/graph/passes/test_masks.py"
WARPGROUPS = tests("compiler/targets/gpu/test_warpgroups.py")
DEPTHWISE = tests("compiler/targets/gpu/test_depthwise.py")
ROTATION = (
    "compiler/targets/vdla/templates/test_rotation.py::"
    "test_accelerator_and_machine_code_equal_the_interpreter"
)
MASKED = "compiler/targets/vdla/templates/test_masked_softmax.py"
DISJOINT = tests("compiler/tir/test_disjoint.py")

SUITS_READER = tests(
    "compiler/targets/vdla/test_suits_reader.py"
    "::test_the_tensor_core_begins_before_the_last_rows_are_there"
)
SKIPPED_COLUMNS = tests("compiler/targets/vdla/templates/test_skipped_columns.py")
SLIDING = tests("compiler/targets/vdla/templates/test_windows.py")

COMPILER = (
    Mutant("a table outlives its entries of par", "compiler", order._find_repeats.__wrapped__,
           "and begin - table_entries < settings", "and end < settings",
           tests("compiler/targets/vdla/lower/test_order.py::test_a_table_is_not_set_again")),
    Mutant("parameters outlive their entries of par", "compiler", order._find_repeats.__wrapped__,
           "and begin - param_entries < settings", "and end < settings",
           tests("compiler/targets/vdla/lower/test_order.py::test_parameters_are_not_set_again")),
    Mutant("weights wait for results", "compiler", order.constants_apart,
           "TRACKS * (1 + queues) * is_constant", "0",
           tests("compiler/targets/vdla/lower/test_order.py"
                 "::test_weights_are_loaded_before_the_results_that_they_are_multiplied_by")),
    Mutant("the first order is taken", "compiler", order.dispatch_order,
           "min(found, key=lambda known: known[0])", "found[0]",
           tests("compiler/targets/vdla/lower/test_order.py::test_the_best_order_is_taken")),
    Mutant("borders are written once for all places", "compiler", _Walker.vector,
           "= NO_PADDING", "+= 0",
           tests("compiler/targets/vdla/templates/test_inverted_residual.py::test_it_equals_the_interpreter",
                 "compiler/targets/vdla/templates/test_inverted_residual.py::test_tiles")),
    Mutant("borders are not written", "compiler", _Walker.emit_bordered,
           "if start < stop", "if False",
           tests("compiler/targets/vdla/templates/test_inverted_residual.py"
                 "::test_it_equals_the_interpreter")),
    Mutant("slower programs are kept", "compiler", Together.run,
           "found.cycles < best.cycles", "found.cycles != best.cycles",
           tests("test_refining.py"
                 "::test_programs_become_faster_and_compile_makes_them_again")),
    Mutant("changes before are forgotten", "compiler", Together._propose,
           "{**best.changed, **", "{**",
           tests("test_refining.py"
                 "::test_programs_become_faster_and_compile_makes_them_again")),
    Mutant("the usual room for weights is taken", "compiler", program_plan.find_plan,
           "in SHARES[WGT_EIGHTHS]", "in ()",
           tests("compiler/targets/vdla/plan/test_shares.py"
                 "::test_that_is_taken_whose_program_ends_first")),
    Mutant("all operators have the usual room for weights", "compiler",
           sharing.share_scratchpads,
           "node.shares.get(WGT_EIGHTHS, USUAL_EIGHTHS)", "USUAL_EIGHTHS",
           tests("compiler/targets/vdla/plan/test_shares.py"
                 "::test_that_is_taken_whose_program_ends_first")),
    Mutant("programs have all room that there is", "compiler", Planner._search,
           "self.machine.rooms", "(None,)",
           tests("compiler/targets/vdla/plan/test_rooms.py"
                 "::test_the_fastest_program_is_taken_and_made_again")),
    Mutant("programs for short latencies are planned for these", "compiler", Machine.estimated,
           "latency = max(own.read_latency_cycles, usual.read_latency_cycles // times)",
           "latency = own.read_latency_cycles",
           tests("compiler/targets/vdla/plan/test_rooms.py"
                 "::test_faster_memories_are_planned_for_as_slower_ones")),
    Mutant("shares are as usual", "compiler", program_plan.find_plan,
           "for step in (1, -1)", "for step in ()",
           tests("compiler/targets/vdla/plan/test_program_plan.py")),
    Mutant("operators have the usual share", "compiler", program_plan.share_of,
           "if sixteenths is None", "if True",
           tests("compiler/targets/vdla/plan/test_shares.py"
                 "::test_a_smaller_share_has_smaller_tiles")),
    Mutant("buffers lie at the beginning of the scratchpads", "compiler", Linker.add,
           "+= first_of.get(memory, 0)", "+= 0",
           tests("compiler/targets/vdla/plan/test_scratchpads.py")),
    Mutant("the first of several programs is taken", "compiler", program_plan.find_plan,
           "min((best, *others), key=cycles_of)", "best",
           tests("compiler/targets/vdla/templates/test_inverted_residual.py"
                 "::test_the_graph_whose_program_ends_first_is_taken",
                 "compiler/targets/vdla/templates/test_convolution_residual.py"
                 "::test_what_ends_first_is_taken")),
    Mutant("layers that read other tensors are repeated", "compiler", repeats._longest_repetition,
           "(other - one == period)", "True", tests("compiler/targets/vdla/plan/test_repeats.py")),
    Mutant("operators with knobs of their own are fused", "compiler", program_plan.has_own_knobs,
           "bool(own) and", "False and",
           tests("compiler/targets/vdla/templates/test_convolution_residual.py"
                 "::test_knobs_for_an_operator_leave_it_alone",
                 "compiler/targets/vdla/templates/test_inverted_residual.py"
                 "::test_knobs_for_an_operator_leave_it_alone")),
    Mutant("an image with two readers is fused", "compiler", Graph.links,
           "len(readers[source.output]) == 1", "True",
           tests("compiler/targets/vdla/templates/test_inverted_residual.py"
                 "::test_which_convolutions_are_fused")),
    Mutant("elements are replaced wherever they are read", "compiler", share_buffers._replaces,
           "== texts", "!= []",
           tests("compiler/tir/test_share_buffers.py"
                 "::test_elements_replace_those_that_they_are_made_of")),
    *(Mutant(f"loop programs do not depend on {what}", "compiler", template.context_used,
             old, "return None", tests("compiler/targets/vdla/lower/test_loop_programs.py"))
      for what, template, old in (
          ("constants that stay", Windows, "return workload.shape.resident"),
          ("the order of results", ChannelProducts, "return workload.rows_first"),
          ("rows in tmp", fused_products.FusedProducts,
           "return rows_through_tmp(make_tiling(knobs), workload.shape)"),
      )),
    Mutant("numbers that decide are shared", "compiler", loop_programs._differ_in_fields,
           "others <= ready.code.slots", "True",
           tests("compiler/targets/vdla/lower/test_numbers.py")),
    Mutant("an operator has another one's numbers", "compiler", Linker.add,
           "= numbers[slot]", "+= 0", tests("compiler/targets/vdla/lower/test_numbers.py")),
    Mutant("all weights lie at the beginning", "compiler", LinkedPart._firsts,
           "self.turn_taking[name].take(used[name], operator.beside.get(name, 0))", "0",
           tests("compiler/targets/vdla/lower/test_order.py"
                 "::test_weights_are_loaded_before_the_results_that_they_are_multiplied_by")),
    Mutant("entries are taken that were used last", "compiler", Rotation.take,
           "argmin()", "argmax()",
           tests("compiler/targets/vdla/lower/test_lru_allocation.py"
                 "::test_operators_have_other_entries_while_there_are_any")),
    Mutant("entries of a neighbour are taken", "compiler", Rotation.take,
           "self.last.size - kept", "self.last.size",
           tests("compiler/targets/vdla/lower/test_lru_allocation.py"
                 "::test_the_last_entries_are_left_to_others_unless_there_are_too_few")),
    Mutant("parameters hold up weights", "compiler", order.constants_apart,
           'TURNS * (insns.column("memory") != LOADABLE.index("wgt"))', "0",
           tests("compiler/targets/vdla/lower/test_order.py"
                 "::test_parameters_do_not_hold_up_weights")),
    Mutant("instructions take no time of the bus", "compiler", order.dispatch_order,
           "len(insns) * insn_cycles", "0",
           tests("compiler/targets/vdla/lower/test_order.py"
                 "::test_loads_are_expected_to_take_longer_where_instructions_need_the_bus")),
    Mutant("each part of a product begins anew", "compiler", early_products._in_parts,
           "product.init and first == 0", "product.init",
           tests("compiler/targets/vdla/lower/test_split_k.py::test_parts_are_the_whole")),
    Mutant("each part of an image is its first", "compiler", early_products._in_parts,
           "load.offset_bytes + first *", "load.offset_bytes + 0 *",
           tests("compiler/targets/vdla/lower/test_split_k.py::test_results_stay")),
    Mutant("images never come in parts", "compiler", program_plan.find_plan,
           "SHARES[IMAGE_CHUNKS][-1]", "SHARES[IMAGE_CHUNKS][0]",
           tests("compiler/targets/vdla/plan/test_shares.py"
                 "::test_images_come_in_parts_where_that_saves_cycles")),
    Mutant("additions are fused without chunks first", "compiler", program_plan.find_plan,
           "for plan in (best, fused)", "for plan in (best,)",
           tests("compiler/targets/vdla/plan/test_program_plan.py"
                 "::test_fused_additions_may_want_chunks")),
    Mutant("only the very next operator runs beside", "compiler", dram_layout._last_beside,
           "if waits else", "if later > step + 1 else",
           tests("compiler/targets/vdla/plan/test_dram_layout.py"
                 "::test_the_next_operator_of_the_other_track_may_be_farther_away")),
    Mutant("an operator runs beside one that it waits for", "compiler", dram_layout._last_beside,
           "if waits else", "if False else",
           tests("compiler/targets/vdla/plan/test_dram_layout.py"
                 "::test_the_next_operator_of_the_other_track_may_be_farther_away")),
    Mutant("what a classifier beside reads is overwritten", "compiler",
           dram_layout._classifier_beside,
           "later if track is Track.CLASSIFIER else step", "step",
           tests("compiler/targets/vdla/plan/test_dram_layout.py"
                 "::test_a_classifier_beside_does_not_overwrite_what_is_classified")),
    Mutant("no dense layer is a classifier", "compiler", Classifier.handles,
           "is None", "is not None", CLASSIFIER),
    Mutant("a classifier has the entries of its mean", "compiler", LinkedPart._firsts,
           "entries - operator.beside.get(name, 0)", "entries", CLASSIFIER),
    Mutant("results for a classifier come at once", "compiler", planner.ProductShape.deliver,
           "PARTS * tiles.vthreads", "1", CLASSIFIER, caches=(planner.plan_tiles,)),
    Mutant("a softmax waits for all of its scores", "compiler", softmax.Softmax.schedule,
           "s[x_tile].unroll(chunk)", "pass",
           tests("compiler/targets/vdla/templates/test_softmax.py"
                 "::test_a_tile_that_fills_inp_comes_in_chunks")),
    Mutant("instructions of means cost nothing", "compiler", Means.cost,
           "price * self.insns(workload, plan.knobs)", "0",
           tests("compiler/targets/vdla/test_squeeze.py"
                 "::test_where_loads_are_scarce_sums_have_few_instructions"),
           caches=(_find_cheapest,)),
    Mutant("threads share the copies of weights", "compiler", _Copies.visit,
           "self.room // (threads *", "self.room // (",
           tests("compiler/targets/vdla/lower/test_prefetch_weights.py"
                 "::test_it_has_no_more_than_there_is_room_for")),
    Mutant("what is needed last goes first", "compiler", order_by_first_use,
           "uses[1] >= uses[0]", "uses[1] <= uses[0]",
           tests("compiler/targets/vdla/rewrite/test_order_by_first_use.py"
                 "::test_what_is_read_at_the_end_is_computed_later")),
    Mutant("what threads use in turn is allocated where it was", "compiler", _Interleaver.spread,
           "if buffer.scope in self.serial else stmt", "if False else stmt",
           tests("compiler/tir/test_vthread.py"
                 "::test_what_threads_use_in_turn_is_allocated_around_its_uses")),
    Mutant("settings of both tracks repeat each other", "compiler", order.repeated_settings,
           "tracks == track", "tracks >= 0",
           tests("compiler/targets/vdla/lower/test_order.py"
                 "::test_settings_that_a_track_repeats_are_expected_to_take_no_time")),
    Mutant("look-ups go before what has been ready for longer", "compiler", order.dispatch_order,
           "] = 1", "] = 0",
           tests("compiler/targets/vdla/lower/test_order.py"
                 "::test_a_depthwise_convolution_follows_a_table_closely")),
    # ---- squeeze-and-excitation, results that are finished before they leave
    Mutant("the zero point of values looked up is added", "compiler", patterns.match_value,
           "b=Const(-number)", "b=Const(number)",
           tests("compiler/targets/vdla/templates/test_squeeze_tables.py"
                 "::test_it_equals_the_interpreter")),
    Mutant("a table goes that others read", "compiler", fuse_tables_into_readers,
           "or None in found", "",
           tests("compiler/targets/vdla/templates/test_squeeze_tables.py::test_which_tables_are_fused")),
    Mutant("all blocks have the factors of the first", "compiler", ChannelProducts.schedule,
           "right[c, 0, 0, b, i]", "right[0, 0, 0, b, i]",
           tests("compiler/targets/vdla/templates/test_squeeze_tables.py"
                 "::test_it_equals_the_interpreter")),
    Mutant("no image comes in the order of its reader", "compiler", sharing._wanted_orders,
           "template.suits_reader and", "False and", SUITS_READER),
    Mutant("a table follows its reader, not its maker", "compiler", sharing._wanted_orders,
           "(template.waits_for_image or not follows)", "True",
           tests("compiler/targets/vdla/test_suits_reader.py"
                 "::test_a_table_behind_a_convolution_does_not_wait_for_whole_rows")),
    Mutant("tiles of an image go block by block", "compiler", tile_positions,
           "sizes, (1, 0)", "sizes[::-1], (0, 1)", SUITS_READER),
    Mutant("a first tile waits for nothing", "compiler", planner.ProductShape.waits,
           "context.maker_cycles * pixels", "0 * pixels",
           tests("compiler/targets/vdla/test_suits_reader.py"
                 "::test_the_first_tile_is_small_where_its_image_takes_long"),
           caches=(planner.plan_tiles,)),
    Mutant("the tensor core does not know its image's maker", "compiler",
           sharing.share_scratchpads, "maker_cycles=maker_cycles(node)", "maker_cycles=0",
           tests("compiler/targets/vdla/test_suits_reader.py"
                 "::test_small_tiles_follow_a_slow_maker")),
    Mutant("a layer that does not fit keeps its virtual threads", "compiler",
           sharing.share_scratchpads, "(machine.vthreads - 1) * (", "0 * (",
           tests("campaign/test_networks.py"
                 "::test_what_does_not_fit_twice_has_one_virtual_thread")),
    Mutant("a layer that does not fit stays on the accelerator", "compiler", assign_targets,
           "node.name in left", "not node.name",
           tests("campaign/test_networks.py::test_what_does_not_fit_runs_on_the_host")),
    Mutant("columns of a border are skipped", "compiler", planner.skips_cols,
           " or any(window.pads)", "", SKIPPED_COLUMNS),
    Mutant("columns are skipped where that is slow", "compiler", planner.skips_cols,
           "apart < ", "-1 < ", SKIPPED_COLUMNS),
    Mutant("columns are skipped beside many products", "compiler", planner.skips_cols,
           "SCARCE_SHARE * ", "0 * ", SKIPPED_COLUMNS),
    Mutant("rows of which columns are skipped are padded", "compiler", planner._lacks_rows,
           "shape.skips_cols", "False", SKIPPED_COLUMNS, caches=(planner.plan_tiles,)),
    Mutant("sums of parts are passed on", "compiler", patterns.fusable_buffers,
           "read_otherwise |= reads - {stmt.buffer}", "pass",
           tests("compiler/targets/vdla/test_squeeze.py"
                 "::test_a_mean_of_a_large_image_equals_the_interpreter")),
    Mutant("the product's second zero point is the first", "compiler", ChannelProducts.schedule,
           'astype("int32") - of_factor', 'astype("int32") - zero',
           tests("compiler/targets/vdla/test_squeeze.py::test_a_product_equals_the_interpreter")),
    Mutant("factors of a residual change places", "compiler", fusing._fuse,
           "replace(last, factors=last.factors[::-1])", "last",
           tests("compiler/targets/vdla/templates/test_convolution_residual.py::test_which_images_are_added")),
    Mutant("a table with the values of -128 first", "compiler", table_words,
           "np.roll(op.table, len(op.table) // 2)", "op.table",
           tests("compiler/targets/vdla/templates/test_convolution_table.py"
                 "::test_it_equals_the_interpreter")),
    # ---- convolutions in groups
    Mutant("all pieces of a window see the first columns", "compiler", slid,
           "step + piece * slide.sums", "step", SLIDING),
    Mutant("weights of a window in reverse", "compiler", Slide.pack,
           "cut.transpose(0, 1, 2, 4, 5, 3)", "cut.transpose(0, 1, 2, 4, 5, 3)[..., ::-1]",
           SLIDING),
    Mutant("a window slides with more loops than there are", "compiler", plan_slide,
           "parts > 1 and pieces > 1 and step > 1", "False", SLIDING),
    Mutant("windows slide where that is slower", "compiler", plan_slide,
           "results * slide.phases < cols * kw", "True", SLIDING),
    Mutant("a group has the channels of the first", "compiler", products.merge_groups,
           "g % count * channels", "0",
           tests("compiler/targets/vdla/templates/test_grouped.py::test_accelerator_equals_the_interpreter")),
    Mutant("tiles of padding only", "compiler", planner._has_blank_tile,
           "(size <= before) | (last <= behind)", "False",
           tests("compiler/targets/vdla/templates/test_grouped.py::test_no_tile_sees_padding_only"),
           (planner.plan_tiles,)),
    Mutant("groups beyond the last block", "compiler", Products.find_groups,
           "if fits and", "if",
           tests("compiler/targets/vdla/templates/test_grouped.py::test_groups_fill_whole_blocks")),
    # ---- products of matrices, rows and functions on the processor
    Mutant("a choice holds in the last iteration, too", "compiler", peel._peel,
           "copy_with(loop.body", "copy_with(first",
           tests("compiler/targets/cpu/test_products.py"
                 "::test_schedules_compute_what_plain_loops_do")),
    Mutant("all groups read the first one's channels", "compiler", windows_of_blocks.block_read,
           "(ob // results if results > 1 else ob) * weight[1] + ic", "ic",
           tests("compiler/targets/cpu/test_cpu_blocks.py::test_groups_of_integers")),
    Mutant("groups of a block share their weights", "compiler", block_channels._Blocks._kernels,
           "of_all // channels % (self.block // channels)", "0",
           tests("compiler/targets/cpu/test_cpu_blocks.py::test_groups_of_integers")),
    Mutant("sums of integers that float32 does not hold", "compiler",
           block_channels._Blocks._is_exact, "most * a.shape[-1] < EXACT_FLOATS", "True",
           tests("compiler/targets/cpu/test_products.py"
                 "::test_products_of_int8_whose_sums_float32_holds")),
    Mutant("rows of integers forget that elements are lifted", "compiler",
           block_channels._lifted_bias, "zero_point + OFFSET", "zero_point",
           tests("compiler/targets/cpu/test_products.py"
                 "::test_rows_of_int8_are_a_convolutions_places")),
    Mutant("columns are packed as they come", "compiler",
           block_channels._Blocks._before_transposition, "made.inputs[0], made.op.order",
           "made.inputs[0], tuple(range(len(made.op.order)))",
           tests("compiler/targets/cpu/test_products.py"
                 "::test_a_transposition_joins_the_packing")),
    Mutant("a transposition that is read again is gone", "compiler",
           block_channels._Blocks._before_transposition, "len(self.readers[name]) == 1 and", "",
           tests("compiler/targets/cpu/test_products.py"
                 "::test_products_of_two_inputs_equal_onnx_runtime")),
    Mutant("powers of two half as large", "compiler", llvm_functions._scaled,
           "constant_of(whole, 127)", "constant_of(whole, 126)",
           tests("compiler/targets/common/test_float_functions.py::test_how_far_from_the_exact_function")),
    Mutant("taps of a phase in their order", "compiler", transposed_phases._axes,
           "stride)][::-1]", "stride)]",
           tests("compiler/targets/cpu/test_transposed_phases.py::test_the_same_bits")),
    # ---- products of two activations
    Mutant("zero points of the other operand", "compiler", QdqFusion.matmul,
           "QMatMul(*zeros, rescale)", "QMatMul(*zeros[::-1], rescale)",
           tests("compiler/graph/ops/test_operators.py::test_integer_operator_agrees")),
    Mutant("zero points without their product", "compiler", Activations.constants,
           "count * w.a_zero_point * w.b_zero_point", "0",
           tests(f"{PRODUCTS}_equal_the_interpreter")),
    Mutant("sums of inputs with the first zero point", "compiler",
           activations.Activations.schedule, "ones, w.b_zero_point", "ones, w.a_zero_point",
           tests(f"{PRODUCTS}_equal_the_interpreter")),
    Mutant("memory ends with an operand", "compiler", AcceleratorTemplate.reach,
           "self.operand_as_weights is None", "True",
           tests("compiler/targets/vdla/templates/test_matmul.py::test_what_is_read_behind_an_operand_is_memory")),
    Mutant("products of the last places", "compiler", Activations.schedule,
           "else (0, 0, beyond, 0)", "else (beyond, 0, 0, 0)",
           tests(f"{PRODUCTS}_equal_the_interpreter")),
    Mutant("parts of a join lie in one place", "compiler", concat_slice._behind,
           "place + first", "place",
           tests("compiler/targets/vdla/templates/test_concat_slice.py::test_moves_equal_the_interpreter")),
    Mutant("an end is a beginning", "compiler", concat_slice.CopiedPositions.schedule,
           "workload.kept\n", "0\n",
           tests("compiler/targets/vdla/templates/test_concat_slice.py::test_moves_equal_the_interpreter")),
    Mutant("an image lies apart from its new end", "compiler", dram_layout._homes,
           "Reshape | BlockReshape | ReplaceEnd", "Reshape | BlockReshape",
           tests("compiler/targets/vdla/templates/test_concat_slice.py::test_moves_equal_the_interpreter")),
    Mutant("addresses of packed weights are those of others", "compiler", Linker._load_packed,
           "// plain * packed", "// plain * plain",
           tests("compiler/quantize/test_four_bits.py::test_a_machine_reads_four_bits")),
    Mutant("errors of 4 bits stay where they are", "compiler", four_bits._compensated,
           "np.outer(error,", "0 * np.outer(error,",
           tests("compiler/quantize/test_four_bits.py::test_errors_are_taken_back")),
    Mutant("places that are written to are seen", "compiler", caches._Attention.mask,
           'old = add("And", condition, kept)', "old = condition",
           tests("compiler/quantize/test_caches.py::test_caches_are_read_as_they_were")),
    Mutant("new rows have the conditions of the first places", "compiler", caches._Attention.mask,
           'add("Add", first, np.arange(self.rows)), axis=-1)', "np.arange(self.rows), axis=-1)",
           tests("compiler/quantize/test_caches.py::test_caches_are_read_as_they_were")),
    Mutant("causal rows of a filled cache begin at its first place", "compiler", expand._biases,
           "columns - row - 1 + rows", "columns - row",
           tests("compiler/quantize/test_caches.py::test_attention_is_taken_apart")),
    Mutant("all samples begin with empty caches", "compiler", runs.samples_of_runs,
           "kept[name].append(value)", "kept[name].append(0 * value)",
           tests("compiler/frontends/onnx/test_decoders.py::test_samples_are_runs_in_order")),
    Mutant("a batch has the rows of the first input", "compiler", Probe.batches,
           "self._rows.items()", "dict.fromkeys(self.samples, 1).items()",
           tests("compiler/frontends/onnx/test_decoders.py::test_int8_is_one_program[static]")),
    Mutant("padding of a prompt is seen", "compiler", Exported.feed,
           "start + rows) >= 0", "start + rows) >= -rows",
           tests("generation/test_exported.py::test_greedy_text_is_onnx_runtimes")),
    Mutant("tokens of a filled cache see none of the block", "compiler", Exported.feed,
           "np.arange(context) < position + rows", "np.arange(context) < position + 1",
           tests("generation/test_exported.py::test_greedy_text_is_onnx_runtimes")),
    Mutant("no weight is rounded again", "compiler", four_bits._again,
           "found[:, i] = _rounded(best, step[:, i])", "pass",
           tests("compiler/quantize/test_four_bits.py::test_errors_are_taken_back")),
    Mutant("rows of tiles close up", "compiler", _Walker.load_shape,
           "loop.extent + pad.before + pad.after", "loop.extent",
           tests("compiler/targets/vdla/templates/test_matmul.py::test_tiles_of_transpositions")),
    Mutant("a transposed image keeps what is beyond", "compiler", pack_shared,
           "block + last if last", "2 * block if last",
           tests("compiler/targets/vdla/templates/test_matmul.py::test_transpositions_equal_the_interpreter")),
    Mutant("what stays is there once for all groups", "compiler", planner.ProductShape.needs,
           "pixel_tiles * self.times == 1", "pixel_tiles == 1",
           tests(f"{PRODUCTS}_equal_the_interpreter"), (planner.plan_tiles,)),
    Mutant("values of a cache lie as they were", "compiler", _Images.grown_turned,
           "Transpose((0, 2, 1, 3))", "Transpose((0, 1, 2, 3))",
           tests("compiler/frontends/onnx/test_decoders.py::test_int8_is_one_program")),
    Mutant("every operator has one track", "compiler", program_plan.on_track,
           "shares.get(name) == value", "False",
           tests("compiler/targets/vdla/plan/test_program_plan.py::test_normalisations_may_run_beside_products")),
    Mutant("channels of queries stay where they were", "compiler", _Images.reorder,
           "constant.data[channels]", "constant.data",
           tests(f"{WORDS}::test_a_token_is_that_of_a_block")),
    Mutant("heads that were rows are read in their order", "compiler", _Images.make_convolution,
           "weight.data[:, order]", "weight.data",
           tests(f"{WORDS}::test_a_token_is_that_of_a_block")),
    Mutant("caches stay with the blocks", "compiler", Executable.take_states,
           "self._held.update(held)", "held.clear()",
           tests("generation/test_generate.py::test_greedy_text_is_that_of_the_whole_sequence")),
    Mutant("a computed mask is rounded", "compiler", _is_of_conditions,
           '== {"bool"}', "== set()",
           tests("compiler/quantize/test_quantize_tokens.py::test_masks_that_are_computed_are_not_rounded")),
    Mutant("any image of the right shape", "compiler", _Images.operand,
           "as_it_is = (order == (g // readers * width + c) * positions + p).all()",
           "as_it_is = True",
           tests(f"{PLACES}::test_as_many_tokens_as_channels")),
    Mutant("scores of keys by queries", "compiler", _Images.rewrite_softmax,
           "(order.reshape(groups, rows, columns) != rows_of_groups[:, :rows]).any()", "False",
           tests(f"{PLACES}::test_a_softmax_of_scores_that_are_turned")),
    Mutant("a softmax of the product's rows", "compiler", _Images.find_scores,
           "name = computed[0]", "break",
           tests(f"{PLACES}::test_a_softmax_between_products_is_in_the_program")),
    Mutant("what is added to scores lies in another order", "compiler", _Images.rewrite_elementwise,
           "image.reshape(-1)[first[1]] = data",
           "image.reshape(-1)[: data.size] = data.reshape(-1)",
           tests("compiler/quantize/test_quantize_tokens.py::test_positions_are_added_in_integers")),
    Mutant("any zero is a guard", "compiler", _Softmax.share,
           "or not is_nan(unlike.op)", "", tests(f"{MASKS}::test_other_zeros_are_no_guard")),
    Mutant("rotations lose the number behind them", "compiler", _Rotations.rotation,
           "real = factor * float", "real = float",
           tests("compiler/graph/passes/test_rotation.py::test_every_form_is_one_operator")),
    Mutant("sums read the first byte", "compiler", _Rewriter.run,
           "both.get(name, self.dequantized[name])", "self.dequantized[name]",
           tests("compiler/quantize/test_quantize_tokens.py::test_wide_tensors")),
    Mutant("a second byte with the steps of the first", "compiler", _Rewriter.store_low,
           "scale.scale / 2**LOW_BITS", "scale.scale",
           tests("compiler/quantize/test_quantize_tokens.py::test_wide_tensors")),
    Mutant("embeddings read float32 cosines", "compiler", _Rewriter.store,
           "self.replaced.add(name)", "pass",
           tests("compiler/graph/passes/test_rotation.py::test_the_file_says_how_cosines_are_rounded")),
    Mutant("stored sines lose their signs", "compiler", _Rotations.rotation,
           "not is_signed and", "",
           tests("compiler/graph/passes/test_rotation.py::test_the_file_says_how_cosines_are_rounded")),
    Mutant("no limit where the inverse has more bits", "compiler", softmax.Softmax.schedule,
           "total[at] >> w.room", "total[at] + w.room",
           tests("compiler/targets/vdla/templates/test_softmax.py::test_softmax_equals_the_interpreter")),
    Mutant("one of Newton's steps too few", "compiler", softmax_of_graph.newton_steps,
           "bit_length() + 4", "bit_length() + 3",
           tests("compiler/graph/ops/test_softmax.py::test_every_inverse_is_exact_and_fits_int32")),
    Mutant("inverses rounded down", "compiler", softmax_of_graph.refined,
           "(1 << (bits - 1))", "0",
           tests("compiler/graph/ops/test_softmax.py::test_every_inverse_is_exact_and_fits_int32")),
    Mutant("a softmax of many equal scores in float32", "compiler", _Softmax.fused,
           "OUT_SCALES[0] <=", "2.0**-16 <=",
           tests("compiler/graph/passes/test_passes.py::test_golden")),
    Mutant("an operator that lacks one scratchpad gets all of them", "compiler",
           sharing.share_scratchpads,
           "([], *([m] for m in limited), limited)", "([], limited)",
           tests("compiler/targets/vdla/plan/test_shares.py"
                 "::test_what_lacks_one_scratchpad_leaves_its_neighbours_the_others")),
    Mutant("a transposition's instructions cost nothing", "compiler", GroupsTransposed.cost,
           "+ price * self.insns(workload, plan.knobs)", "",
           tests("compiler/targets/vdla/templates/test_matmul.py"
                 "::test_a_transposition_fetches_few_instructions_beside_scarce_loads"),
           caches=(_find_cheapest,)),
    Mutant("any softmax in integers", "compiler", fuse_softmax,
           "node.output in weights", "True",
           tests("compiler/graph/passes/test_passes.py::test_golden")),
    Mutant("a softmax of whatever is reduced", "compiler", _Softmax.is_reduced,
           "Reduce(kind, (last,), True)", "Reduce(kind, node.op.axes, True)",
           tests("compiler/graph/passes/test_passes.py::test_golden")),
    Mutant("a sum that others read is fused", "compiler", fusing.fuse_epilogues,
           "len(readers[name]) == 1 and name not in graph.outputs", "True",
           tests(f"{ADDED}::test_which_additions_are_fused")),
    Mutant("a table is fused into windows that others read", "compiler",
           fusing.fuse_window_tables, "source for source, node in graph.links()",
           "graph.producers().get(node.inputs[0]) for node in graph.nodes",
           tests(f"{TABLES}::test_which_tables_are_fused_into_windows")),
    Mutant("results of windows have no room in tmp", "compiler", planner.WindowShape.needs,
           "tile.rows * tile.cols * self.looked_up", "0",
           tests(f"{TABLES}::test_it_equals_the_interpreter"), (planner.plan_tiles,)),
    Mutant("a move of the host is read as one of the accelerator", "compiler", _Images.once,
           "node.inputs, node.target)", "node.inputs, ACCELERATOR)",
           tests(f"{TOKENS}::test_it_is_one_program")),
    Mutant("an output in another shape loses its extremes", "compiler", quantize,
           "{copies.get(name, name) for name in outputs}", "{*outputs}",
           tests("compiler/quantize/test_quantize.py::test_percentile_leaves_outputs_their_extremes")),
    Mutant("of the tokens ahead only the first block", "compiler", _Trial.caches,
           "range(0, len(text), self.rows)", "range(1)",
           tests("generation/test_generate.py::test_a_text_stands_behind_its_start_and_a_space")),
    Mutant("room behind a constant has the constant's name", "compiler", _Images.with_room,
           'name, "before")', 'name, "part0")',
           tests("compiler/targets/vdla/test_vision_transformers.py::test_one_program")),
    Mutant("channels that fill no blocks are transposed", "compiler", _Images.unmoved,
           "channels % self.limits.block ==", "0 ==",
           tests(f"{TOKENS}::test_what_fills_no_blocks_is_transposed_by_the_host")),
    Mutant("a sum with the product's zero point", "compiler",
           fused_products._add_constants,
           "requantized(scaled, par, last)", "requantized(scaled, par, Epilogue())",
           tests(f"{ADDED}::test_it_equals_the_interpreter")),
    Mutant("threads in turn have a part of tmp each", "compiler", planner._room_in_tmp,
           "// tiles.cols", "// (tiles.cols * tiles.vthreads)",
           tests("compiler/targets/vdla/templates/test_convolution_residual.py::test_rows_that_pass_tmp")),
    Mutant("what outlives a turn is shared", "compiler", _Interleaver.spread,
           "Allocate(self.copy(buffer), ", "Allocate(buffer, ",
           tests("compiler/tir/test_vthread.py::test_threads_use_a_memory_in_turn")),
    # ---- masks
    Mutant("a mask that is not far enough", "compiler", masks._masked,
           "high <= low[best] - GAP", "high <= low[best]",
           tests(f"{MASKS}::test_what_is_no_mask_stays_in_float32")),
    Mutant("a row whose keys are all masked", "compiler", masks._masked,
           ".any(axis=-1).all()", ".any()",
           tests(f"{MASKS}::test_what_is_no_mask_stays_in_float32")),
    Mutant("scores of another scale", "compiler", masks.find_scores,
           "scale = _step(found[0][:, best])", "scale = 0.06",
           tests(f"{MASKS}::test_constants_that_keep_all_are_no_mask")),
    Mutant("masked scores take part in the maximum", "compiler", Loops.maxima,
           "a(*at) - b(*at)", "a(*at) + b(*at)",
           tests(f"{MASKED}::test_masked_softmax_equals_the_interpreter")),
    Mutant("exponentials of masked scores", "compiler", Loops.exponentials,
           "if p.masked:", "if False:",
           tests(f"{MASKED}::test_masked_softmax_equals_the_interpreter")),
    Mutant("masked blocks in one run", "compiler", masked_softmax_loops._runs,
           "(len(last) > 1 and row - last[-1] != last[1] - last[0])", "False",
           tests(f"{MASKED}::test_masked_softmax_equals_the_interpreter"),
           (masked_softmax_loops.group_tiles,)),
    Mutant("the mask of the first queries", "compiler", Loops.mask,
           "span.row + p.begin - span.free", "span.row",
           tests(f"{MASKED}::test_tiles")),
    # ---- layer normalisation
    Mutant("one of Newton's steps for roots too few", "compiler", normalisation_of_graph.normaliser,
           "range(STEPS)", "range(STEPS - 1)",
           tests("compiler/graph/ops/test_normalisation.py::test_all_that_is_computed_fits_int32")),
    Mutant("the mean's rounding is no variance", "compiler", normalisation_of_graph.normaliser,
           "(around << n.fraction_bits) - rounded", "(around << n.fraction_bits)",
           tests("compiler/graph/ops/test_normalisation.py::test_it_is_layer_normalisation")),
    Mutant("factors without a limit", "compiler", normalisation_of_graph.normaliser,
           "by.least(doubled + 1 >> 1, FACTOR_LIMIT)", "doubled + 1 >> 1",
           tests("compiler/graph/ops/test_normalisation.py::test_all_that_is_computed_fits_int32")),
    Mutant("RMS normalisation around zero", "compiler", normalisation_of_graph.normaliser,
           "if n.centre:", "if False:",
           tests("compiler/graph/ops/test_normalisation.py::test_around_a_centre_all_fits_int32")),
    Mutant("a normalisation by any power", "compiler", _Steps.affine,
           'Const(2.0, "float32")), "float32")', 'Const(4.0, "float32")), "float32")',
           tests("compiler/graph/passes/test_passes.py::test_golden")),
    Mutant("a normalisation of another tensor's mean", "compiler", _Steps._value,
           "not known or self.graph", "self.graph",
           tests("compiler/graph/passes/test_passes.py::test_golden")),
    Mutant("each half of a head turns with itself", "compiler", Rotations.schedule,
           "centred[(i[0], 1 - i[1], *i[2:])]", "centred[(i[0], i[1], *i[2:])]",
           tests(ROTATION)),
    Mutant("queries of all blocks have the mask of the first", "compiler", Loops.subtracted,
           "first = p.group.span.row + p.begin", "first = p.begin",
           tests(f"{MASKED}::test_a_computed_mask_equals_the_interpreter")),
    Mutant("a mask that hides only a little", "compiler", masks.Condition.hides,
           "return self.hidden <=", "return self.hidden < 0 or",
           tests(f"{MASKS}::test_conditions_that_hide_nothing_stay_in_float32")),
    Mutant("heads read each other's image", "compiler", Activations.schedule,
           "data[(i[0] // w.readers[0], *i[1:])]",
           "data[(i[0] % (w.groups // w.readers[0]), *i[1:])]",
           tests(f"{PRODUCTS}_equal_the_interpreter")),
    Mutant("heads read each other's weights", "compiler", weight_tiles,
           "else g // readers", "else g % (groups // readers)",
           tests(f"{PRODUCTS}_equal_the_interpreter")),
    Mutant("weights of heads that share an image are mixed", "compiler", weight_tiles,
           "together + c, Const(0)", "together, Const(0)",
           tests(f"{PRODUCTS}_equal_the_interpreter")),
    Mutant("a buffer is given away while it is read", "compiler", share_buffers._shared,
           "b in mine and last[b] == index", "b in mine",
           tests("compiler/targets/vdla/templates/test_layer_norm.py::test_it_equals_the_interpreter")),
    Mutant("digits of the first lane", "compiler", Normalise.constants,
           "np.eye(params.block, dtype=np.int8)[:, None]",
           "np.eye(params.block, dtype=np.int8)[:1, None].repeat(params.block, axis=0)",
           tests("compiler/targets/vdla/templates/test_layer_norm.py::test_it_equals_the_interpreter")),
    Mutant("digits of whole blocks of places", "compiler", RowFactors.schedule,
           "weight_tiles(x, 1, w.tiles, w.channel_blocks, w.places, block)",
           "weight_tiles(x, 1, w.tiles, w.channel_blocks, w.tiles * block, block)",
           tests("compiler/targets/vdla/templates/test_layer_norm.py::test_it_equals_the_interpreter")),
    Mutant("a second byte counts half", "compiler", normalisation_of_graph.QLayerNorm.times,
           "factor >> self.low_bits", "factor >> self.low_bits + 1",
           tests("compiler/graph/ops/test_normalisation.py"
                 "::test_a_second_tensor_has_what_rounding_lost")),
    Mutant("a second byte counts twice on the accelerator", "compiler", Normalise.schedule,
           "low_part[at] >> bits", "low_part[at] >> bits - 1",
           tests("compiler/targets/vdla/templates/test_layer_norm.py"
                 "::test_two_bytes_equal_the_interpreter")),
    Mutant("a normalisation along places", "compiler", _Images.normalise,
           "self.is_column(source) and _is_matrix(order, shape)", "self.is_column(source)",
           tests(f"{PLACES}::test_a_normalisation_between_matrices")),
    Mutant("a difference of other operands", "compiler", patterns.match_difference,
           'Arithmetic("table_diff", a, b, table)', 'Arithmetic("table_diff", b, a, table)',
           tests("compiler/targets/vdla/templates/test_softmax.py::test_softmax_equals_the_interpreter")),
    Mutant("images in any order are added", "compiler", _Images.rewrite_elementwise,
           "(order == first[1]).all()", "True", tests(f"{PLACES}::test_images_in_another_order")),
    Mutant("constants along places", "compiler", _Images.rewrite_channel_bias,
           "self.is_column(source) and _is_matrix(order, shape)", "self.is_column(source)",
           tests(f"{PLACES}::test_images_in_another_order")),
    Mutant("a table of two tensors", "compiler", _Function.operand,
           'source in ("", name)', "True",
           tests(f"{PLACES}::test_a_function_of_a_sum_is_no_table")),
    Mutant("constants that miss a value", "compiler", shifted_scale.find_constants,
           "(low < high - 1).all() and fits", "fits",
           tests("compiler/graph/arithmetic/test_shifted_scale.py"
                 "::test_what_does_not_scale_has_no_constants")),
    Mutant("channels without their constants", "compiler", addition_constants,
           "pack_parameters(op.const", "pack_parameters(0 * op.const",
           tests("compiler/targets/vdla/templates/test_matmul.py"
                 "::test_additions_equal_the_interpreter")),
    # ---- order and tokens
    Mutant("dropped token", "compiler", depend._find_tokens.__wrapped__,
           "pushes[source] |= 1 << unit",
           "pushes[source] |= 1 << unit if source % 3 else 0", missing_tokens),
    Mutant("writes do not wait for reads", "compiler", depend._find_needs.__wrapped__,
           "(writes[access] or slots[slot, 1])", "slots[slot, 1]", unordered),
    Mutant("clocks of others are believed", "compiler", depend._find_tokens.__wrapped__,
           "max(clocks[index, v], clocks[source, v])", "max(clocks[index, v], latest[other, v])",
           unordered),
    Mutant("loads behind their readers", "compiler", order.loads_by_need,
           "deadlines == np.arange", "deadlines != np.arange", wrong_digits),
    Mutant("dispatched before its operands", "compiler", order._when_ready.__wrapped__,
           "if ends[needed[k]] < 0:", "if False:", wrong_digits),
    # ---- loops and code
    Mutant("threads share their buffers", "compiler", _Interleaver.thread,
           "self.copies, index)", "self.copies, Const(0))",
           tests("compiler/tir/test_vthread.py")),
    Mutant("tails of one are computed", "compiler", relations.tail_guards,
           "> extents[r.parent]", "> extents[r.parent] + 1",
           tests("compiler/te/test_schedule_random.py")),
    Mutant("backwards is forwards", "compiler", bounds._index_range,
           "if coefficient > 0", "if True", tests("compiler/te/test_primitives.py")),
    Mutant("quotients begin with a whole one", "compiler", bounds._quotient_range,
           "(form.constant % divisor + count - 1)", "(count - 1)",
           tests("compiler/te/test_primitives.py")),
    Mutant("what divides stays inside", "compiler", affine._divided,
           "form.constant // divisor, whole", "form.constant, whole",
           tests("compiler/te/test_expr.py")),
    Mutant("signs of a transformation", "compiler", winograd.matrices.__wrapped__,
           "image[-1] = np.poly(points)[::-1]", "image[-1] = abs(np.poly(points))[::-1]",
           tests("compiler/targets/cpu/test_winograd.py::test_the_transformations_are_a_convolution"),
           (winograd.matrices,)),
    Mutant("ties of a floor go down", "compiler", floor_requant._last,
           "(rest == 0) & (whole % 2 == 1)", "(rest == 0)",
           tests("compiler/graph/arithmetic/test_floor_requant.py")),
    Mutant("the longer of two regions holds both", "compiler", bounds._union,
           "distance.constant + new[1]", "new[1]", tests("compiler/te/test_schedule_random.py")),
    Mutant("what is beyond a tail is reduced", "compiler", rfactor.factored,
           "term = select(inside, substitute(body.body, of_root), body.identity)",
           "term = substitute(body.body, of_root)",
           tests("compiler/te/test_schedule_random.py")),
    # ---- threads of a GPU
    Mutant("no barrier between statements", "compiler", _Barriers.sequence,
           "if self.conflict(since, part.head):", "if False:",
           tests("compiler/targets/gpu/test_threads.py")),
    Mutant("no barrier at a loop's end", "compiler", _Barriers.visit,
           "stmt.extent > 1 and self.conflict(body.tail, body.head, across=True)", "False",
           tests("compiler/targets/gpu/test_threads.py")),
    Mutant("threads overlap by one", "compiler", barriers._told_apart,
           "coefficient > span", "coefficient >= span",
           tests("compiler/targets/gpu/test_threads.py")),
    Mutant("readers' guards are those of the threads that work for them", "compiler",
           _Kernel._guards, " or var is not last[axis]", "",
           tests("compiler/targets/gpu/test_threads.py")),
    Mutant("all threads store the one result", "compiler", _Kernel._guards,
           "first = tuple(t.var.equal(Const(0)) for t in idle)", "first = ()",
           tests("compiler/targets/gpu/test_threads.py")),
    Mutant("a shared tile is that of one thread", "compiler", bounds._relaxed_leaves,
           "if around.kinds.get(a) in shared_by", "if False",
           tests("compiler/targets/gpu/test_threads.py")),
    Mutant("what a loop carries is not checked", "compiler", races._Checker.looped,
           "if loop.extent > 1:", "if False:",
           tests("compiler/targets/gpu/test_threads.py")),
    Mutant("a warp counts as its first thread", "compiler", _Barriers.apart,
           "(a.together, a.together and a.writes) != (b.together, b.together and b.writes)",
           "False", tests("compiler/targets/gpu/test_tensor_cores.py")),
    Mutant("a wait covers a group too few", "compiler", pipeline._pipelined,
           "filling.arrived(stages - 2)", "filling.arrived(stages - 1)",
           tests("compiler/targets/gpu/test_tensor_cores.py")),
    Mutant("arrivals are not checked", "compiler", arrivals._Arrivals.touch,
           "if buffer not in self.buffers:", "if True:",
           tests("compiler/targets/gpu/test_tensor_cores.py")),
    Mutant("stores without a fence", "compiler", asynchronous._awaited,
           "T.seq([T.ProxyFence(), stmt]) if follow and fences else stmt", "stmt", WARPGROUPS),
    Mutant("products that nobody waits for", "compiler", asynchronous._awaited,
           "replace(stmt, body=T.seq(body)), T.ProductsArrived(0)",
           "replace(stmt, body=T.seq(body)), T.ProductsArrived(1)", WARPGROUPS),
    Mutant("products go on while their operands are stored to", "compiler",
           asynchronous._may_go_on, "not early and ", "", WARPGROUPS),
    Mutant("buffers lie over others without a barrier", "compiler", overlays.shared_memory,
           "if _parts(stmts, *at)", "",
           tests("compiler/targets/gpu/test_overlays.py")),
    Mutant("the last part of a sum goes on beyond its end", "compiler", parts.in_parts,
           "ends = by_steps > 1 and steps * by_steps > all_steps", "ends = False",
           tests("compiler/targets/gpu/test_tensor_cores.py")),
    Mutant("phases of another round", "compiler", pipeline._Filling.signalled,
           "self.step // self.stages % 2", "self.step % 2", WARPGROUPS),
    Mutant("a signal without its last box", "compiler", pipeline._Filling.brought,
           "for _, call in calls)", "for _, call in calls[1:])", WARPGROUPS),
    Mutant("any condition is an edge", "compiler", bulk._check_edges,
           "not rest.terms and not rest.constant for rest in rests", "True for rest in rests",
           WARPGROUPS),
    Mutant("fences are not checked", "compiler", arrivals._Arrivals.multiplies,
           "if any(_overlap(slot, other) for other in known):", "if False:", WARPGROUPS),
    Mutant("a place as if it were not swizzled", "compiler", _Printer.element,
           "if buffer.swizzled:", "if False:", WARPGROUPS),
    Mutant("what an addition reads is narrow", "compiler", narrow_tensors._Narrowing.rounds,
           "alike and", "True or",
           tests("compiler/targets/gpu/test_tensor_cores.py")),
    Mutant("zeros in place of a zero point", "compiler", tensor_gemm.factor,
           "if outside and inside:", "if False:",
           tests("compiler/targets/gpu/test_tensor_cores.py")),
    Mutant("a zero point adds the same to all phases", "compiler", Product.with_zero_point,
           "less[b, j]", "less[0, j]", tests("compiler/targets/gpu/test_transposed.py")),
    Mutant("a stored border of zeros in place of a zero point", "compiler", window_rows.window_rows,
           "op.x_zero_point if", "0 if",
           tests("compiler/targets/gpu/test_window_rows.py"
                 "::test_the_border_of_an_image_of_int8_is_its_zero_point")),
    Mutant("columns that leave a rest", "compiler", Depthwise.space,
           "if not width % n", "", DEPTHWISE),
    Mutant("registers that begin between multiples of 16 bytes", "compiler", _Printer.declared,
           'if buffer.scope == "local" else', "if False else", DEPTHWISE),
    Mutant("what a loop of one iteration says is lost", "compiler", general.contract,
           "axis.extent > 1", "True", DEPTHWISE),
    Mutant("blocks are not compared", "compiler", races._Checker.check,
           "self.compare_blocks()", "pass",
           tests("compiler/targets/gpu/test_threads.py")),
    Mutant("parts of an index that overlap by one", "compiler", disjoint._Sums.parts,
           "+ slack < factor", "+ slack <= factor", DISJOINT),
    Mutant("a sum by some of its digits", "compiler", disjoint._all_digits,
           "term.high is None or", "True or", DISJOINT),
    Mutant("statements differ by what is forgotten", "compiler", disjoint._Sums.add,
           "highest - min(low for low, _ in others)", "0", DISJOINT),
    Mutant("a period that is cut off is forgotten", "compiler",
           traffic._times_together, "< extents[var] % period", "< 0",
           tests("compiler/targets/gpu/test_large_batches.py"
                 "::test_facts_hold_as_often_as_they_are_counted")),
    Mutant("negative places divided as C does", "compiler", _Printer.divided,
           "bounds[0] >= 0", "True",
           tests("compiler/targets/gpu/test_functions.py")),
    Mutant("rows of a scan before the first", "compiler", _StageLowering._in_order,
           "if producer in parts", "if producer not in parts",
           tests("compiler/te/test_language.py")),
    Mutant("images in another order", "compiler", _split_operator,
           "(op.starts[0], op.steps[0]) == (0, 1)", "True",
           tests("compiler/graph/passes/test_split_batch.py")),
    Mutant("a border between images", "compiler", _split_operator,
           "op.pads[0] == op.pads[len(result)] == 0", "True",
           tests("compiler/graph/passes/test_split_batch.py")),
    Mutant("each image its own factor", "compiler", _is_shared,
           "len(operand.shape) < rank or operand.shape[0] == 1", "True",
           tests("compiler/graph/passes/test_split_batch.py")),
    Mutant("padding on the wrong side", "compiler", Stream.load,
           "pad_left=pad_x.before, pad_right=pad_x.after",
           "pad_left=pad_x.after, pad_right=pad_x.before",
           tests("compiler/targets/vdla/lower/test_stream.py")),
    Mutant("first at every innermost reduction's start", "compiler", Stream._micro_ops,
           "first * (i < once)", "int(i < once)",
           tests("compiler/targets/vdla/lower/test_stream.py")),
    Mutant("forgotten micro-ops are reused", "compiler", MicroOpRing.take,
           "self.slots.clear()", "pass", tests("compiler/targets/vdla/lower/test_stream.py")),
    Mutant("micro-ops beside others are where these are", "compiler", Linker.__post_init__,
           "MicroOpRing(first.end, depth)", "MicroOpRing(0, depth)",
           tests("compiler/targets/vdla/lower/test_stream.py")),
    Mutant("a long sum begins anew at its second step", "compiler", Stream.gemm,
           "others, init=False", "others, init=True",
           tests("compiler/targets/vdla/lower/test_stream.py"
                 "::test_a_long_sum_has_two_micro_ops")),
    Mutant("guard cuts one too many", "compiler", _Walker.bounds,
           "slack // -k + 1", "slack // -k", wrong_digits),
    Mutant("kernel columns before rows", "compiler", layout.pack_weight,
           "0, 2, 4, 5, 1, 3", "0, 2, 5, 4, 1, 3", wrong_digits),
    Mutant("lifetimes end before the last read", "compiler", arena.Lifetime.overlaps,
           "self.first <= other.last", "self.first < other.last",
           tests("compiler/targets/cpu/test_cpu_graph.py")),
    Mutant("outputs inside a chain are not stored", "compiler", _ends,
           "len(following) != 1 or name in graph.outputs", "len(following) != 1",
           tests("compiler/targets/common/test_fuse_elementwise.py"
                 "::test_a_value_that_is_an_output_is_stored")),
    Mutant("operators of other shapes join", "compiler", fuse_elementwise,
           "graph[end].shape == shape and", "",
           tests("compiler/targets/common/test_fuse_elementwise.py::test_smaller_values_are_stored")),
    Mutant("any transpose ends blocks", "compiler", fold_transposes,
           "order == TO_LAST", "True", tests("compiler/targets/cpu/test_fold_transposes.py")),
    Mutant("any transpose begins blocks", "compiler", fold_transposes,
           "order == FROM_LAST", "True", tests("compiler/targets/cpu/test_fold_transposes.py")),
    Mutant("a scaled image that others read is gone", "compiler", Graph.links,
           "len(readers[source.output]) == 1", "True",
           tests("compiler/targets/cpu/test_scale_weights.py")),
    Mutant("images scaled by the same values share a tensor's name", "compiler", scale_weights,
           'f"{scaling.output}.rows"', 'f"{values}.rows"',
           tests("compiler/targets/cpu/test_scale_weights.py")),
    Mutant("weights are scaled where that is more work", "compiler", _pays,
           "prod(weight) < prod(image)", "True",
           tests("compiler/targets/cpu/test_scale_weights.py")),
    Mutant("anything may be the first of a chain", "compiler", fuse_elementwise,
           "(is_elementwise(node) or isinstance(node.op, parts))", "True",
           tests("compiler/targets/common/test_fuse_elementwise.py"
                 "::test_parts_of_tensors_may_be_first")),
    Mutant("axes merged where one operand is broadcast", "compiler", merged_axes,
           "present == before", "True", tests("compiler/targets/common/test_fuse_elementwise.py")),
    Mutant("elements of more bits lose them", "compiler", _packed,
           "max(bits, weight_bits) > MAX_BITS", "weight_bits > MAX_BITS",
           tests("compiler/targets/cpu/test_bit_serial.py::test_what_has_more_bits_stays")),
    Mutant("ties go down", "compiler", _Emitter._requantize,
           "builder.sub(half, one), odd", "builder.sub(half, one), builder.sub(one, one)",
           tests("compiler/targets/cpu/test_cpu_expressions.py::test_requantize_ties")),
    Mutant("quotients are those of the first iteration", "compiler", divisions._simplified,
           "found[0] // divisor == found[1] // divisor", "True",
           tests("compiler/tir/test_divisions.py")),
    Mutant("tiles of weights have all their rows", "compiler", micro_kernel_code._configuration,
           "(fours, mk.TILE_BYTES)", "(mk.TILE_ROWS, mk.TILE_BYTES)",
           tests("compiler/targets/cpu/test_tiles.py"
                 "::test_instructions_are_their_declared_behaviour")),
    Mutant("tiles after a parallel loop are not prepared", "compiler", _Emitter._parallel_loop,
           "if self.tile_depth and inner.tile_depth:", "if False:",
           tests("compiler/targets/cpu/test_tiles.py::test_tiles_after_a_parallel_loop")),
    Mutant("phases in the wrong order", "compiler", BlockedMatrixConv2d._products,
           "row % sh, column % sw", "column % sh, row % sw",
           tests("compiler/targets/cpu/test_tiles.py"
                 "::test_convolutions_equal_their_operator")),
    Mutant("tiles have the peak of products of four", "compiler",
           micro_kernel_code.fastest_instruction, 'return "AMX"', 'return "VNNI"',
           tests("bench/test_cpu_bench.py::test_an_integer_layer_against_onnx_runtime")),
    Mutant("sums wait for nothing", "compiler", Core.step_cycles,
           "latency_cycles, loading", "loading",
           tests("compiler/targets/cpu/test_core.py")),
    Mutant("the zero point of stored integers is forgotten", "compiler", _Product._correct,
           'acc - z.astype("int32") * weights', "acc",
           tests("compiler/targets/cpu/test_stored_products.py::test_matmul_integer_is_tiled")),
    Mutant("a shorter vector has an element more", "compiler", peel._shortened,
           "extent=count", "extent=count + 1",
           tests("compiler/targets/cpu/test_cpu_vectors.py::test_the_last_vector_is_shorter")),
    Mutant("fewer registers hold sums", "compiler", Processor.sums.fget,
           "self.registers - 4", "self.registers // 2 - 2",
           tests("compiler/targets/cpu/test_core.py::test_plans_of_products")),
    Mutant("rows that share a set stay in the cache", "compiler", Loads.far_bytes,
           "LINE_BYTES if crowded else self.element_bytes", "self.element_bytes",
           tests("compiler/targets/cpu/test_core.py::test_plans_of_products")),
    Mutant("a contended core is a slow one", "compiler", core._rate,
           "RATE_FRACTION * rate", "rate", tests("compiler/targets/cpu/test_core.py")),
    # ---- graph passes and quantisation
    Mutant("multiplier truncated", "compiler", requant.requant_params,
           "round(mantissa * 2**MULTIPLIER_BITS)", "int(mantissa * 2**MULTIPLIER_BITS)",
           tests("compiler/graph/arithmetic/test_requant.py")),
    Mutant("sum of an addition overflows", "compiler", requant._sum_fits,
           "128 * sum(map(abs, factors)) + abs(const) + 2 ** (shift - 1)",
           "128 * max(map(abs, factors))",
           tests("compiler/graph/arithmetic/test_requant.py")),
    Mutant("an addition keeps the nearest numbers", "compiler", requant.defined_add_params,
           "count := wrong(*tried)) < least", "count := wrong(*tried)) > least",
           tests("compiler/graph/arithmetic/test_requant.py")),
    Mutant("a difference is a sum", "compiler", QdqFusion.terms,
           "-sign if is_difference(node) else sign", "sign",
           tests("compiler/targets/vdla/templates/test_elementwise.py::test_sums_and_differences")),
    Mutant("a sum of its last operands", "compiler", Addition.schedule,
           "for x in others[:-1]:", "for x in others[:0]:",
           tests("compiler/targets/vdla/templates/test_elementwise.py::test_sums_and_differences")),
    Mutant("weights scaled along any axis", "compiler", QdqFusion.weight,
           "if quant.axis not in (None, axis):", "if False:",
           tests("compiler/test_reasons.py")),
    Mutant("clips what others read", "compiler", fold_activations,
           "len(consumers[source.output]) > 1", "False",
           tests("compiler/graph/passes/test_passes.py")),
    Mutant("requantisation dropped", "compiler", _same_value,
           "before.op.quant.same(quant)", "True", tests("compiler/graph/passes/test_passes.py")),
    Mutant("padding of any value folded", "compiler", _folded,
           "value != conv.x_zero_point", "False", tests("compiler/graph/passes/test_passes.py")),
    Mutant("transpositions composed backwards", "compiler", merge_transposes,
           "tuple(before[axis] for axis in order)", "tuple(order[axis] for axis in before)",
           tests("compiler/graph/passes/test_passes.py")),
    Mutant("windows outside are zero", "compiler", windows.windows,
           "constant_values=fill", "constant_values=0",
           tests("compiler/targets/vdla/rewrite/test_pack_windows.py")),
    # ---- TensorFlow Lite
    Mutant("divides negatives upwards", "compiler", fixed_point.divide_by_pot,
           "(mask >> 1) + (x < 0)", "(mask >> 1)",
           tests("compiler/graph/arithmetic/test_fixed_point.py")),
    Mutant("exponential off by a bit", "compiler", fixed_point.exp_on_negative_values,
           "fraction_bits - 2 + position", "fraction_bits - 1 + position",
           tests("compiler/frontends/tflite/test_tflite_operators.py::test_interpreter_is_exact")),
    Mutant("padding counts in the mean", "compiler", QAvgPoolValid.counts,
           "last - np.maximum(first, 0)", "last - first",
           tests("compiler/frontends/tflite/test_tflite_operators.py::test_interpreter_is_exact")),
)  # fmt: skip
