"""Numbers as people write and read them: counts, durations, sizes."""

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction

from scalescope.errors import UsageError
from scalescope.text import plain

LARGEST_COUNT = 999_999_999  # Of processes, samples or steps
MOST_COUNTS = 100_000  # In one list
MOST_PER_HOST = 4096  # Ranks or threads: no machine has more cores
_LONGEST_S = 30 * 365 * 86400.0

# By the words of headings and logs; a bare m may be anything there, and is minutes in options only.
SECONDS_PER = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("ms", "msec", "millisecond", "milliseconds"), 1e-3),
    **dict.fromkeys(("us", "usec"), 1e-6),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
}
LEAST, MOST = 1e-12, 1e12  # Of any time in seconds, rate and score: no training has others

# By the units of files and options: seconds, bytes per second and bytes, exact, so that 5 us is the number 5e-6.
TIMES = {"s": Fraction(1), "ms": Fraction(1, 10**3), "us": Fraction(1, 10**6), "ns": Fraction(1, 10**9)}
RATES = {
    "B/s": Fraction(1),
    "KB/s": Fraction(10**3),
    "MB/s": Fraction(10**6),
    "GB/s": Fraction(10**9),
    "Kbit/s": Fraction(10**3, 8),
    "Mbit/s": Fraction(10**6, 8),
    "Gbit/s": Fraction(10**9, 8),
}
SIZES = {"GiB": Fraction(2**30), "GB": Fraction(10**9), "MiB": Fraction(2**20), "B": Fraction(1)}
_OF_OPTIONS = {
    **{unit: TIMES[unit] for unit in ("s", "ms")},
    "": Fraction(1),
    **dict.fromkeys(("m", "min"), Fraction(60)),
    "h": Fraction(3600),
}


def is_possible(value: float) -> bool:
    """True if a training can have a time, rate or score of this much; false for NaN."""
    return LEAST <= value <= MOST


