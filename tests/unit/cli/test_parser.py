"""The grammar of the command line."""

import pytest

from directory.maintenance.offline_commands import main as offline_main
from resolver.cli.parser import (
    RAW_ARGUMENTS,
    Argument,
    Arguments,
    Option,
    UsageError,
    Verb,
    parse,
    split_verb,
)
from resolver.cli.registry import every_verb, load_verb
from tests.support.command_line import run


def _verb(**changes: object) -> Verb:
    settings: dict[str, object] = {
        "name": "try",
        "summary": "a verb to try the grammar with",
        "run": lambda _session, _arguments: 0,
        "examples": (("kdir try", "try it"),),
        "options": (
            Option(("-l", "--long"), "a flag"),
            Option(("-r", "--recursive"), "another flag"),
            Option(("-L", "--level"), "a number", "N"),
            Option(("-t", "--target"), "several", "PATH", repeated=True),
        ),
        "arguments": (Argument("PATH", "a path"),),
        "formats": ("table", "json"),
    }
    return Verb(**(settings | changes))  # type: ignore[arg-type]


def _parse(*arguments: str, **changes: object) -> Arguments:
    return parse(_verb(**changes), arguments)


@pytest.mark.parametrize(
    "line",
    [
        ["/a", "-l", "-r", "-L", "2"],
        ["-lr", "-L2", "/a"],
        ["-rlL2", "/a"],
        ["-lrL=2", "/a"],
        ["--long", "--recursive", "--level", "2", "/a"],
        ["--long", "/a", "--level=2", "--recursive"],
        ["-lr", "--level=2", "--", "/a"],
    ],
)
def test_options_may_stand_anywhere_and_be_joined(line: list[str]) -> None:
    arguments = _parse(*line)
    assert arguments.flag("long")
    assert arguments.flag("recursive")
    assert arguments.whole("level") == 2
    assert arguments.one("PATH") == "/a"


def test_what_is_not_given_has_its_default() -> None:
    arguments = _parse("/a")
    assert not arguments.flag("long")
    assert arguments.whole("level", 7) == 7
    assert arguments.one("target", "/d") == "/d"
    assert arguments.many("target") == ()
    assert arguments.seconds("timeout", 5.0) == 5.0


def test_a_repeated_option_keeps_its_order() -> None:
    assert _parse("/a", "-t", "/x", "--target=/y").many("target") == ("/x", "/y")


def test_after_two_dashes_nothing_is_an_option() -> None:
    assert _parse("--", "-l").one("PATH") == "-l"


def test_no_verb_declares_an_option_twice() -> None:
    for verb in every_verb():
        names = [name for option in verb.all_options() for name in option.names]
        assert len(names) == len(set(names)), verb.name


@pytest.mark.parametrize("line", ["alice ALTER / --cluster --explain", "alice create --cluster /"])
def test_check_asks_about_the_cluster_at_a_path(line: str) -> None:
    verb = load_verb("check")
    assert verb is not None
    arguments = parse(verb, line.split())
    assert (arguments.one("PATH"), arguments.flag("cluster")) == ("/", True)


def test_a_lone_dash_is_an_argument() -> None:
    assert _parse("-").one("PATH") == "-"


def test_an_option_takes_the_next_argument_whatever_it_is() -> None:
    assert _parse("/a", "-t", "-l").many("target") == ("-l",)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["/a", "--lnog"], "unknown option --lnog; did you mean --long?"),
        (["/a", "-x"], "unknown option -x"),
        (["/a", "-lx"], "unknown option -x"),
        (["/a", "--level"], "--level needs a value: --level N"),
        (["/a", "-L", "1", "-L", "2"], "--level was given twice"),
        (["/a", "--long=yes"], "--long takes no value"),
        (
            ["/a", "-o", "xml"],
            "--output 'xml': one of table, json, wide, jsonpath=TEMPLATE was expected",
        ),
        (
            ["/a", "-o", "jsonpath={.a"],
            "--output jsonpath={.a: at character 4: } was expected, found the end",
        ),
        (["/a", "/b"], "'/b' is an unexpected argument"),
        (
            ["/a\udcff"],
            "PATH '/a\\udcff': text in UTF-8 was expected; character 3 is the byte 0xff",
        ),
        (
            ["/a", "-t", "\udcfe"],
            "--target '\\udcfe': text in UTF-8 was expected; character 1 is the byte 0xfe",
        ),
        ([], "PATH is required: a path"),
        (["/a", "--at", ""], "--at '': HOST:PORT,… was expected"),
        (["/a", "--at="], "--at '': HOST:PORT,… was expected"),
        (["/a", "--context", ""], "--context '': NAME was expected"),
    ],
)
def test_what_does_not_fit_is_named(arguments: list[str], complaint: str) -> None:
    with pytest.raises(UsageError) as caught:
        _parse(*arguments)
    assert caught.value.message == complaint
    assert caught.value.verb == "try"


