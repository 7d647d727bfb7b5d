"""Grammars are looked at before llama.cpp gets them: what would end the process is refused."""

from __future__ import annotations

import time

import pytest

from specllama.errors import UsageError
from specllama.llama.gbnf import check

JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=  # an object
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}"""

GOOD = [
    JSON,
    'root ::= "a"',
    r"root ::= [a-z]{2,5} . [^\]x]?",
    'root ::= a |\n  "b"\na ::= ("x"\n  "y")*',
    'root ::= (("a"?)?)? "b"{3}{2}',
    'root ::= a b\na ::= "x"*\nb ::= (a "y")* | a',
    'root ::= "\\U0001F600" "\\u00e9" "\\"\\\\\\n"',
    r"root ::= ([a-z]+ [ ]?){1,50}",
    r"root ::= [0-9]{0,3} ([.] [0-9]{0,3}){0,300} [a-z]{0,2000}",
    "root ::= " + " ".join(f'("{n:03}=" [a-z]*)?' for n in range(300)),
    "root ::= a0\n"
    + "\n".join(f'a{n} ::= (", x{n}" [a-z])? a{n + 1}' for n in range(900))
    + "\na900 ::= [ ]?",
]


@pytest.mark.parametrize("text", GOOD)
def test_good_ones_pass(text: str) -> None:
    assert check(text) is False


@pytest.mark.parametrize("text", ['root ::= <[7]> "a"', "root ::= !<think> .*"])
def test_those_that_name_tokens_are_told_apart(text: str) -> None:
    assert check(text) is True


BAD = [
    ("x ::= .", "no rule called root"),
    ('root ::= b "a"', "no rule called b"),
    ("root = x", "line 1"),
    ('root ::= "a"\n| "b"', "line 2: a rule begins with"),
    ('root ::= "a', "line 1: cannot read"),
    ('root ::= ("a"', "line 1: a bracket is not closed"),
    ('root ::= "a")', "a bracket is closed"),
    ('root ::= "\\q"', "unknown escape"),
    ('root ::= "\\xZZ"', "unknown escape"),
    ("root ::= [] .", "without characters"),
    ('root ::= ""*', "nothing stands before"),
    ("root ::= *", "nothing stands before"),
    ('root ::= "a"{5,2}', "ends before it begins"),
    ('root ::= "a"{3000}', "more than 2000"),
    ('root ::= "a"{0,3000}', "more than 2000"),
    ('root ::= "a\0"', "NUL"),
    ('root ::= root "a" | "b"', "root is left recursive"),
    ('root ::= a "x"\na ::= (root)', "left recursive"),
    ('root ::= c root "x" | "y"\nc ::= b\nb ::= "" | "z"', "left recursive"),
    ('root ::= "a"? root "x" | "y"', "left recursive"),
    ('root ::= "' + "a" * 1000 + '"{2000}', "2,000,000 elements"),
    ("root ::= " + "(" * 300 + '"a"' + ")" * 300, "more than 200 deep"),
    ("\n".join(f"r{i} ::= r{i + 1} | r{i + 1}" for i in range(60)) + '\nr60 ::= "a"\nroot ::= r0',
     "too many ways"),
    ("\n".join(f"r{i} ::= r{i + 1}" for i in range(9000)) + '\nr9000 ::= ""\nroot ::= r0',
     "too many ways"),
    ("root ::= ([a-z]? [a-z]?){0,400}", "the rule root has more than 16 short parts"),
    ("root ::= " + "[a-z]? " * 17, "more than 16 short parts"),
    ("root ::= (([a-z]{0,30}){0,30}){0,30}", "more than 16 short parts"),
    ("root ::= x{0,300}\nx ::= y{0,30}\ny ::= [a-z]", "the rule root has more than 16 short parts"),
    ('root ::= "a" (x "b"? | "c"){0,30}\nx ::= [a-z]? "d"?', "more than 16 short parts"),
    ('root ::= "a"' + "?" * 5000, "nested too deeply"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "reason"), BAD)
def test_bad_ones_are_refused_quickly(text: str, reason: str) -> None:
    started = time.process_time()
    with pytest.raises(UsageError, match="cannot be used") as caught:
        check(text)
    assert reason in str(caught.value)
    assert time.process_time() - started < 2.0


def test_the_line_is_said() -> None:
    with pytest.raises(UsageError, match="line 3: cannot read '&'"):
        check('root ::= a\n\na ::= "b" &')
