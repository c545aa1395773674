"""Contexts: reading, choosing and editing the user's named sets of servers."""

import os
from pathlib import Path

import pytest

from resolver import user_config
from resolver.cli.output import Output
from resolver.cli.parser import UsageError, parse
from resolver.cli.produce import own_settings
from resolver.cli.registry import load_verb
from resolver.cli.session import Session
from resolver.errors import InvalidArgument, Unavailable
from resolver.user_config import Context, LoginSettings
from tests.support.command_line import run


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("KDIR_AT", raising=False)
    (tmp_path / "kdir").mkdir()
    return tmp_path / "kdir" / "config.toml"


WRITTEN = """\
# mine
current = "dev"

[contexts.dev]   # the one to play with
servers = ["127.0.0.1:1"]

[contexts.prod]
servers = ["la-1:7420", "[::1]:7420"]
protected = true # careful
"""


def _session(*arguments: str, verb: str = "ls", **environ: str) -> Session:
    found = load_verb(verb)
    assert found is not None
    return Session(parse(found, arguments), output=Output("json"), environ=environ)


def test_without_a_file_there_are_none(config: Path) -> None:
    assert user_config.load_contexts() == user_config.NO_CONTEXTS
    assert _session().servers() == ("127.0.0.1:7420",)


@pytest.mark.parametrize(
    "line",
    [
        ["ls", "/la"],
        ["apply", "FILE", "--at", "127.0.0.1:1"],
        ["adopt", "/la", "--map", "FILE", "--at", "127.0.0.1:1"],
        ["ls", "/la", "--at", "127.0.0.1:1"],
    ],
    ids=["config", "documents", "rules", "token"],
)
def test_a_file_that_an_error_of_the_machine_keeps_from_being_read_is_no_usage_error(
    config: Path, line: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    unreadable = config if "--at" not in line else config.with_name("unreadable")
    if line[1:] == ["/la", "--at", "127.0.0.1:1"]:
        monkeypatch.setenv("KDIR_TOKEN_FILE", str(unreadable))
    arguments = [part.replace("FILE", str(unreadable)) for part in line]
    unreadable.symlink_to("/proc/self/mem")  # reading it is an EIO
    failed = run(arguments)
    assert failed.code == 3
    assert f"{unreadable}: cannot be read: Input/output error" in failed.err
    assert "doctor" not in failed.err, "no server was asked"
    unreadable.unlink()
    unreadable.mkdir()
    wrong = run(arguments)
    assert wrong.code == 2
    assert f"{unreadable}: cannot be read: Is a directory" in wrong.err


def test_properties_that_an_error_of_the_machine_keeps_from_being_read_are_no_usage_error(
    tmp_path: Path,
) -> None:
    found = load_verb("produce")
    assert found is not None
    for file, error in (
        ("/proc/self/mem", Unavailable),
        (str(tmp_path), InvalidArgument),
        (str(tmp_path / "no"), InvalidArgument),
    ):
        with pytest.raises(error, match=f"{file}: cannot be read: "):
            own_settings(parse(found, ["/la/t", "--properties", file]))


def test_they_are_read(config: Path) -> None:
    config.write_text(WRITTEN)
    found = user_config.load_contexts()
    assert found.current == "dev"
    assert found.get("prod") == Context("prod", ("la-1:7420", "[::1]:7420"), protected=True)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("current = 'x'", "there is no such context"),
        ("[contexts.a]\nserver = ['h:1']", "unknown key 'server'; did you mean 'servers'?"),
        ("contxts = 1", "did you mean 'contexts'?"),
        ("[contexts.a]", "a list of HOST:PORT"),
        ("[contexts.a]\nservers = ['h']", "contexts.a.servers: endpoint 'h': no port"),
        ("[contexts.a]\nservers = ['h:0']", "endpoint 'h:0': port outside"),
        ("[contexts.a]\nservers = ['h:99999']", "port outside 1 to 65535"),
        ("[contexts.a]\nservers = ['unix:/x']", "endpoint 'unix:/x'"),
        ("[contexts.a]\nservers = ['h:1']\nprotected = 'no'", "true or false"),
        ("][", "is not TOML"),
        (f"a = {'[' * 5_000}", "is not TOML"),
        (f"a = 1{'0' * 5_000}", "is not TOML"),
        (f"[contexts.a]\nservers = [0x{'f' * 4_000}]", "contexts.a.servers"),
        ("contexts = 3", "tables"),
    ],
)
def test_a_wrong_file_is_one_sentence(config: Path, text: str, complaint: str) -> None:
    config.write_text(text)
    with pytest.raises(InvalidArgument) as caught:
        user_config.load_contexts()
    assert complaint in caught.value.message
    assert "\n" not in caught.value.message


