"""Formulas as MathML: those of docstrings, which are plain text, and those of pages, which are LaTeX.

Browsers draw MathML themselves, so that the site needs neither a script nor a network.
"""

import html
import re

from latex2mathml.converter import convert

_GREEK = "alpha beta gamma delta Delta epsilon eta theta lambda mu rho sigma tau phi Phi psi Psi kappa xi nu chi"
_SYMBOLS = {
    **{name: f"\\{name}" for name in _GREEK.split()},
    **{
        name: f"\\{name}" for name in ("sum", "prod", "min", "max", "log", "exp", "cos")
    },
    **{
        "in": r"\in",
        "lam": r"\lambda",
        "lamb": r"\lambda",
        "eps": r"\varepsilon",
        "grad": r"\nabla",
        "argmin": r"\operatorname{argmin}",
    },
    **{
        "<-": r"\leftarrow",
        "->": r"\to",
        ">=": r"\ge",
        "<=": r"\le",
        "!=": r"\ne",
        "||": r"\Vert",
        "|": r"\vert",
    },
    **{
        "...": r"\dots",
        "*": r"\cdot",
        "~": r"\sim",
        "%": r"\%",
        "&": r"\&",
        "#": r"\#",
        "-": "-",
    },
}
_ACCENTED = re.compile(
    rf"(?!what|that)([A-Za-z]|{_GREEK.replace(' ', '|')})(bar|hat|tilde)"
)
_OPTION = rf"(?!(?:{'|'.join(filter(str.isalpha, _SYMBOLS))})_)[a-z]{{3,}}(?:_[a-z]{{3,}})+"  # personal_steps
_WORD = r"[A-Za-z]{2,}(?:-[A-Za-z]{2,})*(?:'s\b)?"
_TOKEN = re.compile(
    rf"{_OPTION}|{_WORD}|"
    r"\s+|<-|->|>=|<=|!=|\|\||\.\.\.|'s\b|[a-z]\d|\.?\d+(?:\.\d+)?(?:e-?\d+)?|.",
    re.DOTALL,
)
_SIMPLE = r"(?:\|[\w^+]+\||\w+|\.\d+)"
_FRACTION = re.compile(rf"(?<![\w\])}}|/])({_SIMPLE})/({_SIMPLE})(?![\w(/^])")
_GAP = re.compile(r"(?<!min) {2,}")


def render_formula(text: str) -> str:
    """Render the formula of a docstring as HTML; parts of a line separated by two or more spaces stay apart."""
    lines = []
    for line in text.rstrip().splitlines():
        parts = [to_mathml(to_latex(part)) for part in _GAP.split(line.strip()) if part]
        indent = " style='padding-left: 2em'" if line.startswith("  ") else ""
        lines.append(
            f"<div{indent}>{' '.join(f'<span>{part}</span>' for part in parts)}</div>"
        )
    return f'<div class="formula" role="math">{"".join(lines)}</div>'


def to_mathml(latex: str, *, is_block: bool = False) -> str:
    return convert(latex, display="block" if is_block else "inline")


