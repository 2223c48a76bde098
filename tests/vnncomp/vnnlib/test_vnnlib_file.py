"""A property read means what its text says; whatever is no property is refused in one sentence."""

from __future__ import annotations

import gzip
import math
import operator
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from advibp import UserError
from advibp.vnncomp.vnnlib import vnnlib_file
from advibp.vnncomp.vnnlib.vnnlib_file import Property

with_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
many_with_folder = settings(with_folder, max_examples=300)

DECLARED = "".join(f"(declare-const {name} Real)\n" for name in ("X_0", "X_1", "Y_0", "Y_1", "Y_2"))
BOUNDED = DECLARED + "".join(f"(assert (>= X_{i} -4))\n(assert (<= X_{i} 4))\n" for i in range(2))


@pytest.fixture
def read(tmp_path: Path) -> Callable[[str], Property]:
    def from_text(text: str) -> Property:
        path = tmp_path / "some.vnnlib"
        path.write_text(text)
        return vnnlib_file.read(path)

    return from_text


def inside(property: Property, x: list[float], y: list[float]) -> bool:
    at, out = torch.tensor(x, dtype=torch.float64), torch.tensor(y, dtype=torch.float64)
    boxed = [case for case in property.cases if bool(((case.lower <= at) & (at <= case.upper)).all())]
    return any(bool((c @ out + d <= 0).all()) for case in boxed for c, d in case.disjuncts)


# --- what a text means ---------------------------------------------------------------------------------------------


def test_the_robustness_of_an_image_by_hand(read: Callable[[str], Property]) -> None:
    found = read("; image 7\n" + BOUNDED + "(assert (or (and (>= Y_0 Y_1)) (and (>= Y_2 Y_1))))")
    (case,) = found.cases
    assert (found.inputs, found.outputs) == (2, 3)
    assert case.lower.tolist() == [-4, -4]
    assert case.upper.tolist() == [4, 4]
    assert case.lower.dtype == case.disjuncts[0][0].dtype == torch.float64
    assert [(c.tolist(), d.tolist()) for c, d in case.disjuncts] == [([[-1, 1, 0]], [0]), ([[0, 1, -1]], [0])]


def test_a_nested_property_of_outputs_by_hand(read: Callable[[str], Property]) -> None:
    """In the style of ACAS Xu's property 7: neither of two outputs may be minimal."""
    rule = "(assert (or (and (<= Y_0 Y_1) (<= Y_0 Y_2)) (and (<= Y_1 Y_0) (or (<= Y_1 Y_2) (>= Y_2 1.5)))))"
    (case,) = read(BOUNDED + rule).cases
    assert [(c.tolist(), d.tolist()) for c, d in case.disjuncts] == [
        ([[1, -1, 0], [1, 0, -1]], [0, 0]),
        ([[-1, 1, 0], [0, 1, -1]], [0, 0]),
        ([[-1, 1, 0], [0, 0, -1]], [0, 1.5]),
    ]


def test_inputs_in_a_disjunction_make_cases_and_equal_boxes_make_one(read: Callable[[str], Property]) -> None:
    found = read(
        BOUNDED
        + """(assert (or
            (and (>= X_0 1) (<= X_0 2) (<= Y_0 Y_1))
            (and (<= X_0 0) (<= Y_0 0))
            (and (>= X_0 5) (<= Y_0 7))
            (and (<= 1 X_0 2) (<= Y_2 Y_1))))"""
    )
    boxes = [(case.lower.tolist(), case.upper.tolist(), len(case.disjuncts)) for case in found.cases]
    assert boxes == [([1, -4], [2, 4], 2), ([-4, -4], [0, 4], 1)]  # from 5 to 4 there is nothing


@pytest.mark.parametrize(
    ("term", "weights", "offset"),
    [
        ("(+ Y_0 (* 2 Y_1) (- 1.5))", [1, 2, 0], -1.5),
        ("(- Y_0)", [-1, 0, 0], 0),
        ("(- Y_0 Y_1 (/ 1 4))", [1, -1, 0], -0.25),
        ("(* (/ 1 2) (- Y_0 3) 4e-1)", [0.2, 0, 0], -0.6),
        ("(/ (- Y_2 1) 2 2)", [0, 0, 0.25], -0.25),
        ("(+ Y_2 X_0 (* -1 X_0) +.5 5.)", [0, 0, 1], 5.5),
    ],
)
def test_linear_terms_by_hand(read: Callable[[str], Property], term: str, weights: list[float], offset: float) -> None:
    c, d = read(BOUNDED + f"(assert (<= {term} 0))").cases[0].disjuncts[0]
    assert c.tolist() == [pytest.approx(weights)]
    assert d.tolist() == [pytest.approx(offset)]


