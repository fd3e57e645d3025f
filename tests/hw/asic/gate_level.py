"""A netlist as Verilog that Verilator runs like the core, and that adds up the energy of all
toggles of all nets in every cycle.
"""

from __future__ import annotations

import re
from pathlib import Path

from vdla.hw.asic.activity import evaluate, python_function, roots
from vdla.hw.asic.energy import toggle_weights
from vdla.hw.asic.netlist import Bit, Netlist
from vdla.hw.asic.timing import Timing, state_of

#: Units of energy in a pJ.
SCALE = 1_000_000
_PORT = re.compile(r"^  (input|output) (\[\d+:0\] )?(\w+);$", re.MULTILINE)


def net_name(net: Bit) -> str:
    return f"n{net}" if isinstance(net, int) else {"1": "1'b1"}.get(net, "1'b0")


def gate_level(netlist: Netlist, text: str, timing: Timing, weights_file: Path) -> str:
    """The Verilog of a netlist of the core whose Verilog was ``text``. Where the core stops running
    it prints ``ENERGY`` with the cycles that it ran, and the sum of the weights of all toggles.
    """
    module = text[text.index("module vdla_core(") :].partition("\nendmodule")[0]
    header = module[: module.index(";") + 1]
    lines, numbers = [header], {net for one in netlist.instances for net in one.nets.values()}
    names = {name: net for net, found in netlist.signals.items() for name in found}
    for way, width, port in _PORT.findall(module):
        count = int(width[1:].partition(":")[0]) + 1 if width else 1
        lines.append(f"{way} {width}{port};")
        for bit in range(count):
            net = names.get((port, bit))
            here = f"{port}[{bit}]" if width else port
            if way == "output":
                lines.append(f"assign {here} = {net_name(net if net is not None else '0')};")
            elif net in numbers or net in {*roots(netlist)}:
                lines.append(f"assign {net_name(net)} = {here};")
                numbers.add(net)
    # What registers hold after a reset.
    start = dict.fromkeys(roots(netlist), 0)
    if ("rst", 0) in names:
        start[names["rst", 0]] = 1
    begin = evaluate(netlist, start, 1)
    registers, clocked = set(), []
    for one in netlist.instances:
        if one.cell.clock:
            state = state_of(one)
            registers.add(state)
            clocked.append(f"{net_name(state)} <= {net_name(one.nets[one.cell.next])};")
            lines.append(f"initial {net_name(state)} = {begin.get(one.nets[one.cell.next], 0)};")
            continue
        for pin, net in one.outputs().items():
            function = python_function(one.cell.pins[pin].function, "@{}@")
            function = re.sub(r"@(\w+)@", lambda pin, one=one: net_name(one.nets[pin[1]]), function)
            lines.append(f"assign {net_name(net)} = {function};")
    for place, memory in enumerate(netlist.memories):
        lines.append(f"reg [{memory.bits - 1}:0] m{place} [0:{memory.words - 1}];")
        for port in memory.writes:
            address = bits(port.address)
            by_enable: dict[Bit, list[int]] = {}
            for bit, enable in enumerate(port.enable):
                by_enable.setdefault(enable, []).append(bit)
            for enable, places in by_enable.items():
                low, high = min(places), max(places)
                assert places == list(range(low, high + 1))
                clocked.insert(0, f"if ({net_name(enable)}) m{place}[{address}][{high}:{low}] = "
                                  f"{bits(port.data[low : high + 1])};")  # fmt: skip
        for port in memory.reads:
            # What is written at this edge is read: where it matters, synthesis counts on it.
            read = (
                f"{bits(port.data)} {'<=' if port.clocked else '='} m{place}[{bits(port.address)}];"
            )
            numbers |= {*port.data, *port.address, *port.enable}
            if port.clocked:
                registers |= {*port.data}
                clocked.append(read)
            else:
                lines.append(f"assign {read}")
        for port in memory.writes:
            numbers |= {*port.data, *port.address, *port.enable}
    nets = sorted(net for net in numbers if isinstance(net, int))
    declared = [f"{'reg' if net in registers else 'wire'} n{net};" for net in nets]
    head, body = lines[0], lines[1:]
    ports = [line for line in body if line.startswith(("input", "output"))]
    rest = [line for line in body if not line.startswith(("input", "output"))]
    return "\n".join([
        head, *ports, *declared, *rest,
        "always @(posedge clk) begin", *clocked, "end",
        *_counted(netlist, timing, weights_file), "endmodule", "",
    ])  # fmt: skip


def bits(nets) -> str:
    return "{" + ", ".join(net_name(net) for net in reversed(nets)) + "}"


def _counted(netlist: Netlist, timing: Timing, weights_file: Path) -> list[str]:
    weights = toggle_weights(netlist, timing)
    nets = sorted(net for net in weights if isinstance(net, int))
    values = [round(SCALE * sum(weights[net])) for net in nets]
    values += [0] * (-len(values) % 64)
    weights_file.write_text("\n".join(f"{value:x}" for value in values) + "\n")
    words = [nets[place : place + 64] for place in range(0, len(nets), 64)]
    lines = [
        "reg was = 0; reg [63:0] total = 0; reg [63:0] ran = 0; reg [63:0] d; integer b;",
        f"reg [31:0] weight [0:{len(values) - 1}];",
        f'initial $readmemh("{weights_file}", weight);',
    ]
    for number, word in enumerate(words):
        lines.append(f"wire [{len(word) - 1}:0] a{number} = {bits(word)};")
        lines.append(f"reg [{len(word) - 1}:0] o{number};")
    lines.append("always @(negedge clk) begin")
    for number in range(len(words)):
        lines.append(
            f"d = a{number} ^ o{number}; o{number} <= a{number}; if (was && d != 0) "
            f"for (b = 0; b < 64; b = b + 1) if (d[b]) total = total + weight[{64 * number} + b];"
        )
    return [
        *lines, "if (was) ran = ran + 1; was <= running;",
        'if (was && !running) $display("ENERGY %0d %0d", ran, total);', "end",
    ]  # fmt: skip