def test_who_is_asked(config: Path) -> None:
    config.write_text(WRITTEN)
    assert _session().servers() == ("127.0.0.1:1",)
    assert _session(KDIR_AT="h:2, g:3").servers() == ("h:2", "g:3")
    assert _session("--context", "prod", KDIR_AT="h:2").servers() == ("la-1:7420", "[::1]:7420")
    assert _session("--at", "z:9", "--context", "prod", KDIR_AT="h:2").servers() == ("z:9",)
    with pytest.raises(InvalidArgument, match="known: dev, prod"):
        _session("--context", "prd").servers()
    with pytest.raises(InvalidArgument, match="--at"):
        _session("--at", "nowhere").servers()


def test_a_protected_context_wants_its_name_for_each_write(config: Path) -> None:
    config.write_text(WRITTEN.replace('"dev"', '"prod"'))
    with pytest.raises(UsageError, match=r"protected: .* kdir mkdir --context prod"):
        _session("/a", verb="mkdir").allow_write("mkdir")
    _session("/a", "--context", "prod", verb="mkdir").allow_write("mkdir")
    _session("/a", "--context", "dev", verb="mkdir").allow_write("mkdir")


def test_naming_its_server_does_not_go_around_the_protection(config: Path) -> None:
    config.write_text(WRITTEN)
    with pytest.raises(UsageError, match="protected"):
        _session("/a", "--at", "la-1:7420", verb="mkdir").allow_write("mkdir")
    with pytest.raises(UsageError, match="protected"):
        _session("/a", verb="mkdir", KDIR_AT="h:1,la-1:7420").allow_write("mkdir")
    _session("/a", "--at", "la-1:7420", "--context", "prod", verb="mkdir").allow_write("mkdir")


def test_an_edit_keeps_comments_and_other_contexts(config: Path) -> None:
    config.write_text(WRITTEN)
    user_config.write_context(Context("dev", ("a:1", "b:2"), protected=True))
    user_config.write_current("prod")
    user_config.write_context(Context("new", ("c:3",)))
    text = config.read_text()
    for comment in ("# mine", "# the one to play with", "# careful"):
        assert comment in text
    found = user_config.load_contexts()
    assert found.current == "prod"
    assert found.by_name == {
        "dev": Context("dev", ("a:1", "b:2"), protected=True),
        "prod": Context("prod", ("la-1:7420", "[::1]:7420"), protected=True),
        "new": Context("new", ("c:3",)),
    }


@pytest.mark.parametrize(
    ("line", "edited"),
    [
        ('ca = "my #dir/ca.pem"', 'ca = "/new.pem"'),
        ("ca = 'my #dir/ca.pem'  # mine", 'ca = "/new.pem"  # mine'),
        ('ca = "a\\" #b" # "b" #c', 'ca = "/new.pem"  # "b" #c'),
        ('ca = "ca.pem"', 'ca = "/new.pem"'),
    ],
)
def test_a_hash_in_a_value_begins_no_comment(config: Path, line: str, edited: str) -> None:
    config.write_text(f'[contexts."dev"]\nservers = ["a:1"]\nprotected = false\n{line}\n')
    login = user_config.load_contexts().get("dev").login._replace(ca="/new.pem")
    user_config.write_context(Context("dev", ("a:1",), login=login))
    assert edited in config.read_text().splitlines()


@pytest.mark.parametrize(
    "text",
    [
        '[contexts]\ndev = { servers = ["a:1"] }\n',
        'contexts.dev.servers = ["a:1"]\n',
        '[contexts.dev]\nservers = [\n  "a:1",\n]\n',
        '[contexts."dev"]\nservers = ["a:1"]\n',
        "",
    ],
)
def test_an_edit_of_any_toml_gives_what_was_wanted(config: Path, text: str) -> None:
    config.write_text(text)
    user_config.write_context(Context("dev", ("b:2",), protected=True))
    user_config.write_current("dev")
    found = user_config.load_contexts()
    assert found.current == "dev"
    assert found.by_name == {"dev": Context("dev", ("b:2",), protected=True)}


def test_the_folder_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "not" / "yet"))
    user_config.write_context(Context("dev", ("b:2",)))
    assert user_config.load_contexts().by_name["dev"].servers == ("b:2",)