@pytest.mark.parametrize(
    ("formula", "cases", "rows"),
    [
        ("", 1, [0]),
        ("(assert (and))", 1, [0]),
        ("(assert true)", 1, [0]),
        ("(assert (<= 1 2 3))", 1, [0]),
        ("(assert (<= Y_0 Y_0))", 1, [0]),
        ("(assert (or))", 0, []),
        ("(assert (not true))", 0, []),
        ("(assert (< 1 1))", 0, []),
        ("(assert (< Y_0 Y_0))", 0, []),
        ("(assert (not (= 1 1)))", 0, []),
        ("(assert (or (<= Y_0 0) (< 2 1)))", 1, [1]),
        ("(assert (= Y_0 1))", 1, [2]),
        ("(assert (not (and (<= Y_0 0) (or (<= Y_1 0) (= Y_2 0)))))", 1, [1, 2, 2]),
        ("(assert (<= X_0 -5))", 0, []),
        ('(set-logic QF_LRA)(set-info :source |a ( b| (x "y)"))(check-sat)(get-model)(exit)', 1, [0]),
    ],
)
def test_small_formulas(read: Callable[[str], Property], formula: str, cases: int, rows: list[int]) -> None:
    found = read(BOUNDED + formula)
    assert len(found.cases) == cases
    assert [len(d) for case in found.cases for _, d in case.disjuncts] == rows
    assert all(c.shape == (len(d), 3) for case in found.cases for c, d in case.disjuncts)


@pytest.mark.parametrize(
    ("formula", "x", "y", "holds"),
    [
        ("(< Y_0 0)", 0, 0, False),
        ("(< Y_0 0)", 0, -5e-324, True),
        ("(> Y_0 0.5)", 0, 0.5, False),
        ("(> Y_0 0.5)", 0, math.nextafter(0.5, 1), True),
        ("(not (>= Y_0 Y_1))", 0, 7, False),
        ("(not (= Y_0 Y_1))", 0, 7, False),
        ("(< (* 3 X_0) 1.5)", 0.5, 0, False),
        ("(< (* 3 X_0) 1.5)", math.nextafter(0.5, 0), 0, True),
        ("(and (<= 0.5 X_0) (< X_0 0.5))", 0.5, 0, False),
        ("(<= X_0 0.5)", 0.5, 0, True),
    ],
)
def test_a_boundary_is_inside_unless_it_is_strict(
    read: Callable[[str], Property], formula: str, x: float, y: float, holds: bool
) -> None:
    assert inside(read(BOUNDED + f"(assert {formula})"), [x, 0], [y, 7, 0]) == holds


def test_functions_without_arguments_are_constants(read: Callable[[str], Property]) -> None:
    text = "(declare-fun X_0 () Real)\n(declare-fun Y_0 () Real)\n(assert (and (<= 0 X_0) (<= X_0 1e-3) (<= Y_0 0)))"
    (case,) = read("\ufeff" + text.replace("\n", "\r\n")).cases
    assert case.upper.tolist() == [0.001]


# --- random formulas, against an evaluator of their trees ----------------------------------------------------------

SIGNS = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt, "=": operator.eq}
NAMES = ["X_0", "X_1", "Y_0", "Y_1", "Y_2"]
quarters = st.integers(-16, 16).map(lambda k: k / 4)
factors = st.sampled_from([-2.0, -1.0, -0.5, 0.5, 1.0, 4.0])
products = st.tuples(st.just("*"), factors, st.sampled_from(NAMES[2:]))
outputs = st.recursive(
    quarters | st.sampled_from(NAMES[2:]) | products,
    lambda inner: st.lists(inner, min_size=1, max_size=3).flatmap(
        lambda held: st.sampled_from([("+", *held), ("-", *held)])
    ),
    max_leaves=4,
)
inputs = st.sampled_from(NAMES[:2]) | st.tuples(st.just("*"), factors, st.sampled_from(NAMES[:2]))
signs = st.sampled_from(sorted(SIGNS))
atoms = (
    st.tuples(signs, outputs, outputs)
    | st.tuples(signs, inputs, quarters)
    | st.tuples(signs, quarters, inputs)
    | st.tuples(st.sampled_from(["<=", "<"]), quarters, inputs, quarters)
)
formulas = st.recursive(
    atoms | st.sampled_from(["true", "false"]),
    lambda inner: (
        st.tuples(st.just("not"), inner)
        | st.lists(inner, max_size=3).map(lambda held: ("and", *held))
        | st.lists(inner, max_size=3).map(lambda held: ("or", *held))
    ),
    max_leaves=9,
)


