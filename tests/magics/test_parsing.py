"""The line of a magic: its options, its verb, its statement; and what is refused, and how."""

from __future__ import annotations

import re
from typing import Any

import pytest
from IPython.core.error import UsageError

from gpumagic.errors import SpecError
from gpumagic.magics.commands import MAGICS, grammar_of
from gpumagic.magics.parsing import split
from tests.tools.docs.reference import helps


@pytest.mark.parametrize(
    ("line", "given", "code"),
    [
        ("y = f(x)", {}, "y = f(x)"),
        ("-s 'x = 1' y", {"-s": "x = 1"}, "y"),
        ("-s='x = 1' y", {"-s": "x = 1"}, "y"),
        ("-s'x = 1' y", {"-s": "x = 1"}, "y"),
        ("-sx=1 y", {"-s": "x=1"}, "y"),
        ("-s x='a' y", {"-s": "x='a'"}, "y"),
        ('--name="a b" y', {"--name": "a b"}, "y"),
        ("--name=ab -s='x = 1' y = 'z'", {"--name": "ab", "-s": "x = 1"}, "y = 'z'"),
        (r"--save C:\temp\x.json y", {"--save": r"C:\temp\x.json"}, "y"),
        ("-qn 2 -ov name y", {"-q": True, "-n": 2, "-o": True, "-v": "name"}, "y"),
        ("-qn2 y", {"-q": True, "-n": 2}, "y"),
        ("--cluster -t -1: y", {"--cluster": True, "-t": "-1:"}, "y"),
        ("-n 2 -- -y", {"-n": 2}, "-y"),
        ("-- log", {}, "log"),
        ("-- it's", {}, "it's"),
        ("-1 + x", {}, "-1 + x"),
        ("f(x);", {}, "f(x);"),
        ("log = 3", {}, "log = 3"),
        *((f"log {rest}", {}, f"log {rest}") for rest in ("[0]", "- 1", "-1", "+= 1", "if x")),
        ("logs", {}, "logs"),
    ],
)
def test_options_and_a_statement(line: str, given: dict[str, Any], code: str) -> None:
    read = grammar_of("cudatime").read(line)
    assert (dict(read.given), read.code, read.verb) == (given, code, "")


