"""Every node test of the onnx package in the interpreter: right, or refused for a reason below.

``tests/compiler/test_onnx_backend.py`` runs those of supported types as machine code, too.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.onnx_backend import VdlaRep
from vdla.isa.errors import VdlaError

#: What a refusal may say. Each has a number of cases in the onnx package that was looked at.
REASONS = {
    "sequences and optionals": r"expected a tensor, got a (sequence|optional)|got a list|"
    r"operator '(Sequence\w*|\w+Sequence|Optional\w*)' is not",
    "strings": r"got strings|are strings|operator 'TfIdfVectorizer' is not",
    "other domains": r"operator 'ai\.onnx\.preview\.[\w.]+' is not supported",
    "random numbers": r"operator 'Random\w+' is not|dropout while training is random",
    "results of 2, 4 and 8 bits": r"(float8_\w+|float4_\w+|u?int[24])( is|.* are) not supported",
    "floats of 8 bits": r"got float8_e8m0fnu|expected integers, got float32|supported output types",
    "files of images": r"operator 'ImageDecoder' is not supported",
}
#: How many cases of onnx 1.23 pass, at least.
PASSED = 1680
#: Attention of bfloat16 whose expected values add up a row of exponentials in bfloat16, one after
#: another. Here a sum is rounded once: with their order, a thousand ones would make 256. So these
#: differ in the last two places of a number.
ROUNDED_SUMS = (
    "test_attention_3d_causal_bf16", "test_attention_4d_causal_bf16",
    "test_attention_4d_causal_padded_kv_bf16", "test_attention_4d_padded_kv_bf16",
)  # fmt: skip
LAST_PLACES = 2.0**-6


def outcome(case: Any) -> str:
    """ "passed", "rounded sums", or why the case is refused.

    Raises
    ------
    AssertionError
        For a wrong result, or a refusal for no known reason.
    """
    model = VdlaRep(case.model, lambda graph: partial(interpret, graph))
    for inputs, expected in case.data_sets:
        try:
            made = model.run([_plain(value) for value in inputs])
        except VdlaError as error:
            found = [name for name, text in REASONS.items() if re.search(text, str(error))]
            assert found and "\n" not in str(error), f"{case.name}: {error}"
            return found[0]
        for y, wanted in zip(made, map(_plain, expected), strict=True):
            assert (y.dtype, y.shape) == (wanted.dtype, wanted.shape), case.name
            wide = [a if a.dtype.kind in "biu" else a.astype("f8") for a in (y, wanted)]
            if case.name.removesuffix("_expanded") in ROUNDED_SUMS:
                assert not np.allclose(*wide, case.rtol, case.atol), f"{case.name} is within"
                np.testing.assert_allclose(*wide, LAST_PLACES, case.atol, err_msg=case.name)
                return "rounded sums"
            np.testing.assert_allclose(*wide, case.rtol, case.atol, err_msg=case.name)
    return "passed"


def _plain(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else value


@pytest.mark.more
@pytest.mark.slow
def test_every_node_test() -> None:
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the NumPy code that computes the expected values
        cases = collect_testcases(None)
        seen = Counter(outcome(case) for case in cases)
    assert seen["passed"] >= PASSED, seen
    assert {*REASONS, "passed", "rounded sums"} == {*seen}
    assert seen["rounded sums"] == 2 * len(ROUNDED_SUMS)
