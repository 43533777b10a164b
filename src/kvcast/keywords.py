"""Turns declared options (`kvcast.options`) into the keywords of a public function or method."""

import dataclasses
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import wraps
from typing import (
    Any,
    Concatenate,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    get_type_hints,
    overload,
)

from kvcast.foreign_options import LOADING
from kvcast.options import Declared, Params

P = ParamSpec("P")
T = TypeVar("T", bound=Params)
T_co = TypeVar("T_co", bound=Params, covariant=True)
T_contra = TypeVar("T_contra", contravariant=True)
Owner = TypeVar("Owner")
Owner_contra = TypeVar("Owner_contra", contravariant=True)
First = TypeVar("First")
First_contra = TypeVar("First_contra", contravariant=True)
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class _TakesParams(Protocol[Owner_contra, First_contra, T_contra, R_co]):
    """A method with one argument, which has a default, besides `params`."""

    def __call__(
        self, owner: Owner_contra, first: First_contra = ..., /, *, params: T_contra
    ) -> R_co: ...


class _TakesKeywords(Protocol[First_contra, P, R_co]):
    def __call__(
        self, first: First_contra = ..., /, *args: P.args, **keywords: P.kwargs
    ) -> R_co: ...


class _Method(Protocol[Owner_contra, First_contra, P, R_co]):
    """The decorated method as type checkers see it; at run time it is a function."""

    def __get__(
        self, instance: Owner_contra, owner: type
    ) -> _TakesKeywords[First_contra, P, R_co]: ...


class _Decorator(Protocol[P, T_co]):
    @overload
    def __call__(
        self, function: _TakesParams[Owner, First, T_co, R]
    ) -> _Method[Owner, First, P, R]: ...

    @overload
    def __call__(
        self, function: Callable[[Owner, First, T_co], R]
    ) -> Callable[Concatenate[Owner, First, P], R]: ...

    @overload
    def __call__(
        self, function: Callable[[First, T_co], R]
    ) -> Callable[Concatenate[First, P], R]: ...


def keywords_of(
    params: Callable[P, T], completed: Callable[[type[T], Any, Mapping[str, Any]], T] | None = None
) -> _Decorator[P, T]:
    """Return a decorator for a function whose last argument is `params`, of this class.

    `completed` makes them for a method, of its owner and the keywords that were given.

    The decorated function takes the fields as keywords, with their types and defaults. Type
    checkers and `inspect.signature` see each keyword; in the docstring, the options' help replaces
    the line of `params`. To type checkers, the arguments before the keywords are positional.
    """
    made = cast("type[T]", params)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(function)
        kept = [
            parameter for parameter in signature.parameters.values() if parameter.name != "params"
        ]
        keywords_shown = _keywords(made)
        names = frozenset(parameter.name for parameter in keywords_shown)
        others = frozenset(parameter.name for parameter in kept)

        @wraps(function)
        def taking(*given: Any, **keywords: Any) -> Any:
            if len(given) > len(kept):
                example = f"{keywords_shown[0].name}=…"
                raise TypeError(f"{function.__name__}() takes options as keywords, as in {example}")
            options = {name: keywords.pop(name) for name in names & keywords.keys()}
            for name in keywords.keys() - others:
                raise _unknown(function.__name__, made, name, keywords[name])
            if completed is None:
                return function(*given, **keywords, params=made(**options))
            return function(*given, **keywords, params=completed(made, given[0], options))

        taking.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*kept, *keywords_shown]
        )
        docstring = inspect.getdoc(function) or ""
        taking.__doc__ = "\n".join(_documented(docstring, made.declared()))
        return taking

    return cast("_Decorator[P, T]", decorate)


def check_keywords(function: str, params: type[Params], given: Mapping[str, Any]) -> None:
    """Raise TypeError for a keyword that is none of these options: what it is called here."""
    names = {parameter.name for parameter in _keywords(params)}
    for name in given.keys() - names:
        raise _unknown(function, params, name, given[name])


def _unknown(function: str, params: type[Params], name: str, value: object) -> TypeError:
    flag, shown = "--" + name.replace("_", "-"), name
    own = next((option.name for option in params.declared() if flag in option.flags), None)
    names = [parameter.name for parameter in _keywords(params)]
    if own is not None:
        advice = f"it is {own} here"
    elif (foreign := params.foreign.get(name)) is not None:
        advice = foreign.in_python(value)
        shown = f"{name}={value!r}" if foreign.values else name
    elif name in LOADING:
        advice = f"see kvcast.load: {LOADING[name].in_python(value)}"
    elif close := get_close_matches(name, names, n=1):
        advice = f"did you mean {close[0]}?"
    else:
        advice = "see help() for its keywords"
    return TypeError(f"{function}() takes no {shown}: {advice}")


def _keywords(params: type[Params]) -> list[inspect.Parameter]:
    """Return a parameter for every field; fields without an `Option` are for Python alone."""
    types = get_type_hints(params)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=types[field.name],
        )
        for field in dataclasses.fields(params)
        if field.init
    ]


def _documented(docstring: str, options: Sequence[Declared]) -> Iterator[str]:
    """Yield the lines of a docstring, with a line for each option in the place of `params`."""
    for line in docstring.splitlines():
        if not line.lstrip().startswith("params:"):
            yield line
            continue
        margin = line[: line.index("p")]
        for option in options:
            words = f"{option.name}: {option.help} (default: {option.default_in_words})"
            yield from textwrap.wrap(
                words, 96, initial_indent=margin, subsequent_indent=margin + "    "
            )
