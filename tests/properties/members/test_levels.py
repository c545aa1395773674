"""Whatever order servers come, go and die in: none that lives is behind the finalized level."""

import tempfile
from contextlib import ExitStack
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from directory.server.membership import ServerTooOld
from resolver.errors import InvalidArgument, LevelNotFinalized
from tests.support.membership import One

NAMES = ("a", "b", "c")
STEPS = st.one_of(
    st.tuples(st.just("come"), st.sampled_from(NAMES), st.sampled_from((1, 2))),
    st.tuples(st.just("register"), st.sampled_from(NAMES), st.just(0)),
    st.tuples(st.just("leave"), st.sampled_from(NAMES), st.just(0)),
    st.tuples(st.just("die"), st.sampled_from(NAMES), st.just(0)),
    st.tuples(st.just("finalize"), st.sampled_from(NAMES), st.sampled_from((0, 2))),
)


class Model:
    """Model of the servers: which live, which are registered, which level is finalized."""

    def __init__(self) -> None:
        self.living: dict[str, int] = {}
        self.registered: dict[str, int] = {}
        self.finalized = 0  # nobody has made the store yet

    def may_come(self, level: int) -> bool:
        return level >= self.finalized

    def comes(self, name: str, level: int) -> None:
        self.living[name] = level
        self.finalized = self.finalized or level

    def goes(self, name: str) -> None:
        self.living.pop(name)
        self.registered.pop(name, None)

    def supported(self, asked: str) -> int:
        return min({**self.registered, asked: self.living[asked]}.values())


@settings(max_examples=15)
@given(st.lists(STEPS, max_size=14))
def test_no_live_server_is_behind_the_finalized_level(
    steps: list[tuple[str, str, int]],
) -> None:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as cleanup:
        model = Model()
        servers: dict[str, One] = {}
        for step, name, level in steps:
            if step == "come":
                if name not in servers:
                    come(model, servers, name, level, Path(folder), cleanup)
            elif name in servers:
                take(model, servers, step, name, level)
            behind = {one for one, at in model.registered.items() if at < model.finalized}
            assert not behind
        for server in servers.values():
            server.see()
            assert server.members.finalized == model.finalized
            server.store.remove_expired()
            known = {one.server: one.feature_level for one in server.members.live()}
            assert known.items() >= model.registered.items()


def come(
    model: Model, servers: dict[str, One], name: str, level: int, folder: Path, cleanup: ExitStack
) -> None:
    try:
        servers[name] = One(folder / "store.db", name, level, cleanup)
    except ServerTooOld:
        assert not model.may_come(level)
    else:
        assert model.may_come(level)
        model.comes(name, level)


def take(model: Model, servers: dict[str, One], step: str, name: str, level: int) -> None:
    server = servers[name]
    match step:
        case "register":
            try:
                server.join()
            except ServerTooOld:
                assert model.living[name] < model.finalized
            else:
                assert model.living[name] >= model.finalized
                model.registered[name] = model.living[name]
        case "leave":
            server.members.stop()
            del servers[name]
            model.goes(name)
        case "die":
            if name in model.registered:
                server.die()
                del servers[name]
                model.goes(name)
        case _:
            supported = model.supported(name)
            wanted = level or max(model.finalized, supported)
            try:
                done = server.members.finalize(level)
            except InvalidArgument:  # its own release does not know that level
                assert wanted > model.living[name]
            except LevelNotFinalized:
                assert model.living[name] >= wanted > supported
            else:
                assert wanted <= supported or wanted == model.finalized
                assert done.level == wanted
                model.finalized = wanted