def text_of(tree: Any) -> str:
    if isinstance(tree, tuple):
        return "(" + " ".join(map(text_of, tree)) + ")"
    return str(tree)


def value(tree: Any, at: dict[str, float]) -> Any:
    """Evaluate a tree at a point. Ties between variables are rejected, because rounding decides them."""
    if not isinstance(tree, tuple):
        return {"true": True, "false": False, **at}[tree] if isinstance(tree, str) else tree
    head, *rest = tree
    held = [value(inner, at) for inner in rest]
    if head in SIGNS:
        if any("_" in text_of(side) for side in rest):
            assume(all(abs(a - b) > 1e-6 for a, b in pairwise(held)))
        return all(SIGNS[head](a, b) for a, b in pairwise(held))
    if head == "-":
        return -held[0] if len(held) == 1 else held[0] - sum(held[1:])
    return {"and": all, "or": any, "not": lambda h: not h[0], "+": sum, "*": lambda h: h[0] * h[1]}[head](held)


@many_with_folder
@given(asserted=st.lists(formulas, max_size=3), points=st.lists(st.tuples(*[quarters] * 5), min_size=1, max_size=8))
def test_a_point_is_inside_exactly_if_the_formula_holds_there(
    asserted: list[Any], points: list[tuple[float, ...]], read: Callable[[str], Property]
) -> None:
    found = read(BOUNDED + "\n".join(f"(assert {text_of(tree)})" for tree in asserted))
    for point in points:
        x = [v + 0.0123 * (i + 1) for i, v in enumerate(point)]  # off the grid that bounds lie on
        at = dict(zip(NAMES, x, strict=True))
        want = all(abs(v) <= 4 for v in x[:2]) and all(value(tree, at) for tree in asserted)
        assert inside(found, x[:2], x[2:]) == want


# --- written, and read again ---------------------------------------------------------------------------------------


@with_folder
@given(
    ends=st.lists(st.tuples(*[st.floats(allow_nan=False, allow_infinity=False)] * 2), min_size=1, max_size=6),
    classes=st.integers(2, 5),
    label=st.integers(0, 4),
    comment=st.text(max_size=20),
    name=st.sampled_from(["a.vnnlib", "a.vnnlib.gz"]),
)
def test_write_then_read_is_exact(
    ends: list[tuple[float, float]], classes: int, label: int, comment: str, name: str, tmp_path: Path
) -> None:
    assume(label < classes)
    lower, upper = torch.tensor([sorted(pair) for pair in ends], dtype=torch.float64).T
    comment = comment.encode(errors="replace").decode()  # no file holds half a character
    vnnlib_file.write(tmp_path / name, lower, upper, label, classes, comment=comment)
    found = vnnlib_file.read(tmp_path / name)
    (case,) = found.cases
    assert (found.inputs, found.outputs) == (len(ends), classes)
    assert torch.equal(case.lower, lower)
    assert torch.equal(case.upper, upper)
    others = [k for k in range(classes) if k != label]
    for k, (c, d) in zip(others, case.disjuncts, strict=True):
        row = torch.zeros(1, classes, dtype=torch.float64)
        row[0, label], row[0, k] = 1, -1
        assert torch.equal(c, row)
        assert d.tolist() == [0]


def test_a_large_image_is_flattened_in_order(tmp_path: Path) -> None:
    image = torch.rand(3, 32, 32).permute(0, 2, 1)  # not contiguous
    vnnlib_file.write(tmp_path / "a.vnnlib", image - 0.1, image + 0.1, label=3, classes=1000)
    (case,) = vnnlib_file.read(tmp_path / "a.vnnlib").cases
    assert torch.equal(case.lower, (image - 0.1).double().reshape(-1))
    assert torch.equal(case.upper, (image + 0.1).double().reshape(-1))
    assert len(case.disjuncts) == 999


@pytest.mark.parametrize(
    ("lower", "upper", "label"),
    [
        (torch.zeros(2), torch.ones(3), 0),
        (torch.ones(2), torch.zeros(2), 0),
        (torch.zeros(2), torch.tensor([1, torch.nan]), 0),
        (torch.zeros(2), torch.tensor([1, torch.inf]), 0),
        (torch.zeros(0), torch.zeros(0), 0),
        (torch.zeros(2), torch.ones(2), 10),
        (torch.zeros(2), torch.ones(2), -1),
    ],
)
def test_invalid_box_or_label_is_not_written(lower: Tensor, upper: Tensor, label: int, tmp_path: Path) -> None:
    with pytest.raises(UserError):
        vnnlib_file.write(tmp_path / "a.vnnlib", lower, upper, label, 10)
    assert not list(tmp_path.iterdir())