@pytest.mark.parametrize("text", ["x", "-1", "1.5", "²", "1_000", "0", "2147483648", "9" * 5_000])
def test_a_count_is_a_whole_number(text: str) -> None:
    arguments = _parse("/a", f"--level={text}")
    with pytest.raises(UsageError, match="a whole number"):
        arguments.whole("level")
    assert _parse("/a").whole("level", 3) == 3


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "ten", "86401"])
def test_a_timeout_is_a_positive_number_of_seconds(text: str) -> None:
    with pytest.raises(UsageError, match="seconds"):
        _parse("/a", "--timeout", text).seconds("timeout", 1.0)


@pytest.mark.parametrize(("text", "seconds"), [("2", 2.0), ("0.5", 0.5), ("1.5s", 1.5)])
def test_a_timeout_may_be_a_fraction(text: str, seconds: float) -> None:
    assert _parse("/a", "--timeout", text).seconds("timeout", 1.0) == seconds


MANY_THEN_ONE = (Argument("SOURCE", "from", most=None), Argument("TARGET", "to"))
OPTIONAL = (Argument("PATH", "a path", least=0, most=None),)


@pytest.mark.parametrize(
    ("arguments", "line", "expected"),
    [
        (MANY_THEN_ONE, ["/a", "/b", "/c"], {"SOURCE": ["/a", "/b"], "TARGET": ["/c"]}),
        (MANY_THEN_ONE, ["/a", "/b"], {"SOURCE": ["/a"], "TARGET": ["/b"]}),
        (OPTIONAL, [], {}),
        (OPTIONAL, ["/a", "/b"], {"PATH": ["/a", "/b"]}),
    ],
)
def test_arguments_are_dealt_out(
    arguments: tuple[Argument, ...], line: list[str], expected: dict[str, list[str]]
) -> None:
    assert _parse(*line, arguments=arguments).values == expected


_WITH_VALUE = [
    (verb.name, name) for verb in every_verb() for one in verb.all_options() if one.value
    for name in one.names
]  # fmt: skip


@pytest.mark.parametrize(("verb", "name"), _WITH_VALUE)
def test_an_empty_value_is_not_that_none_was_given(verb: str, name: str) -> None:
    loaded = load_verb(verb)
    assert loaded is not None
    needed = [argument.name for argument in loaded.arguments for _ in range(argument.least)]
    option = next(one for one in loaded.all_options() if name in one.names)
    for given in ([name, ""], [f"{name}="]):
        if option.key in {"key-separator", "listener"}:  # no key; the first listener
            assert parse(loaded, [*given, *needed]).many(option.key) == ("",)
            continue
        ran = run([verb, *given, *needed])
        assert (ran.code, ran.out) == (2, "")
        assert f"error: {option.names[-1]} '': " in ran.err
        assert "was expected" in ran.err


@pytest.mark.parametrize("verb", ["ls", "tree", "mounts", "verify", "parent"])
def test_an_empty_path_is_not_that_none_was_given(verb: str) -> None:
    action = ["detach"] if verb == "parent" else []
    ran = run([verb, *action, ""])
    assert (ran.code, ran.out) == (2, "")
    assert "PATH '': a path was expected" in ran.err


def test_a_missing_second_argument_is_named() -> None:
    with pytest.raises(UsageError, match="TARGET is required: to"):
        _parse("/a", arguments=MANY_THEN_ONE)


def test_an_argument_may_have_choices() -> None:
    choosy = (Argument("SHELL", "which", choices=("bash", "zsh")),)
    assert _parse("zsh", arguments=choosy).one("SHELL") == "zsh"
    with pytest.raises(UsageError, match="SHELL 'csh': one of bash, zsh was expected"):
        _parse("csh", arguments=choosy)


