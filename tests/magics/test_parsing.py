"""The line of a magic: its options, its verb, its statement; and what is refused, and how."""

from __future__ import annotations

import re
from typing import Any

import pytest
from IPython.core.error import UsageError

from gpumagic.magics.magic_class import MAGICS, grammar_of
from tests.tools.docs.reference import helps


@pytest.mark.parametrize(
    ("line", "given", "code"),
    [
        ("y = f(x)", {}, "y = f(x)"),
        ("-s 'x = 1' y", {"-s": "x = 1"}, "y"),
        ("-s'x = 1' y", {"-s": "x = 1"}, "y"),
        ("-s x='a' y", {"-s": "x='a'"}, "y"),
        ('--name="a b" y', {"--name": "a b"}, "y"),
        ("--name=ab -s='x = 1' y = 'z'", {"--name": "ab", "-s": "x = 1"}, "y = 'z'"),
        (r"--save C:\temp\x.json y", {"--save": r"C:\temp\x.json"}, "y"),
        ("-qn 2 -ov name y", {"-q": True, "-n": 2, "-o": True, "-v": "name"}, "y"),
        ("--cluster -t -1: y", {"--cluster": True, "-t": "-1:"}, "y"),
        ("-n 2 -- -y", {"-n": 2}, "-y"),
        ("-- log", {}, "log"),
        ("-1 + x", {}, "-1 + x"),
        ("--on cpu, cuda:0 y", {"--on": ["cpu", "cuda:0"]}, "y"),
        ("y = f'{x}' + '$x'", {}, "y = f'{x}' + '$x'"),
        ("f(x);", {}, "f(x);"),
        ("log = 3", {}, "log = 3"),
        *((f"log {rest}", {}, f"log {rest}") for rest in ("[0]", "- 1", "-1", "+= 1", "if x")),
    ],
)
def test_options_and_a_statement(line: str, given: dict[str, Any], code: str) -> None:
    read = grammar_of("cudatime").read(line, {"log": 1, "x": 1, "y": 1, "logs": 1, "it": 1})
    assert (dict(read.given), read.code, read.verb) == (given, code, "")


@pytest.mark.parametrize(
    ("magic", "line", "verb", "fields"),
    [
        ("cudatime", "-q on --above 1s", "on", {"quiet": True, "above": 1.0}),
        ("cudatime", "log -o;", "log", {"output": True}),
        ("cudatime", "compare a 'b c' -q", "compare", {"names": ["a", "b c"], "quiet": True}),
        ("gpumem", "snapshot /tmp/file", "snapshot", {"file": "/tmp/file"}),
        ("gpumem", "limit 16GiB", "limit", {"size": 16 * 2**30}),
        ("gpumem", "", "", {"lines": False}),
        ("gpu", "0,2 --restart --keep a b", "", {"spec": ["0,2"], "keep": ["a", "b"]}),
        ("gpu", "-q auto 2 --min-free 2GiB", "auto", {"spec": ["auto", "2"], "min_free": 2**31}),
        ("gpu", "-1,0", "", {"spec": ["-1,0"]}),
        ("gpu", "GPU-1a2b;", "", {"spec": ["GPU-1a2b"]}),  # no Python
        ("gpu", r"plot C:\temp\x.png", "plot", {"file": r"C:\temp\x.png"}),
        ("gpu", "watch off;", "watch", {"switch": "off"}),
    ],
)
def test_verbs_and_choices(magic: str, line: str, verb: str, fields: dict[str, Any]) -> None:
    read = grammar_of(magic).read(line)
    assert (read.verb, read.code) == (verb, "")
    assert read.options.quiet is (line.endswith(";") or "-q" in line)
    assert {name: getattr(read.options, name) for name in fields} == fields


