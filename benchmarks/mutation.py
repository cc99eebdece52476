"""Small faults in source text, one place each, that a test ought to notice. Wording is left alone."""

import ast
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

KINDS = ("comparison", "plus, minus", "times, divide", "constant", "negation", "early return", "dropped", "min, max")

_OPPOSITE: dict[type, tuple[str, str]] = {
    ast.Lt: ("<", ">="),
    ast.LtE: ("<=", ">"),
    ast.Gt: (">", "<="),
    ast.GtE: (">=", "<"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}
_EDGE: dict[type, tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
}
_SUMS: dict[type, tuple[str, str]] = {ast.Add: ("+", "-"), ast.Sub: ("-", "+")}
_PRODUCTS: dict[type, tuple[str, str]] = {ast.Mult: ("*", "/"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "*")}
_EXTREMES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum"}


class Fault(NamedTuple):
    """One change of a source: bytes from `start` to `end` become `new`."""

    kind: str
    line: int
    start: int
    end: int
    old: str
    new: str

    def put_into(self, source: bytes) -> bytes:
        """The source with this fault."""
        return source[: self.start] + self.new.encode() + source[self.end :]


class Mutant(NamedTuple):
    """A fault and the file that gets it."""

    room: str
    path: str
    fault: Fault


def faults(source: bytes) -> list[Fault]:
    """All that can be put into a Python source, in the order of their places."""
    found = _Places(source).walk(ast.parse(source), in_function=False)
    return sorted(found, key=lambda fault: (fault.start, fault.kind, fault.new))


def is_another_program(source: bytes, fault: Fault) -> bool:
    """Whether the changed source can be parsed and means something else."""
    try:
        return ast.dump(ast.parse(fault.put_into(source))) != ast.dump(ast.parse(source))
    except (SyntaxError, ValueError):
        return False


def draw(
    places: Mapping[str, Sequence[Mutant]], count: int, seed: int, is_good: Callable[[Mutant], bool]
) -> list[Mutant]:
    """Different mutants, evenly over the rooms and, as far as rooms have them, over the kinds."""
    chance = random.Random(seed)
    left: dict[str, dict[str, list[Mutant]]] = {}
    for room in sorted(places):
        left[room] = {kind: [each for each in places[room] if each.fault.kind == kind] for kind in KINDS}
        for each in left[room].values():
            chance.shuffle(each)
    drawn: list[Mutant] = []
    for turn in range(count):
        for number, kinds in enumerate(left.values()):
            if len(drawn) < count and (found := _next_of(kinds, turn + number, is_good)):
                drawn.append(found)
    return drawn


def _next_of(kinds: dict[str, list[Mutant]], turn: int, is_good: Callable[[Mutant], bool]) -> Mutant | None:
    """Of the kind whose turn it is, or of the next one that has any left."""
    first = turn % len(KINDS)
    for kind in (*KINDS[first:], *KINDS[:first]):
        while kinds[kind]:
            found = kinds[kind].pop()
            if is_good(found):
                return found
    return None


class _Places:
    """Where the parts of a source stand in its bytes."""

    def __init__(self, source: bytes) -> None:
        self._source = source
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def walk(self, node: ast.AST, *, in_function: bool) -> Iterator[Fault]:
        """Faults of a part and of all parts in it."""
        yield from self._expression_faults(node)
        if in_function:
            yield from self._statement_faults(node)
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if is_function:
            yield from self._early_return(node)
        for child in _children(node):
            yield from self.walk(child, in_function=in_function or is_function)

    def _expression_faults(self, node: ast.AST) -> Iterator[Fault]:
        match node:
            case ast.Compare(left, operators, comparators):
                for operator, one, other in zip(operators, [left, *comparators], comparators, strict=False):
                    for swaps in (_OPPOSITE, _EDGE):
                        yield from self._swapped("comparison", one, other, swaps.get(type(operator)))
            case ast.BinOp(one, operator, other) | ast.AugAssign(one, operator, other):
                if not _is_sequence(one) and not _is_sequence(other):
                    yield from self._swapped("plus, minus", one, other, _SUMS.get(type(operator)))
                    yield from self._swapped("times, divide", one, other, _PRODUCTS.get(type(operator)))
            case ast.Constant(bool(value)):
                yield self._replaced("constant", node, str(not value))
            case ast.Constant(int(value)):
                yield self._replaced("constant", node, str(value + 1))
            case ast.Constant(float(value)):
                yield self._replaced("constant", node, repr(2 * value or 1.0))
            case ast.UnaryOp(ast.Not(), operand):
                yield self._replaced("negation", node, f"({self._text(operand)})")
            case ast.If(test) | ast.While(test) | ast.IfExp(test):
                yield from self._negated([test])
            case ast.comprehension(_, _, tests):
                yield from self._negated(tests)
            case ast.Call(ast.Name(name) | ast.Attribute(_, name) as function) if name in _EXTREMES:
                end = self._end(function)
                yield self._fault("min, max", end - len(name), end, _EXTREMES[name])

    def _statement_faults(self, node: ast.AST) -> Iterator[Fault]:
        """A statement left out; not where a name would be missing, which any test sees."""
        match node:
            case ast.Expr(ast.Call()) | ast.AugAssign() | ast.Raise() | ast.Continue() | ast.Break() | ast.Delete():
                yield self._replaced("dropped", node, "pass")
            case ast.Assign([ast.Attribute() | ast.Subscript()]):
                yield self._replaced("dropped", node, "pass")

    def _early_return(self, node: Any) -> Iterator[Fault]:
        first = next((each for each in _children(node) if isinstance(each, ast.stmt)), None)
        if first is None or isinstance(first, ast.Pass | ast.Raise) or first.lineno <= node.lineno:
            return
        line = min([first.lineno, *(each.lineno for each in getattr(first, "decorator_list", ()))])
        start = self._lines[line - 1] + first.col_offset
        yield self._fault("early return", start, start, "return None\n" + " " * first.col_offset)

    def _negated(self, tests: Iterable[ast.expr]) -> Iterator[Fault]:
        """Single comparisons and negations have faults of their own."""
        for test in tests:
            match test:
                case ast.Compare(_, [_]) | ast.UnaryOp(ast.Not()):
                    continue
            yield self._replaced("negation", test, f"not ({self._text(test)})")

    def _swapped(self, kind: str, one: ast.expr, other: ast.expr, swap: tuple[str, str] | None) -> Iterator[Fault]:
        """An operator has no place of its own in the tree: it stands between its operands."""
        if swap is not None:
            old, new = swap
            start = self._source.find(old.encode(), self._end(one), self._start(other))
            if start >= 0:
                yield self._fault(kind, start, start + len(old), new)

    def _replaced(self, kind: str, node: ast.AST, new: str) -> Fault:
        return self._fault(kind, self._start(node), self._end(node), new)

    def _fault(self, kind: str, start: int, end: int, new: str) -> Fault:
        return Fault(kind, self._source.count(b"\n", 0, start) + 1, start, end, self._source[start:end].decode(), new)

    def _text(self, node: ast.AST) -> str:
        return self._source[self._start(node) : self._end(node)].decode()

    def _start(self, node: Any) -> int:
        return self._lines[node.lineno - 1] + node.col_offset

    def _end(self, node: Any) -> int:
        return self._lines[node.end_lineno - 1] + node.end_col_offset


def _children(node: ast.AST) -> list[ast.AST]:
    """Parts that may be changed: no wording, no annotations, no decorators."""
    match node:
        case ast.JoinedStr() | ast.Raise() | ast.Expr(ast.Constant()):
            return []
        case ast.AnnAssign(_, _, value):
            return [value] if value else []
        case ast.arguments():
            return [each for each in (*node.defaults, *node.kw_defaults) if each]
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return [node.args, *(each for each in node.body if not _is_text(each))]
        case ast.ClassDef():
            return [each for each in node.body if not _is_text(each)]
    return list(ast.iter_child_nodes(node))


def _is_text(node: ast.stmt) -> bool:
    """A docstring, a floating string or an ellipsis."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_sequence(node: ast.expr) -> bool:
    """Texts, lists and tuples are joined, parts of a path too: another operator would only raise."""
    is_string = isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    return is_string or isinstance(node, ast.JoinedStr | ast.List | ast.Tuple | ast.ListComp)