def test_a_file_kept_elsewhere_stays_linked(config: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept.toml"
    kept.write_text(WRITTEN)
    config.symlink_to(kept)
    user_config.write_current("prod")
    assert config.is_symlink()
    assert 'current = "prod"' in kept.read_text()


@pytest.mark.parametrize("name", ["", "a b", "a.b", "é", "x" * 65, 'a"b'])
def test_a_context_has_a_plain_name(config: Path, name: str) -> None:
    with pytest.raises(InvalidArgument, match="context name"):
        user_config.write_context(Context(name, ("a:1",)))
    assert not config.exists()


def test_a_relative_config_home_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    monkeypatch.setenv("HOME", "/nowhere")
    assert user_config.config_file() == "/nowhere/.config/kdir/config.toml"


# -- selecting none, and removing ---------------------------------------------------------------


def test_none_is_selected(config: Path) -> None:
    config.write_text(WRITTEN)
    ran = run(["context", "unset"])
    assert (ran.code, ran.err) == (0, "no context selected; using 127.0.0.1:7420\n")
    assert config.read_text() == WRITTEN.replace('current = "dev"\n', "")
    assert run(["context", "unset"]).code == 0
    assert user_config.load_contexts().current == ""


@pytest.mark.parametrize(
    "text",
    [
        WRITTEN,
        'current = "dev"\n[contexts]\ndev = { servers = ["a:1"] }\nprod = { servers = ["b:1"] }\n',
        'current = "dev"\ncontexts.dev.servers = ["a:1"]\ncontexts.prod.servers = ["b:1"]\n',
    ],
)
def test_a_context_is_removed_with_y(config: Path, text: str) -> None:
    config.write_text(text)
    refused = run(["context", "rm", "dev"])
    assert refused.code == 2
    assert "to remove context dev" in refused.err
    assert "needs --yes" in refused.err
    assert config.read_text() == text
    assert run(["context", "rm", "dev", "-y"]).code == 0
    found = user_config.load_contexts()
    assert (found.current, list(found.by_name)) == ("", ["prod"])
    assert run(["context", "rm", "dev", "-y"]).code == 2


def test_a_removal_keeps_comments_and_the_current_one(config: Path) -> None:
    config.write_text(WRITTEN)
    assert run(["context", "rm", "prod", "-y"]).err == "removed context prod\n"
    assert config.read_text() == WRITTEN.partition("[contexts.prod]")[0]


def test_use_reports_that_kdir_at_overrides_it(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text(WRITTEN)
    assert run(["context", "use", "prod"]).err.startswith("now using context prod")
    monkeypatch.setenv("KDIR_AT", "h:2")
    ran = run(["context", "use", "prod"])
    assert ran.code == 0
    assert "now using" not in ran.err
    assert "not in use: KDIR_AT=h:2 overrides it" in ran.err
    assert "--context prod" in ran.err
    listed = run(["context"])
    assert "context prod is overridden; using h:2" in listed.err
    assert "no context selected" not in listed.err


# -- who the user is -----------------------------------------------------------------------------

LOGINS = """\
current = "prod"

[contexts.prod]
servers = ["la-1:7420", "la-2:7420"]
ca = "prod/ca.pem"   # beside this file
cert = "~/alice.pem"
key = "/keys/alice.key"

[contexts.dev]
servers = ["dev:7420"]
ca = "/dev/ca.pem"
token_file = "/run/token"
"""


def test_a_context_says_who_the_user_is(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/users/al")
    config.write_text(LOGINS)
    prod = LoginSettings(
        str(config.parent / "prod/ca.pem"), "/users/al/alice.pem", "/keys/alice.key"
    )
    dev = LoginSettings("/dev/ca.pem", token_file="/run/token")
    assert _session().login() == prod
    assert _session("--context", "dev").login() == dev
    # Servers that are named are those of a context, or nobody's, whatever is current.
    assert _session("--at", "dev:7420").login() == dev
    assert _session(KDIR_AT="x:1,la-2:7420").login() == prod
    assert _session("--at", "elsewhere:7420").login() == LoginSettings()
    assert _session("--at", "elsewhere:7420", "--context", "prod").login() == prod
    # The environment goes before, and a token of it before every other.
    assert _session("--context", "dev", KDIR_TOKEN="t").login() == LoginSettings(
        "/dev/ca.pem", token="t"
    )
    assert _session("--at", "x:1", KDIR_CA="/c", KDIR_TOKEN_FILE="/t").login() == LoginSettings(
        "/c", token_file="/t"
    )


def test_no_ones_credentials_are_taken_where_several_contexts_have_a_server(config: Path) -> None:
    both = "[contexts.{}]\nservers = ['la-1:7420']\ntoken_file = '/{}.token'\n"
    config.write_text(both.format("al", "al") + both.format("bo", "bo"))
    for session in (_session("--at", "la-1:7420"), _session(KDIR_AT="la-1:7420")):
        with pytest.raises(InvalidArgument, match=r"contexts al, bo have .* meant: --context al"):
            session.login()
    assert _session("--context", "bo").login().token_file == "/bo.token"
    config.write_text(both.format("al", "al") + both.format("bo", "al"))
    assert _session("--at", "la-1:7420").login().token_file == "/al.token"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('cert = "a"', "cert and key go together"),
        ("ca = 1", "contexts.a.ca: a text was expected"),
        ('token = "x"\ntoken_file = "y"', "not both"),
        ('tokn = "x"', "did you mean 'token'?"),
        ('token = "secret"', "others may read it: chmod 600"),
    ],
)
def test_a_login_that_cannot_be_is_refused(config: Path, text: str, complaint: str) -> None:
    config.write_text(f'[contexts.a]\nservers = ["h:1"]\n{text}\n')
    config.chmod(0o644)
    with pytest.raises(InvalidArgument) as refused:
        user_config.load_contexts()
    assert complaint in refused.value.message
    assert "secret" not in refused.value.message


def test_a_token_in_a_file_of_one_s_own_is_taken_and_not_shown(config: Path) -> None:
    config.write_text('[contexts.a]\nservers = ["h:1"]\ntoken = "secret"\n')
    config.chmod(0o600)
    context = user_config.load_contexts().get("a")
    assert context.login.token == "secret"
    assert "secret" not in repr(context)
    user_config.write_current("a")
    assert user_config.load_contexts().get("a") == context
    assert config.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("start", ["", LOGINS, 'contexts.dev.servers = ["a:1"]\n'])
def test_an_edit_writes_who_the_user_is(config: Path, start: str) -> None:
    config.write_text(start)
    wanted = Context("dev", ("b:2",), login=LoginSettings('/a "b"/ca.pem', "/cert", "/key"))
    user_config.write_context(wanted)
    assert user_config.load_contexts().get("dev") == wanted


@pytest.mark.parametrize("start", ["", "contexts = {la = {servers = ['la:1']}}\n"])
def test_a_context_says_which_other_servers_may_be_asked(config: Path, start: str) -> None:
    config.write_text(start)
    user_config.write_context(Context("la", ("la:1",), allow=("10.0.0.0/8", "la.example")))
    assert user_config.load_contexts().get("la").allow == ("10.0.0.0/8", "la.example")
    user_config.write_context(Context("ny", ("ny:1",)))
    assert user_config.load_contexts().get("ny").allow is None
    arguments = "--context", "la"
    assert (
        _session(*arguments)
        .allow.why_not_allowed("11.0.0.1:7420")
        .endswith("(10.0.0.0/8, la.example)")
    )
    assert _session(*arguments).allow.why_not_allowed("x.la.example:7420") == ""
    # By its servers too, and the environment goes before.
    assert _session("--at", "la:1").allowed() == ("10.0.0.0/8", "la.example")
    assert _session(*arguments, KDIR_ALLOW="ny.example").allowed() == ("ny.example",)
    assert _session("--context", "ny").allowed() is None


@pytest.mark.parametrize("allow", [(), ("10.0.0.0/8", "la.example")])
def test_the_index_and_spark_get_the_allow_list(
    config: Path, allow: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KDIR_ALLOW", "")
    user_config.write_context(Context("la", ("la:1",), allow=allow))
    _session("--context", "la").export_login()
    assert user_config.environment_allow(os.environ) == allow


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ('"10.0.0.0/8"', "allow: a list of networks and domains was expected"),
        ("[1]", "allow: a list of networks and domains was expected"),
        ('["10.0.0.1/8"]', "allow: found '10.0.0.1/8', since host bits are set"),
        ('["*.x"]', "expected a network such as 10.0.0.0/8 or a domain such as example.com"),
    ],
)
def test_an_allow_list_that_is_none_is_refused(config: Path, value: str, complaint: str) -> None:
    config.write_text(f"[contexts.la]\nservers = ['la:1']\nallow = {value}\n")
    with pytest.raises(InvalidArgument) as refused:
        user_config.load_contexts()
    assert complaint in refused.value.message
    assert "contexts.la" in refused.value.message


@pytest.mark.parametrize("ca", ["/x/\U0001f600/ca.pem", "/x/\x7f/ca", '/x/\x85\u2028é\n"\\/ca'])
def test_a_file_name_of_any_characters_is_read_back(config: Path, ca: str) -> None:
    login = LoginSettings(ca=ca)
    user_config.write_context(Context("dev", ("a:1",)))
    user_config.write_context(Context("prod", ("b:1",), login=login))
    config.write_text(config.read_text("utf-8") + "# a comment\n", "utf-8")
    user_config.write_context(Context("ny", ("ny:1",)))
    read = user_config.load_contexts()
    assert read.get("prod").login == login
    assert set(read.by_name) == {"dev", "prod", "ny"}
    assert "# a comment" in config.read_text("utf-8")


def test_a_file_name_that_is_not_utf8_is_refused_and_leaves_the_contexts(config: Path) -> None:
    config.write_text("")
    user_config.write_context(Context("dev", ("a:1",)))
    before = user_config.load_contexts()
    login = LoginSettings(ca="/home/\udcff/ca.pem")
    with pytest.raises(InvalidArgument, match="context prod: ca: is not UTF-8"):
        user_config.write_context(Context("prod", ("b:1",), login=login))
    assert user_config.load_contexts() == before