#: A wrong line, and what its message must contain: the wrong word, and what to type.
WRONG: dict[str, tuple[str, ...]] = {
    "%cudatime": ("no statement",),
    "%cudatime -n x 1": ("%cudatime -n: 'x'", "a number from 1"),
    "%cudatime -n 0 1": ("'0'", "a number from 1 to 999,999,999"),
    "%cudatime -v 1x 1": ("'1x'", "variable name"),
    "%cudatime --save --repeat y": ("--save", "missing"),
    "%cudatime -s 'x'y z": ("no blank behind it",),
    "%cudatime --repet y": ("--repet;", "--repeat?"),
    "%cudatime -cold y": ("-cold;", "--cold?"),
    "%cudatime --repeat=5 y": ("--repeat: it takes no value",),
    "%cudatime --repeat 5 y": ("'5' has no option before it", "-r 5"),
    "%cudatime -x @ x": ("-x;", "%cudatime -- -x @ x"),
    "%cudatime -n 2 -- compare": ("'compare'", "%cudatime compare"),
    "%cudatime --compare=a": ("without dashes", "%cudatime compare a"),
    "%cudatime clear": ("'clear'", "forget"),
    "%cudatime --lines -n 2 y": ("--lines", "-n", "leave one of them out"),
    "%cudatime -f g y": ("-f", "%cudatime --lines … -f …"),
    "%cudatime --cluster --save a y": ("--cluster", "--save"),
    "%%cudatime x = 1\ny = 2": ("'x = 1'", "in the cell", "-s SETUP"),
    "%%cudatime compare\n1": ("%cudatime compare",),
    "%%cudatime --save my file.json\n1": ("'file.json'", "in quotes"),
    "%cudatime -r 3 --max-time 1s 1": ("--max-time",),
    "%cudatime --max-time 0s 1": ("'0s'", "a time above 0"),
    "%cudatime --max-time 1000001 1": ("'1000001'", "at most 1000000s"),
    "%cudatime on --above soon": ("'soon'", "0.5s, 500ms or 2min"),
    "%cudatime --against a --fail-above 0.1 1": ("0.1", "10%"),
    "%cudatime --on mars 1": ("'mars'", "cpu,cuda:0"),
    "%cudatime --on cuda:9 1": ("cuda:9", "%gpu"),
    "%cudatime --name a,b 1": ("'a,b'",),
    "%%cudatime --lines -f nowhere\nran = True": ("'nowhere'",),
    "%cudatime compare": ("none", "--name NAME"),
    "%cudatime compare a": ("'a'", "none"),
    "%cudatime lines": ("'lines'", "on, off, log"),
    "%gpumem fre model": ("'fre'", "free?"),
    "%gpumem snapshot": ("%gpumem snapshot FILE",),
    "%gpumem --lines": ("--lines", "%gpumem --lines … y = f(x)"),
    "%gpumem limit 0": ("0", "16GiB"),
    "%gpumem limit -5": ("'-5'", "20GiB"),
    "%gpumem limit 16": ("'16'", "write 16GiB"),
    "%gpumem limit 8388608T": ("'8388608T'", "more than any memory"),
    "%gpumem limit 512000": ("'512000'", "512000MiB or 512000B"),
    "%%gpumem --fit batch\n1": ("'batch'", "batch=1:4096"),
    "%%gpumem --fit x=9:1\n1": ("'x=9:1'", "smaller number first"),
    "%%gpumem --fit x=1:8\nx = 3": ("sets x", "leave that out"),
    "%gpu --restart": ("--restart", "%gpu SPEC"),
    "%gpu off --min-free 2GiB": ("--min-free", "%gpu auto"),
    "%gpu off --threads 2 --cluster": ("--cluster", "--threads"),
    "%gpu offf": ("'offf'",),
    "%gpu 0,0": ("GPU 0", "twice"),
    "%gpu auto 9": ("9 GPUs",),
    "%gpu doctor x": ("'x'",),
    "%gpu --off": ("%gpu off",),
    "%%gpu doctor\n1": ("%%gpu", "off"),
    "%%gpu off --restart\n1": ("--restart", "%gpu"),
}


@pytest.mark.parametrize("line", WRONG)
def test_bad_lines_are_one_line_and_change_nothing(run_cell: Any, line: str) -> None:
    before = run_cell("dict(__import__('os').environ)").value
    error = run_cell(line, raising=False).error
    assert type(error) is UsageError
    assert [words for words in WRONG[line] if words not in str(error)] == [], str(error)
    assert "\n" not in str(error)
    assert not re.search(r"argument |STATEMENT: ", str(error)), "what the parser calls it"
    assert run_cell("dict(__import__('os').environ)").value == before


@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.parametrize("line", ["--help", "-h", "help"])
def test_the_help_is_shown(magic: str, line: str, run_cell: Any) -> None:
    assert run_cell(f"%{magic} {line}").text == run_cell(f"%{magic}?").text != ""


def test_a_bad_default_is_refused_where_it_is_set(run_cell: Any, ip: Any) -> None:
    run_cell("%config GpuMagic.min_free = '1GiB'")
    refused = run_cell("%config GpuMagic.min_free = 'abc'")
    assert "GpuMagic.min_free: 'abc' is not a size" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert ip.magics_manager.registry["GpuMagic"].min_free == "1GiB"


def test_a_semicolon_is_quiet_where_it_ends_no_code() -> None:
    """As the help says: that of code keeps its value alone from being shown."""
    read = grammar_of("gpumem").read
    for line in ("-v d;", ";", "--lines -o ;", "-v d;  # quiet"):
        assert read(line, cell=True).options.quiet
    for line in ("k = 1;", "-v d k = 1;"):
        assert (read(line).options.quiet, read(line).code) == (False, "k = 1;")