@pytest.mark.parametrize(
    ("magic", "line", "verb", "fields"),
    [
        ("cudatime", "log", "log", {}),
        ("cudatime", "-q on --above 1s", "on", {"quiet": True, "above": 1.0}),
        ("cudatime", "log -o;", "log", {"output": True}),
        ("cudatime", "--compare a 'b c' -q", "--compare", {"names": ["a", "b c"], "quiet": True}),
        ("gpumem", "free a b", "free", {"names": ["a", "b"]}),
        ("gpumem", "snapshot /tmp/file", "snapshot", {"file": "/tmp/file"}),
        ("gpumem", "limit 16GiB", "limit", {"size": 16 * 2**30}),
        ("gpumem", "", "", {"lines": False}),
        ("gpu", "", "", {"processes": False, "spec": []}),
        ("gpu", "0,2 --restart --keep a b", "", {"spec": ["0,2"], "keep": ["a", "b"]}),
        ("gpu", "-q auto 2 --min-free 2GiB", "auto", {"spec": ["auto", "2"], "min_free": 2**31}),
        ("gpu", "-1,0", "", {"spec": ["-1,0"]}),
        ("gpu", r"plot C:\temp\x.png", "plot", {"file": r"C:\temp\x.png"}),
        ("gpu", "watch off;", "watch", {"switch": "off"}),
    ],
)
def test_verbs_and_choices(magic: str, line: str, verb: str, fields: dict[str, Any]) -> None:
    read = grammar_of(magic).read(line)
    assert (read.verb, read.code) == (verb, "")
    assert read.options.quiet is (line.endswith(";") or "-q" in line)
    assert {name: getattr(read.options, name) for name in fields} == fields


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("%cudatime", "%cudatime: no statement to time. Try %cudatime?"),
        ("%cudatime -n x 1", "argument -n: 'x' is not a number from 1 to 999,999,999"),
        ("%cudatime -v 1x 1", "'1x' is not a variable name"),
        ("%cudatime --save --repeat y", "argument --save: expected one argument"),
        ("%cudatime -s 'x", "no closing quotation"),
        ("%cudatime -s 'x'y z", "or no blank behind it"),
        ("%cudatime --repet y", "unknown option --repet; did you mean --repeat?"),
        ("%cudatime --name a log", "--name does not go with %cudatime log; it goes with"),
        ("%cudatime -n 2 --compare", "-n does not go with %cudatime --compare; it goes with"),
        ("%cudatime --lines -n 2 y", "--lines does not go with -n: leave one of them out"),
        ("%cudatime -f g y", "-f goes with --lines: %cudatime --lines … -f …"),
        ("%cudatime --cluster --save a y", "--cluster does not go with --save"),
        ("%cudatime --help", "%cudatime: the help is shown by %cudatime?"),
        ("%%cudatime x = 1\ny = 2", "'x = 1' belongs below, in the cell"),
        ("%%cudatime --compare\n1", "--compare is for a line: write %cudatime --compare"),
        ("%%cudatime --save my file.json\n1", "a value with blanks is in quotes"),
        ("%cudatime -r 3 --max-time 1s 1", "leave nothing for --max-time"),
        ("%cudatime --cold -n 5 1", "leave -n 5 (n=5) out"),
        ('%%cudatime -n 1 --save "dq".json"\n1', "no closing quotation, or no blank behind it"),
        ("%cudatime --on mars 1", "'mars' is no list of devices; write cpu,cuda:0"),
        ("%cudatime --on cuda:9 1", "there is no cuda:9 in this process"),
        ("%cudatime --name a,b 1", "'a,b' is not a name"),
        ("%%cudatime --lines -f nowhere\nran = True", "there is no 'nowhere' here"),
        ("%cudatime --compare", "it takes two named results; there is none; %%cudatime --name"),
        ("%cudatime --compare a", "no result is named 'a'; there is none"),
        ("%cudatime lines", "'lines' is neither a verb nor a variable; %cudatime? shows the verbs"),
        ("%%cudatime --repeat 5\n1", "5 is no setup; -r 5 sets the number of repeats"),
        ("%gpumem reset", "'reset' is neither a verb nor a variable"),
        ("%gpumem -- log", "'log' is no variable; the verb is %gpumem log"),
        ("%gpumem -- free x", "'free' is no variable; the verb is %gpumem free x"),
        ("%gpumem fre model", "did you mean free?"),
        ("%%gpumem vars\n1", "vars is for a line: write %gpumem vars"),
        ("%gpumem snapshot", "the following arguments are required: FILE"),
        ("%gpumem --lines", "--lines needs a statement or a cell"),
        ("%gpumem limit 0", "0 is no limit"),
        ("%gpumem limit 3GiB 4GiB", "unexpected '4GiB'"),
        ("%%gpumem --fit batch\n1", "'batch' is not a range of whole numbers; write batch=1:4096"),
        ("%%gpumem --fit 3=1:2\n1", "'3=1:2' is not a range of whole numbers"),
        ("%%gpumem --fit x=9:1\n1", "'x=9:1' runs backwards"),
        ("%%gpumem --fit x=1:8\nx = 3", "the cell sets x itself; leave that out"),
        ("%gpu --restart", "--restart does not go with %gpu; it goes with"),
        (
            "%gpu off --min-free 2GiB",
            "--min-free does not go with %gpu SPEC; it goes with %gpu auto",
        ),
        ("%gpu auto --wait 3 --soft", "--wait does not go with --soft"),
        ("%gpu off --threads 2 --cluster", "--cluster does not go with --threads"),
        ("%gpu 9", "there is no GPU 9"),
        ("%gpu offf", "'offf' is not a choice of GPUs"),
        ("%gpu 0,0", "GPU 0 is named twice"),
        ("%gpu auto 9", "9 GPUs are requested"),
        ("%gpu auto --min-free 1TiB --wait 20", "no GPU fits, 1 requested (GPU 0: only"),
        ("%gpu -1,0", "'-1' is not a choice of GPUs; write off, on,"),
        ("%gpu 0 -v class", "'class' is not a variable name"),
        ("%gpu 1 --soft", "--soft goes with off; for other GPUs: %gpu 1 --restart"),
        ("%gpu doctor x", "%gpu doctor: unexpected 'x'"),
        ("%gpu watch 0", "argument off: invalid choice: '0'"),
        ("%gpu --off", "off is written without dashes: %gpu off"),
        ("%gpu --watch", "watch is written without dashes: %gpu watch"),
        ("%gpu auto --min-free 20", "'20' has no unit; write 20GiB"),
        ("%gpu help", "%gpu: the help is shown by %gpu?"),
        ("%%gpu doctor\n1", "%%gpu needs a choice of GPUs for the cell"),
        ("%%gpu off --restart\n1", "--restart goes with %gpu, not with %%gpu"),
    ],
)
def test_bad_lines_are_one_line_and_change_nothing(run_cell: Any, line: str, says: str) -> None:
    before = run_cell("dict(__import__('os').environ)").value
    error = run_cell(line, raising=False).error
    assert type(error) is UsageError
    assert says in str(error)
    assert "\n" not in str(error)
    assert run_cell("dict(__import__('os').environ)").value == before


def test_a_bad_default_is_refused_where_it_is_set(run_cell: Any, ip: Any) -> None:
    run_cell("%config GpuMagic.min_free = '1GiB'")
    refused = run_cell("%config GpuMagic.min_free = 'abc'")
    assert "GpuMagic.min_free: 'abc' is not a size" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert ip.magics_manager.registry["GpuMagic"].min_free == "1GiB"


def test_a_semicolon_is_quiet_where_it_ends_no_code() -> None:
    """As the help says: that of code keeps its value alone from being shown."""
    read = grammar_of("gpumem").read
    for line in ("-v d;", ";", "--lines -o ;"):
        assert read(line, cell=True).options.quiet
    for line in ("k = 1;", "-v d k = 1;"):
        assert (read(line).options.quiet, read(line).code) == (False, "k = 1;")


def test_comments() -> None:
    """As in README: behind a choice, a verb and its arguments; behind code it is Python's."""
    read = grammar_of("gpu").read
    assert read("  # the table").options.spec == []
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


def test_words() -> None:
    assert split(r""" a 'b c' --x="d'e" it's C:\new\x 'f', g """) == [
        *("a", "b c", "--x=d'e", "it's", r"C:\new\x", "f", ",", "g")
    ]
    with pytest.raises(SpecError, match="no closing quotation"):
        split("a 'b")


@pytest.mark.parametrize("magic", MAGICS)
def test_the_help_has_every_option_and_fits_on_a_screen(magic: str, run_cell: Any) -> None:
    shown = helps()[magic]
    lines = shown.splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) < 80
    forms = grammar_of(magic).forms.values()
    known = {option for form in forms for option in form.option_strings()}
    named = {*re.findall(r"(?<![\w-])--?[a-z][a-z-]*", shown)}
    assert known <= named
    assert named - known <= {"--compare", "-x"}  # a form, and code
    text = run_cell(f"%{magic}?").text
    assert [line for line in lines if line.strip() not in text] == []