def test_a_counterexample_in_the_form_of_the_competition() -> None:
    text = vnnlib_file.counterexample_text(torch.tensor([[0.5, 1e-7]], dtype=torch.float64), torch.tensor([-2.0]))
    assert text == "((X_0 0.5)\n(X_1 0.0000001)\n(Y_0 -2.0))\n"


# --- what is refused -----------------------------------------------------------------------------------------------

SMALL = BOUNDED + "; a comment\n(assert (or (and (<= Y_0 (* 2 Y_1))) (not (= Y_2 1.5e-1))))"


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("(declare-const X_0 Real)", 1, "twice"),
        ("(declare-const X_3 Real)", None, "X_2 is not declared"),
        ("(declare-const X_00 Real)", 1, "not a variable"),
        ("(declare-const X_" + "9" * 5000 + " Real)", 1, "not a variable"),
        ("(declare-const Z Real)", 1, "not a variable"),
        ("(declare-const X_2 Int)", 1, "form"),
        ("(declare-fun X_2 Real)", 1, "form"),
        ("(declare-const)", 1, "form"),
        ("(declare-const (X_2) Real)", 1, "not a variable"),
        ("(assert (or\n(<= Y_0 Y_1)\n(<= Y_0 Y_7)))", 3, "'Y_7' is neither"),
        ("\n(assert (<= X_0 1e999))", 2, "finite"),
        ("(assert (<= X_0 (* 1e300 1e300)))", 1, "finite"),
        ("(assert (<= (* 1e-300 X_0) 1e300))", 1, "finite"),
        ("(assert (<= X_0 nan))", 1, "neither"),
        ("(assert (<= X_0 1_0))", 1, "neither"),
        ("(assert (<= X_0 (/ 1 0)))", 1, "division"),
        ("(assert (<= Y_0 (/ 1 Y_1)))", 1, "division"),
        ("(assert (<= (* Y_0 Y_1) 0))", 1, "product"),
        ("(assert (<= X_0 X_1))", 1, "X_0 is compared with X_1"),
        ("(assert (<= Y_0 X_1))", 1, "X_1 is compared with Y_0"),
        ("(assert (<= Y_0))", 1, "takes numbers and variables"),
        ("(assert (<= Y_0 (<= Y_0 Y_1)))", 1, "takes numbers and variables"),
        ("(assert (and Y_0))", 1, "formulas"),
        ("(assert Y_0)", 1, "one formula"),
        ("(assert)", 1, "one formula"),
        ("(assert (not))", 1, "one formula"),
        ("(assert (and ()))", 1, "()"),
        ("(assert (-))", 1, "takes numbers"),
        ("(assert (=> (<= Y_0 0) (<= Y_1 0)))", 1, "not an operator"),
        ("(assert ((<= Y_0 0)))", 1, "follows"),
        ("((assert (<= Y_0 0)))", 1, "follows"),
        ("(define-fun f () Real 1)", 1, "not a command"),
        ("()", 1, "not a command"),
        ("assert", 1, "outside"),
        ("\n\n)", 3, "no matching"),
        ('(set-info "a)', 1, "never closed"),
        ("(assert (<= Y_0\n 0)", 1, "never closed"),
    ],
)
def test_error_messages_have_line_and_reason(
    read: Callable[[str], Property], text: str, line: int | None, said: str
) -> None:
    with pytest.raises(UserError) as refused:
        read(BOUNDED + text)
    message = str(refused.value)
    assert said in message
    assert "\n" not in message
    assert len(message) < 500
    assert line is None or f"line {BOUNDED.count(chr(10)) + line}:" in message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "X_0"),
        ("(declare-const X_0 Real)(assert (<= 0 X_0 1))", "Y_0"),
        (DECLARED, "X_0 has no lower bound"),
        (DECLARED + "(assert (and (<= 0 X_0 1) (>= X_1 0)))", "X_1 has no upper bound"),
        (DECLARED + "(assert (<= 0 X_0 1))(assert (or (<= 0 X_1 1) (<= Y_0 Y_1)))", "X_1 has no lower bound"),
    ],
)
def test_every_input_must_be_bounded(read: Callable[[str], Property], text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        read(text)


def test_a_text_cut_anywhere_is_refused_or_ends_with_a_whole_command(read: Callable[[str], Property]) -> None:
    read(SMALL)
    for end in range(len(SMALL)):
        cut = SMALL[:end]
        bounded = len(BOUNDED.rstrip()) <= end
        if bounded and cut.count("(") == cut.count(")"):
            assert [len(d) for _, d in read(cut).cases[0].disjuncts] == [0]
        else:
            with pytest.raises(UserError):
                read(cut)


@many_with_folder
@given(
    changes=st.lists(
        st.tuples(st.integers(0, len(SMALL)), st.integers(0, 3), st.text('()XY_019.e-+*/<>=; \n|"\0aé', max_size=2)),
        min_size=1,
        max_size=3,
    )
)
def test_a_changed_text_is_a_property_or_refused(
    changes: list[tuple[int, int, str]], read: Callable[[str], Property]
) -> None:
    text = SMALL
    for start, gone, new in changes:
        text = text[:start] + new + text[start + gone :]
    try:
        found = read(text)
    except UserError:
        return
    for case in found.cases:
        assert bool((case.lower <= case.upper).all())


@pytest.mark.parametrize("opening", ["(", "(assert ", "(and ", "(not ", "(+ 1 ", "(<= "])
@pytest.mark.parametrize("first", ["", "(assert ", "(set-info "])
@pytest.mark.parametrize("end", ["", ")" * 100_001])
def test_deep_nesting_is_refused(read: Callable[[str], Property], first: str, opening: str, end: str) -> None:
    with pytest.raises(UserError):
        read(BOUNDED + first + opening * 100_000 + end)


def test_nesting_that_is_not_too_deep_is_read(read: Callable[[str], Property]) -> None:
    chain = "(or (<= Y_0 0) " * 900 + "(<= Y_1 0)" + ")" * 900
    assert len(read(BOUNDED + f"(assert {chain})").cases[0].disjuncts) == 901
    odd = "(not " * 901 + "(<= Y_1 0)" + ")" * 901
    c, _ = read(BOUNDED + f"(assert {odd})").cases[0].disjuncts[0]
    assert c.tolist() == [[0, -1, 0]]


@pytest.mark.parametrize("form", ["(assert (and {}))", "(assert (not (or {})))", "{}"])
def test_exponentially_long_disjunction_is_refused(read: Callable[[str], Property], form: str) -> None:
    either = {"{}": "(assert (or (<= Y_0 0) (<= Y_1 0)))", "(assert (not (or {})))": "(and (<= Y_0 0) (<= Y_1 0))"}
    bomb = form.format(either.get(form, "(or (<= Y_0 0) (<= Y_1 0))") * 40)
    with pytest.raises(UserError, match="terms"):
        read(BOUNDED + bomb)


def test_terms_that_grow_with_every_level_are_refused(read: Callable[[str], Property]) -> None:
    many = "(or (<= Y_0 0) (<= Y_1 0))" * 13
    with pytest.raises(UserError, match="terms"):
        read(BOUNDED + "(assert " + "(and (<= Y_2 0) " * 900 + f"(and {many})" + ")" * 901)


def test_cases_that_would_fill_the_memory_are_refused(read: Callable[[str], Property]) -> None:
    many = 1000
    text = "(declare-const Y_0 Real)" + "".join(
        f"(declare-const X_{i} Real)(assert (<= 0 X_{i} 1))" for i in range(many)
    )
    either = "".join(f"(assert (or {' '.join(f'(<= X_{k} 0.{i + 1})' for i in range(100))}))" for k in range(2))
    with pytest.raises(UserError, match="numbers"):
        read(text + either + "(assert (or (<= X_2 0.5) (<= X_3 0.5)))")


def test_files_that_are_no_text_or_no_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.vnnlib.gz"
    packed = gzip.compress(SMALL.encode())
    for raw in (packed[:-3], packed[:20], packed[:12] + b"\0\xff\0" + packed[15:], b"\n\xff\xfe", b"\x1f\x8b", b"\x1f"):
        path.write_bytes(raw)
        with pytest.raises(UserError):
            vnnlib_file.read(path)
    for missing in (tmp_path, tmp_path / "no.vnnlib"):
        with pytest.raises(UserError, match="can't be read"):
            vnnlib_file.read(str(missing))
    monkeypatch.setattr(vnnlib_file, "_MAX_BYTES", 1000)
    path.write_bytes(gzip.compress(b" " * 1001))
    with pytest.raises(UserError, match="MB"):
        vnnlib_file.read(path)