def test_a_path_goes_past_an_optional_argument_with_choices() -> None:
    action = Argument("ACTION", "which", least=0, choices=("status", "skip"))
    arguments = (action, Argument("PATH", "a path", least=0))
    assert _parse("/la", arguments=arguments).values == {"PATH": ["/la"]}
    assert _parse("skip", "/la", arguments=arguments).values == {
        "ACTION": ["skip"],
        "PATH": ["/la"],
    }
    with pytest.raises(UsageError, match="ACTION 'la': one of status, skip was expected"):
        _parse("la", arguments=arguments)


def test_help_asks_for_nothing_else() -> None:
    assert _parse("--help").flag("help")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["ls", "-l", "/"], ([], "ls", ["-l", "/"])),
        (["--at", "h:1", "ls", "/"], (["--at", "h:1"], "ls", ["/"])),
        (["--at=h:1", "-v", "ls"], (["--at=h:1", "-v"], "ls", [])),
        (["--version"], (["--version"], "", [])),
        ([], ([], "", [])),
    ],
)
def test_options_may_stand_before_the_verb(
    arguments: list[str], expected: tuple[list[str], str, list[str]]
) -> None:
    assert split_verb(arguments) == expected


def test_an_unknown_option_before_the_verb_is_named() -> None:
    with pytest.raises(UsageError, match="unknown option -o before the verb; those of a verb"):
        split_verb(["-o", "json", "ls"])
    with pytest.raises(UsageError, match=r"unknown option --att; did you mean --at\?"):
        split_verb(["--att", "h:1", "ls"])


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("server --mont /la", "unknown option --mont; did you mean --mount?"),
        ("server extra", "'extra' is an unexpected argument"),
        ("server --log-level LOUD", "one of DEBUG, INFO, WARNING, ERROR was expected"),
        ("restore --form x", "unknown option --form; did you mean --from?"),
        ("migrate sqlite:///a", "TO is required: the store to move it to"),
        ("--at h:1 migrate a b", "unknown option --at"),
    ],
)
def test_a_verb_that_another_program_runs_is_checked_like_others(line: str, complaint: str) -> None:
    ran = run(line.split())
    assert ran.code == 2
    assert ran.err.startswith("error: ")
    assert complaint in ran.err
    verb = next(part for part in line.split() if part in ("server", "restore", "migrate"))
    assert ran.err.endswith(f"  kdir {verb} --help explains it\n")


def test_what_another_program_is_given_is_as_it_was_written() -> None:
    parts = ["--config", "a.toml", "--config=b.toml", "--check"]
    verb = load_verb("server")
    assert verb is not None
    assert parse(verb, parts).many(RAW_ARGUMENTS) == tuple(parts)


def test_its_help_has_its_own_arguments() -> None:
    assert "usage: kdir migrate FROM TO [OPTION…]" in run(["migrate", "--help"]).out
    assert "usage: kdir server [OPTION…]" in run(["server", "--help"]).out


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("", "--from FILE, the backup, is needed; or --from-log, or --new-life"),
        ("--from= --store x", "--from FILE, the backup, is needed; or --from-log, or --new-life"),
        ("--new-life", "--store ADDRESS, the store to fill, is needed; or --config FILE"),
        ("--from x --new-life", "argument --new-life: not allowed with argument --from"),
    ],
)
def test_an_error_of_the_other_program_looks_like_all(
    line: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        offline_main("restore", line.split())
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {complaint}")
    assert error.endswith("  kdir restore --help explains it\n")


def test_a_verb_of_another_tool_leads_to_the_one_of_kdir() -> None:
    assert "did you mean: kdir stat\n" in run(["describe", "/la"]).err


@pytest.mark.parametrize("line", [["-o", "wide"], ["-owide"], ["--output=wide"]])
def test_every_table_can_be_wide(line: list[str]) -> None:
    assert _parse("/a", *line).one("output") == "wide"


@pytest.mark.parametrize("line", [["-o", "jsonpath={.a=}"], ["-ojsonpath={.a=}"]])
def test_a_template_that_cannot_be_read_is_a_usage_error(line: list[str]) -> None:
    with pytest.raises(UsageError, match="at character 4"):
        _parse("/a", *line)


def test_a_verb_without_json_takes_no_template() -> None:
    with pytest.raises(UsageError, match="one of name was expected"):
        _parse("/a", "-o", "jsonpath={.a}", formats=("name",))