def to_latex(text: str) -> str:
    r"""Translate the notation of docstrings, such as `w <- w + eta_g sum_i p_i (w_i - w)`, to LaTeX.

    `x_ik` and `x^2` have the following letters and digits as their index, braces group longer ones, `c_i+` is
    raised, `xbar` has a bar, `1/N` without spaces is a fraction, and words are text.
    """
    tokens = _TOKEN.findall(_FRACTION.sub(r"⟨\1⟩⟨\2⟩", text))
    latex, place = "", 0
    while place < len(tokens):
        token, before = tokens[place], tokens[place - 1] if place else ""
        following = tokens[place + 1] if place + 1 < len(tokens) else ""
        if token in "_^":
            index, place = _read_index(tokens, place + 1)
            latex += f"{token}{{{index}}}"
        elif token == "⟨":
            end = tokens.index("⟩", place)
            latex += (
                "" if before == "⟩" else r"\tfrac"
            ) + f"{{{to_latex(''.join(tokens[place + 1 : end]))}}}"
            place = end
        elif token == "sqrt" and following == "(":
            end = _find_close(tokens, place + 1)
            latex += rf"\sqrt{{{to_latex(''.join(tokens[place + 2 : end]))}}}"
            place = end
        elif (
            token == "+"
            and before.isalnum()
            and following in ("", " ", ")", ",", ";", ":")
        ):
            latex += "^{+}"
        elif token == "<" and not following.isspace():
            latex += r"\langle "
        elif token == ">" and not before.isspace():
            latex += r"\rangle "
        elif token == "." and before.isspace() and following.isspace():
            latex += r"\cdot "
        elif _is_word(token) or _is_word_here(tokens, place):
            spaces = [r"\ " * other.isspace() for other in (before, following)]
            latex += rf"{spaces[0]}\text{{{token}}}{spaces[1]}"
        else:
            latex += (
                r"\ " if token.isspace() and before in (":", ";") else _translate(token)
            )
        place += 1
    return re.sub(r"(\\ +)+", r"\\ ", latex)


def _is_word(token: str) -> bool:
    return _translate(token).startswith(r"\text")


def _is_word_here(tokens: list[str], place: int) -> bool:
    """Whether "a", "in" or "sum" is the English word, because its neighbors are words."""
    neighbors = [
        tokens[other] for other in (place - 2, place + 2) if 0 <= other < len(tokens)
    ]
    return (
        tokens[place] in ("a", "in", "sum")
        and len(neighbors) == 2
        and all(map(_is_word, neighbors))
    )


def _translate(token: str) -> str:
    if token in _SYMBOLS:
        return _SYMBOLS[token] + " "
    if accented := _ACCENTED.fullmatch(token):
        return rf"\{accented[2]}{{{_SYMBOLS.get(accented[1], accented[1])}}}"
    if token in "{}":
        return rf"\{token}"
    if re.fullmatch(r"[a-z]\d", token):
        return f"{token[0]}_{{{token[1]}}}"
    return rf"\text{{{token}}}" if len(token) > 1 and token[-1].isalpha() else token


def _read_index(tokens: list[str], place: int) -> tuple[str, int]:
    """Return the index that begins at a token, and the position of its last token."""
    if tokens[place] in "({":
        end = _find_close(tokens, place)
        return to_latex("".join(tokens[place + 1 : end])), end
    end = place
    while end + 1 < len(tokens) and tokens[end + 1].isalnum():
        end += 1
    token = "".join(tokens[place : end + 1])
    is_word = len(token) > 2 or token in _SYMBOLS
    return (_translate(token) if is_word else token), end


def _find_close(tokens: list[str], place: int) -> int:
    opening, depth = tokens[place], 0
    closing = {"(": ")", "{": "}"}[opening]
    for end in range(place, len(tokens)):
        depth += (tokens[end] == opening) - (tokens[end] == closing)
        if not depth:
            return end
    raise ValueError(f"no '{closing}' in {''.join(tokens)}")


_BLOCK = re.compile(
    r'<div class="language-text highlight"><pre><span></span><code>(.*?)</code></pre></div>',
    re.DOTALL,
)
_LATEX = re.compile(
    r'<(div|span) class="arithmatex">(?:\\\[|\\\()(.*?)(?:\\\]|\\\))</\1>', re.DOTALL
)


def render_page(page: str, *, has_docstrings: bool) -> str:
    """Replace the formulas of a page of HTML by MathML.

    Args:
        page: The HTML.
        has_docstrings: Whether blocks without a language are formulas of docstrings.
    """
    if has_docstrings:
        page = _BLOCK.sub(
            lambda match: render_formula(
                html.unescape(re.sub(r"<[^>]+>", "", match[1]))
            ),
            page,
        )
    return _LATEX.sub(
        lambda match: to_mathml(html.unescape(match[2]), is_block=match[1] == "div"),
        page,
    )