@pytest.mark.parametrize("magic", ["gpu", "gpumem"])
def test_a_semicolon_after_the_name(magic: str, run_cell: Any) -> None:
    for cell in (f"%{magic};", f"if True:\n    %{magic};\n    pass", f"%{magic};  \n1;"):
        ran = run_cell(cell)
        assert (ran.text, ran.value) == ("", None), cell
    assert run_cell(f"t = %{magic} -o\nt").text != ""
    assert run_cell(f"'get_ipython().run_line_magic(\\'{magic};\\', \\'\\')'").value.count(";") == 1


#: Lines whose options are variables, and what stands in the result.
EXPANDED = {
    "cudatime": "-n {n} -r $n -w {n - 2} --name bs-{n} -v r{n} --max-time {n}s --nvtx {n}",
    "gpumem": "-v r{n} --fail-above {n * 5}% --against f-{n}.json",
    "gpu": "auto {n} --min-free {n}GiB --threads {n} -v r$n",
}


@pytest.mark.parametrize("magic", MAGICS)
def test_variables_in_every_option(magic: str) -> None:
    line = EXPANDED[magic]
    read = grammar_of(magic).read(f"{line} f'{{n}}'" if magic != "gpu" else line, {"n": 2})
    values = [*map(str, [*read.given.values(), vars(read.options).get("spec")])]
    assert not any({"{", "$"} & {*value} for value in values), values
    assert read.options.variable == "r2"
    assert read.code == ("" if magic == "gpu" else "f'{n}'")
    assert read.written.startswith(line)


def test_the_callers_variables_come_first(run_cell: Any, ip: Any) -> None:
    """A loop's, a function's, then the notebook's; of each magic alike."""
    run_cell("n, name = 99, 'global'")
    run_cell(
        "def f(n, name):\n"
        "    %cudatime -q -n {n} -r {n + 1} -w 0 -v found_{n} --name {name}-$n [n, '{n}']\n"
        "    %gpumem -q -v memory_{n} {n: '{n}'}\n"
        "for i in (1, 2):\n    f(i, 'local')"
    )
    assert (ip.user_ns["found_2"].loops, ip.user_ns["found_2"].repeat) == (2, 3)
    assert {"memory_1", "memory_2"} <= {*ip.user_ns}
    assert run_cell("%cudatime forget local-2").stdout == "forgotten: local-2\n"
    assert "local-1" in run_cell("%cudatime forget").stdout


def test_a_choice_of_several_words_in_a_variable() -> None:
    read = grammar_of("gpu").read("{where} --no-claim", {"where": "auto 2 --min-free 2GiB"})
    assert (read.verb, read.options.spec, read.options.min_free) == ("auto", ["auto", "2"], 2**31)


def test_comments() -> None:
    """As in README: behind a choice, a verb and its arguments; behind code it is Python's."""
    read = grammar_of("gpu").read
    assert read("  # the table").code == ""
    assert (read("0,2 # two").options.spec, read("off  # none").options.spec) == (["0,2"], ["off"])
    assert read("plot 'my #1 #2.png' # both; ").options.file == "my #1 #2.png"
    assert not read("off # quietly;").options.quiet
    assert read("off;  # it's quiet").options.quiet
    for line, quiet in (("20GiB; # big", True), ("20GiB # big;", False)):  # no Python from 3.12 on
        options = read(f"auto --min-free {line}").options
        assert (options.min_free, options.quiet) == (20 * 2**30, quiet)
    assert grammar_of("gpumem").read("free model # gone").options.names == ["model"]
    assert grammar_of("gpumem").read("# the report").code == ""
    assert grammar_of("cudatime").read("# this cell", cell=True).code == ""
    assert grammar_of("cudatime").read("x['#'] = 1 # one").code == "x['#'] = 1 # one"


@pytest.mark.parametrize("magic", MAGICS)
def test_the_help_has_every_option_and_fits_on_a_screen(magic: str, run_cell: Any) -> None:
    shown = helps()[magic]
    lines = shown.splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) < 80
    for line in lines[2:7]:  # what people use comes first, and is what they can type
        typed = re.fullmatch(rf"  (%%?){magic}\b ?(.*?)  +[a-z].*", line)
        assert typed is not None, line
        assert grammar_of(magic).read(typed[2], cell=typed[1] == "%%"), line
    forms = grammar_of(magic).forms.values()
    known = {option for form in forms for option in form.takes}
    named = {*re.findall(r"(?<![\w-])--?[a-z][a-z-]*", shown)}
    assert known <= named
    assert named - known <= {"-x"}  # code
    text = run_cell(f"%{magic}?").text
    assert [line for line in lines if line.strip() not in text] == []
