"""A certificate in a notebook: a sequence, a table and a data frame."""

from __future__ import annotations

import sys

import pytest
import torch

import advibp
from advibp.errors import UserError
from advibp.verify.records import Certificate, Record


def certificate(eps: float | list[float] = 0.001, **options: int) -> Certificate:
    net = advibp.nets.build("FC 4", input_shape=(1, 2, 2), classes=3, seed=0)
    x = torch.rand(6, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    return advibp.certify(net, x, net(x).argmax(1), eps, **options)  # type: ignore[arg-type]


def test_with_one_eps_it_is_a_sequence_of_images() -> None:
    cert = certificate()
    assert len(cert) == 6
    assert [cert[i] for i in range(6)] == list(cert) == cert.records
    assert cert[-1].index == 5
    assert isinstance(cert[:2], Certificate)
    assert [record.index for record in cert[:2]] == [0, 1]
    with pytest.raises(IndexError):
        cert[6]


def test_with_a_sample_the_position_is_not_the_index() -> None:
    cert = certificate(sample=2)
    assert [cert[i].index for i in range(2)] == [record.index for record in cert]
    assert len(cert) == 2


def test_with_several_eps_an_index_is_refused() -> None:
    cert = certificate([0.001, 0.3])
    assert len(cert) == len(list(cert)) == 12
    with pytest.raises(UserError, match=r"2 radii, so an image has several records; write cert.at\(0.001\)\[i\]"):
        cert[0]
    assert cert.at(0.3)[4].index == 4
    assert cert.at(0.3)[4].eps == 0.3
    with pytest.raises(UserError, match=r"no records at eps 0.2; choose from 0.001, 0.3"):
        cert.at(0.2)


def test_it_is_true_without_records() -> None:
    empty = Certificate([])
    assert empty
    assert len(empty) == 0
    assert repr(empty) == "Certificate(no records)"
    assert "without records" in empty._repr_html_()


def test_repr_is_short_and_html_is_the_table() -> None:
    cert = certificate()
    assert repr(cert) == "Certificate(eps 0.001: 6 of 6 images certified)"
    html = cert._repr_html_()
    assert "<th>verified error</th>" in html
    assert "<th>robust</th>" in html
    assert "timeout" not in html  # columns with only zeros are omitted


def test_many_radii_are_abbreviated() -> None:
    cert = certificate([0.001 * k for k in range(1, 9)])
    assert repr(cert).endswith("3 more radii)")


def test_to_pandas_has_a_row_per_record() -> None:
    cert = certificate([0.001, 0.3])
    table = cert.to_pandas()
    assert list(table.columns) == [*Record.__dataclass_fields__]
    assert len(table) == 12
    assert table.groupby("eps").size().tolist() == [6, 6]
    assert list(Certificate([]).to_pandas().columns) == list(table.columns)


def test_without_pandas_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match=r"cert.to_pandas\(\) needs pandas, which is not installed; run pip install"):
        certificate().to_pandas()