def parse_counts(text: str, option: str) -> tuple[int, ...]:
    """`1,2,4`, `1..8` or `8,16,...,512` (doubling or steps, as the first two say) as ascending whole numbers."""
    hint = f"{option} takes whole numbers such as 1,2,4 or 1..8 or 8,16,...,512, not '{plain(text, 60)}'"

    def series(match: re.Match[str]) -> str:
        """The numbers of `8,16,...,512`, or its own text, which is none."""
        first, second, last = check_counts(tuple(map(int, match.groups())), option)
        if not first < second < last:
            return match[0]
        numbers: Sequence[int] = range(first, last + 1, second - first)
        if second % first == 0:
            numbers = [first]
            while numbers[-1] < last:
                numbers.append(numbers[-1] * (second // first))
        return ",".join(map(str, check_counts(numbers, option))) if numbers[-1] == last else match[0]

    counts: set[int] = set()
    for part in re.sub(r"(\d{1,30}),(\d{1,30}),\.\.\.,(\d{1,30})", series, re.sub(r"\s", "", text)).split(","):
        match = re.fullmatch(r"(\d{1,30})(?:\.\.(\d{1,30}))?", part)
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if low > high:
            raise UsageError(hint)
        check_counts((low, high), option)
        counts.update(check_counts(range(low, high + 1), option))
    return check_counts(sorted(counts), option)


def check_counts(counts: Sequence[int], option: str) -> tuple[int, ...]:
    """The numbers, which a range may name without holding them; there may be too many, or one too large."""
    if len(counts) > MOST_COUNTS:
        raise UsageError(f"{option} names {len(counts):,} numbers: name at most {MOST_COUNTS:,}")
    for count in counts:
        if not 1 <= count <= LARGEST_COUNT:
            raise UsageError(f"{option} takes whole numbers from 1 to {LARGEST_COUNT:,}, not {count}")
    return tuple(counts)


def quantity(text: str, units: Mapping[str, Fraction]) -> float | None:
    """A number with one of these units, such as `5 us`; None where the text is something else."""
    match = re.fullmatch(r"\s*(\d{1,30}(?:\.\d{1,30})?)\s*([A-Za-z/]*)\s*", text)
    return float(Fraction(match[1]) * units[match[2]]) if match and match[2] in units else None


def parse_seconds(text: str, option: str) -> float:
    """`90`, `90s`, `10m` or `2h` in seconds."""
    seconds = quantity(text, _OF_OPTIONS)
    if seconds is None:
        raise UsageError(f"{option} takes a time above 0 such as 90s, 10m or 2h, not '{plain(text, 60)}'")
    return check_seconds(seconds, option)


def check_seconds(seconds: float, option: str) -> float:
    """A time that somebody can wait for."""
    if not 0 < seconds < _LONGEST_S:
        raise UsageError(f"{option} takes a time above 0 and below 30 years, such as 90s, 10m or 2h, not {seconds:g}s")
    return seconds


def parse_clock(text: str) -> float:
    """`0:02:43.5` in seconds."""
    hours, minutes, seconds = text.split(":")
    return 3600 * float(hours) + 60 * float(minutes) + float(seconds)


def parse_fraction(text: str, option: str) -> float:
    """`5%` or `0.05` as 0.05."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*(%?)\s*", text)
    if not match:
        raise UsageError(f"{option} takes a fraction such as 5% or 0.05, not '{plain(text, 60)}'")
    return check_fraction(float(match[1]) / (100 if match[2] else 1), option)


def check_fraction(value: float, option: str) -> float:
    """A part of something."""
    if not 0 < value < 1:
        raise UsageError(f"{option} takes a fraction such as 5% or 0.05, not {value:g}")
    return value


def format_seconds(seconds: float) -> str:
    """A duration with three significant digits and a fitting unit."""
    if seconds < 0:
        return "-" + format_seconds(-seconds)
    if seconds >= 3600:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} min"
    if seconds >= 100:
        return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
    unit, factor = unit_of(seconds)
    return f"{seconds * factor:.3g} {unit}"


def unit_of(seconds: float) -> tuple[str, float]:
    """The unit that fits a duration, s, ms or us, and what seconds are multiplied with to be in it."""
    return ("s", 1.0) if seconds >= 1 else ("ms", 1e3) if seconds >= 1e-3 else ("us", 1e6)


def times(factor: float) -> str:
    """`1.58x`."""
    return f"{factor:.2f}x" if factor < 10 else f"{factor:.0f}x"


def with_error(step_s: float, error_s: float | None) -> str:
    """`353 ± 2.9 ms`."""
    if error_s is None:
        return format_seconds(step_s)
    unit, factor = unit_of(step_s)
    return f"{digits(factor * step_s)} ± {factor * error_s:.2g} {unit}"


def digits(value: float, count: int = 3) -> str:
    """The number with this many significant digits or more, never as a power of ten."""
    return f"{value:.{count}g}" if abs(value) < 10**count else f"{value:,.0f}"


def format_bits(bits_per_s: float) -> str:
    """The speed of a link: `940 Mbit/s`."""
    for unit, size in (("Gbit/s", 1e9), ("Mbit/s", 1e6)):
        if bits_per_s >= size:
            return f"{bits_per_s / size:.3g} {unit}"
    return f"{bits_per_s:.3g} bit/s"


def format_rate(per_second: float) -> str:
    """A rate with three significant digits and thousands separated."""
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"


def format_share(fraction: float) -> str:
    """`18 %`; a tenth only where there is less than one."""
    return f"{100 * fraction:.1f} %" if 0 < abs(fraction) < 0.0095 else f"{100 * fraction:.0f} %"


def format_change(fraction: float) -> str:
    """`+0.8 %`, `-12 %`."""
    text = f"{100 * fraction:+.1f}" if abs(fraction) < 0.0995 else f"{100 * fraction:+.0f}"
    return f"{'0.0' if text in ('+0.0', '-0.0') else text} %"


def format_bytes(count: float) -> str:
    """A size in binary units."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{digits(count)} {unit}"
        count /= 1024
    return f"{digits(count)} TiB"


def doublings(largest: int) -> tuple[int, ...]:
    """1, 2, 4 and so on, and the largest itself."""
    return (*(2**power for power in range(largest.bit_length()) if 2**power < largest), largest)
