"""Operators with subgraphs, and variables by handles.

The nodes of a subgraph are read in the place of its operator. The branch of an IF must be known, or
both branches are computed and one is chosen element by element. The steps of a WHILE are read one
after the other, so its condition must be known while the model is read.
"""

from __future__ import annotations

import numpy as np

from ....graph.ir import Tensor
from ....te.expr import select
from ..graph import ANY, Bound, Call, Rows
from ..state import Key, initial_value

#: The most steps of a WHILE, each of which is a copy of all its nodes.
MAX_STEPS = 4096


# ---- subgraphs -----------------------------------------------------------------------------------


def _given(call: Call, first: int = 0) -> list[Bound]:
    """The operands from ``first`` on, for a subgraph."""
    if any(index < 0 for index in call.operator.inputs[first:]):
        raise call.refuse("expected all operands of a subgraph, one is missing")
    return [call.importer.bound(index) for index in call.operator.inputs[first:]]


def _define(call: Call, values: list[Bound]) -> None:
    """Give the results the values of a subgraph's outputs."""
    importer = call.importer
    if len(values) != len(call.operator.outputs):
        raise call.refuse(
            f"expected {len(call.operator.outputs)} results of its subgraph, got {len(values)}"
        )
    for result, value in zip(call.results, values, strict=True):
        if isinstance(value, tuple) or (
            isinstance(value, np.ndarray) and result.index not in importer.names
        ):
            importer.bind(result.index, value)
        else:
            call.define(_stored(call, value), result=result)


def _stored(call: Call, value: Bound) -> Tensor:
    """The graph's tensor with a value."""
    if isinstance(value, np.ndarray):
        return call.value(call.as_stored(value))
    assert isinstance(value, str)
    return call.tensors[value]


def _if(call: Call) -> None:
    importer, given = call.importer, _given(call, 1)
    branches = call.option("ThenSubgraphIndex"), call.option("ElseSubgraphIndex")
    condition = call.operand(0)
    if condition.dtype != "bool" or int(np.prod(condition.shape)) != 1:
        raise call.refuse(
            f"expected a condition of one bool, got {condition.dtype}{list(condition.shape)}"
        )
    if condition.data is not None:
        taken = 0 if condition.data.reshape(-1)[0] else 1
        _define(call, importer.call_subgraph(branches[taken], given, call.label))
        return
    flag = call.reshape(call.tensor(0), ())
    before, found, after = dict(importer.variables.current), [], []
    for place, number in enumerate(branches):
        importer.variables.current = dict(before)
        found.append(importer.call_subgraph(number, given, f"{call.label}.{place}"))
        after.append(importer.variables.current)
    importer.variables.current = _merged(call, flag, before, *after)
    if len(found[0]) != len(found[1]):
        raise call.refuse(f"expected as many results of both branches, got {len(found[0])}"
                          f" and {len(found[1])}")  # fmt: skip
    _define(call, [_chosen(call, flag, a, b).name for a, b in zip(*found, strict=True)])


def _chosen(call: Call, flag: Tensor, first: Bound, second: Bound) -> Tensor:
    """The value of the branch that is taken."""
    if isinstance(first, tuple) or isinstance(second, tuple):
        raise call.refuse("a branch gives the handle of a variable, which is not supported")
    values = _stored(call, first), _stored(call, second)
    types = [value.type_text for value in values]
    if types[0] != types[1]:
        raise call.refuse(f"expected branches of the same types, got {types[0]} and {types[1]}")
    return call.map(select, flag, *values)


def _merged(
    call: Call, flag: Tensor, before: dict[Key, str], first: dict[Key, str], second: dict[Key, str]
) -> dict[Key, str]:
    """The values of variables after the branch that is taken."""
    made = dict(before)
    for key in dict.fromkeys((*first, *second)):
        values = [branch.get(key) or call.importer.variables.inputs.get(key)
                  for branch in (first, second)]  # fmt: skip
        if None in values:
            raise call.refuse("a branch assigns a variable that nothing reads before it")
        made[key] = str(values[0])
        if values[0] != values[1]:
            made[key] = _chosen(call, flag, *map(str, values)).name
    return made


def _while(call: Call) -> None:
    importer, state = call.importer, _given(call)
    tests, body = call.option("CondSubgraphIndex"), call.option("BodySubgraphIndex")
    for step in range(MAX_STEPS + 1):
        verdict = importer.call_subgraph(tests, state, f"{call.label}.{step}.test")
        if len(verdict) != 1 or not isinstance(verdict[0], np.ndarray):
            raise call.refuse(
                "expected a condition that is known while the model is read, got one that depends"
                " on the model's inputs"
            )
        if not verdict[0].reshape(-1)[0]:
            _define(call, state)
            return
        state = importer.call_subgraph(body, state, f"{call.label}.{step}")
    raise call.refuse(f"expected at most {MAX_STEPS} steps")


# ---- variables -----------------------------------------------------------------------------------


def _call_once(call: Call) -> None:
    """Run before the first run: what the subgraph assigns are initial values."""
    importer, variables = call.importer, call.importer.variables
    if importer.depth:
        raise call.refuse("expected it outside of other subgraphs")
    before = dict(variables.current)
    importer.call_subgraph(call.option("InitSubgraphIndex"), [], call.label)
    for key, value in variables.current.items():
        if before.get(key) == value:
            continue
        data = importer.tensors[value].data
        if key in before or key in variables.inputs or data is None:
            raise call.refuse(
                "expected constants for variables that nothing has used before, got a value that"
                f" is {'computed' if data is None else 'set later'}"
            )
        variables.initial[key] = data
    variables.current = before


def _var_handle(call: Call) -> None:
    texts = (call.operator.option(n) or b"" for n in ("Container", "SharedName"))
    container, name = (text.decode(errors="replace") for text in texts)
    call.importer.handles[call.result.index] = (container, name)


def _handle(call: Call) -> Key:
    index = call.operand(0).index
    if index not in call.importer.handles:
        raise call.refuse(f"expected a handle from VAR_HANDLE, got {call.operand(0)}")
    return call.importer.handles[index]


def _read_variable(call: Call) -> None:
    initial = initial_value(call.result)
    call.define(call.importer.variables.read(call.importer.tensors, _handle(call), initial))


def _assign_variable(call: Call) -> None:
    key, variables = _handle(call), call.importer.variables
    value = call.tensor(1)
    before = variables.current.get(key)
    known = value.type_text if before is None else call.tensors[before].type_text
    if known != value.type_text:
        raise call.refuse(
            f"expected a value of the variable's type, {known}, got {value.type_text}"
        )
    variables.current[key] = value.name


#: Readers by operator and by the first operand's types.
READERS: Rows = {
    "ASSIGN_VARIABLE": {ANY: _assign_variable},
    "CALL_ONCE": {ANY: _call_once},
    "IF": {ANY: _if},
    "READ_VARIABLE": {ANY: _read_variable},
    "VAR_HANDLE": {ANY: _var_handle},
    "WHILE": {ANY: _while},
}
