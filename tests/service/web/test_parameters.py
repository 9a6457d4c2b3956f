"""What a client is told of a parameter that cannot be used: the value, the bound and the remedy."""

import asyncio

import pytest
from starlette.requests import Request

from quatserve.service.errors import BadParameterError
from quatserve.service.imaging.render import Output
from quatserve.service.web.parameters import (
    ClassifyParameters,
    RequestParameters,
    SegmentParameters,
    read_query,
)


def read(model: type[RequestParameters], query: str) -> RequestParameters:
    request = Request({"type": "http", "query_string": query.encode()})
    return model.model_validate(asyncio.run(read_query(request)))


def test_each_parameter_has_a_default() -> None:
    assert read(ClassifyParameters, "") == ClassifyParameters(model=None, top_k=5)
    assert read(SegmentParameters, "") == SegmentParameters(model=None, output=Output.MASK, threshold=0.5)


def test_values_are_read() -> None:
    assert read(ClassifyParameters, "model=a%20b&top_k=7") == ClassifyParameters(model="a b", top_k=7)
    found = read(SegmentParameters, "output=overlay&threshold=0.25")
    assert found == SegmentParameters(output=Output.OVERLAY, threshold=0.25)


@pytest.mark.parametrize(
    ("model", "query", "message"),
    [
        (ClassifyParameters, "top_k=1001", "top_k is '1001'; it must be a whole number from 1 to 1000"),
        (ClassifyParameters, "top_k=two", "top_k is 'two'; it must be a whole number from 1 to 1000"),
        (ClassifyParameters, "top_k=", "top_k is ''; it must be a whole number from 1 to 1000"),
        (ClassifyParameters, "topk=2", "'topk' is not a parameter; known are model, top_k"),
        (ClassifyParameters, "top_k=2&top_k=3", "'top_k' is given twice; give each parameter once"),
        (SegmentParameters, "threshold=nan", "threshold is 'nan'; it must be a number from 0 to 1"),
        (SegmentParameters, "threshold=-0.1", "threshold is '-0.1'; it must be a number from 0 to 1"),
        (SegmentParameters, "output=film", "output is 'film'; it must be one of mask, heatmap, overlay"),
        (SegmentParameters, f"output={'x' * 99}", f"output is '{'x' * 40}'; it must be one of"),
        (SegmentParameters, f"{'x' * 99}=", f"'{'x' * 40}' is not a parameter"),
        (SegmentParameters, "model=%ff", "percent-encoded UTF-8, with at most 16 parameters"),
        (SegmentParameters, "&".join(f"a{i}" for i in range(17)), "with at most 16 parameters"),
    ],
)
def test_a_fault_names_value_bound_and_remedy(
    model: type[RequestParameters], query: str, message: str
) -> None:
    with pytest.raises(BadParameterError) as fault:
        read(model, query)
    assert message in str(fault.value)
