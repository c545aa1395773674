"""The demo's story: its steps in order, and what each command must print.

`report` is the table of contents. Every command line is run by a shell as it is shown.
"""

from __future__ import annotations

import re
import time

from deploy.demo.federation import CLUSTERS, Federation, variable
from deploy.demo.shell import Shell

__all__ = ["report"]

_CLICKS = "/la/tracking/search/clicks"
_NEW = "/la/tracking/search/experiments/clicks"
_NY_CLICKS = "/ny/tracking/search/clicks"
_PLAIN = "python -m deploy.demo.plain_client"


def report(demo: Federation, shell: Shell, began: float) -> None:
    """Starts all servers and runs all steps; leaves the federation running.

    Raises:
        StepFailed: a command did not print what it must.
        StartFailed, ServerUnavailable: a server is missing, or did not start.
    """
    _brokers(demo, shell)
    _directories(demo, shell)
    _mount(shell)
    _write(shell)
    _look(shell)
    _sites(shell)
    _same_answer(shell)
    _other_ways(shell)
    _messages(shell)
    _outage(demo, shell)
    _healing(demo, shell)
    _index(shell)
    _stale_index(demo, shell)
    _farewell(demo, shell, began)


def _brokers(demo: Federation, shell: Shell) -> None:
    shell.step(
        "Three Kafka clusters, as they were before kdir came",
        """Three real brokers, each a cluster of its own, with topics under flat names. The same
        name in two clusters is two topics, and nothing says so. (plain_client is a plain Kafka
        client that takes kcat's options; it knows nothing of kdir.)""",
    )
    demo.start_brokers()
    shell.export(demo.variables())
    shell.run(
        f"{_PLAIN} -L -b $LA_TRACKING_KAFKA",
        shows=[r"search\.clicks, partitions: 6", r"orders\.dlq"],
    )
    shell.run(f"{_PLAIN} -L -b $LA_METRICS_KAFKA", shows=[r"sys\.cpu"])
    shell.run(f"{_PLAIN} -L -b $NY_TRACKING_KAFKA", shows=[r"search\.clicks, partitions: 4"])


def _directories(demo: Federation, shell: Shell) -> None:
    shell.step(
        "Six directory servers, one a cluster",
        """Each is a process with a store of its own, and knows its mount point, its parent and
        its Kafka, if it has one: /, /la and /ny have none.""",
    )
    demo.start_directories()
    shell.export(demo.variables())
    demo.write_environment()
    shell.run("cat $DEMO/directories/la-tracking/server.toml", shows=['mount = "/la/tracking"'])
    shell.text("\nEach is served here, and the demo's shell knows its address by a variable:\n")
    for name, mount in CLUSTERS.items():
        shell.text(f"  {mount:13} ${variable(name):12} {demo.directories[name].address}")


def _mount(shell: Shell) -> None:
    shell.step(
        "Mounting: both sides must agree",
        """A child asks its parent to be linked; the parent's operator mounts it. Until then it
        waits, and the parent's list says so.""",
    )
    shell.eventually("kdir --at $ROOT mounts", shows=[r"kdir mount /la ", r"kdir mount /ny "])
    shell.run("kdir --at $ROOT mount /la --child la")
    shell.run("kdir --at $ROOT mount /ny --child ny")
    for name, mount in CLUSTERS.items():
        parent, _, rest = name.partition("-")
        if rest:
            shell.eventually(f"kdir --at ${variable(parent)} mount {mount} --child {name}")
    shell.eventually(
        "kdir --at $ROOT mounts",
        shows=[rf"^{mount} .*linked" for mount in CLUSTERS.values() if mount != "/"],
        lacks=["pending"],
    )


def _write(shell: Shell) -> None:
    shell.step(
        "Directories and topics by path",
        """KDIR_AT names the servers to begin with, here those of the site la; they refer to others.
        Only la-tracking's config lets kdir make topics in Kafka; the others are observed.""",
    )
    shell.run("echo $KDIR_AT")
    shell.run("kdir mkdir /la/tracking/search/experiments")
    shell.run(f"kdir create {_NEW} --partitions 3", shows=["search.experiments.clicks"])
    shell.run(
        f"{_PLAIN} -L -b $LA_TRACKING_KAFKA", shows=[r"search\.experiments\.clicks, partitions: 3"]
    )
    shell.run("kdir create /la/trakcing/x", shows=["INVALID_NAMESPACE", "nearest"], code=1)
    shell.run("kdir create /la/metrics/sys/gpu", shows=["ABOVE_CEILING"], code=5)
    shell.run("kdir --at $ROOT ln --union /la/tracking /ny/tracking /tracking")


def _look(shell: Shell) -> None:
    shell.step("One tree")
    shell.run(
        "kdir tree /",
        shows=[r"tracking/ .*la-tracking", r"metrics/ .*la-metrics", r"tracking/ .*link"],
    )
    shell.run(
        "kdir ls -l /la/tracking", shows=[r"^dir +search/", r"^topic +orders ", r"^dir +orders/"]
    )
    shell.run("kdir ls -l /la/tracking/search", shows=[r"clicks +6 ", r"experiments/"])


def _sites(shell: Shell) -> None:
    shell.step(
        "A site's own view",
        """/tracking is a site link: la's directories take it for /la/tracking, ny's for
        /ny/tracking. Elsewhere it is an ordinary link, the union of both.""",
    )
    shell.run(
        "kdir --at $LA ls /tracking",
        shows=["^ads/ +/la/tracking/ads$", "^orders +/la/tracking/orders$"],
        lacks=["/ny/"],
    )
    shell.run(
        "kdir --at $NY ls /tracking",
        shows=["^checkout/ +/ny/tracking/checkout$", "^search/ +/ny/tracking/search$"],
        lacks=["/la/"],
    )
    shell.run(
        "kdir --at $ROOT ls /tracking",
        shows=["^ads/ +/la/tracking/ads$", "^checkout/ +/ny/tracking/checkout$"],
    )
    shell.run(
        "kdir --at $NY resolve /tracking/search/clicks", shows=["^/ny/tracking/search/clicks"]
    )


def _same_answer(shell: Shell) -> None:
    shell.step(
        "One path, six starting points, one answer",
        "Any directory will do: it answers, or refers to who can, down, up or straight there.",
    )
    shell.run(f"kdir resolve {_CLICKS}", shows=["la-tracking", r"search\.clicks +6 partitions"])
    answers = {
        shell.run(
            f"kdir --at ${variable(name)} resolve -o kcat {_CLICKS}",
            shows=[r"^-b 127\.0\.0\.1:\d+ -t search\.clicks$"],
        )
        for name in CLUSTERS
    }
    shell.expect(len(answers) == 1, f"the answers differ: {answers}")


def _other_ways(shell: Shell) -> None:
    shell.step("The way back, and the way there")
    shell.run("kdir which ny-tracking checkout.payments", shows=["^/ny/tracking/checkout/payments"])
    shell.run(f"kdir --at $LA_METRICS trace {_NY_CLICKS}", shows=["authoritative", "ny-tracking"])
    shell.run("kdir resolve /la/tracking/search/klicks", shows=["ABSENT"], code=1)


def _messages(shell: Shell) -> None:
    shell.step(
        "Messages, by a plain Kafka client",
        "What resolve prints is all that any Kafka client needs; kdir is not in the data's way.",
    )
    shell.run(
        f"printf 'hello\\nfrom the demo\\n' | {_PLAIN} -P $(kdir resolve -o kcat {_NEW})",
        shows=[r"delivered to search\.experiments\.clicks"],
    )
    shell.run(
        f"{_PLAIN} -C $(kdir --at $NY resolve -o kcat {_NEW})",
        shows=["^hello$", "^from the demo$"],
    )


def _outage(demo: Federation, shell: Shell) -> None:
    shell.step(
        "Head office goes down",
        """/ and /la are killed (SIGKILL). The directory of la-tracking goes on by itself, and says
        that no parent has confirmed its mount lately.""",
    )
    demo.kill("root", "la")
    shell.run(f"kdir resolve -o kcat {_CLICKS}", shows=[r"-t search\.clicks$"])
    shell.run("kdir ls /tracking", shows=["^ads/ ", "^orders "])
    shell.say(
        """Even /ny/tracking resolves: each cluster got the table of all mounts from its parent,
        keeps it in its own store, and refers straight there."""
    )
    shell.run(f"kdir --at $LA_TRACKING trace {_NY_CLICKS}", shows=["direct", "authoritative"])
    shell.say(
        """Now /ny and /ny/tracking are killed too: /, /la, /ny and /ny/tracking are down, nothing
        that leads there is up. The answer is "unreachable", not "absent", and exit code 3; la's own
        paths go on."""
    )
    demo.kill("ny", "ny-tracking")
    shell.run(f"kdir --at $LA_TRACKING resolve {_NY_CLICKS}", shows=["UNREACHABLE"], code=3)
    shell.run(f"kdir --at $LA_TRACKING resolve -o kcat {_CLICKS}", shows=[r"-t search\.clicks$"])


def _healing(demo: Federation, shell: Shell) -> None:
    shell.step(
        "They come back, and nobody has to do anything",
        "The four servers are started again on their stores: children find parents by themselves.",
    )
    demo.restart("root", "la", "ny", "ny-tracking")
    shell.eventually(
        "kdir --at $ROOT mounts",
        shows=[rf"^{mount} .*linked" for mount in CLUSTERS.values() if mount != "/"],
    )
    answers = {
        shell.eventually(f"kdir --at ${variable(name)} resolve -o kcat {_NY_CLICKS}")
        for name in CLUSTERS
    }
    shell.expect(len(answers) == 1, f"the answers differ: {answers}")


def _index(shell: Shell) -> None:
    shell.step(
        "One index of every topic of every cluster",
        "A Spark job reads all clusters in parallel into a Delta table; finding needs no Spark.",
    )
    shell.run("kdir index build", shows=["la-tracking", "la-metrics", "ny-tracking"])
    shell.run("kdir find click", shows=[re.escape(_CLICKS), re.escape(_NY_CLICKS), re.escape(_NEW)])


def _stale_index(demo: Federation, shell: Shell) -> None:
    shell.step(
        "The index again, while a cluster is away",
        "ny-tracking's directory is killed. Its rows stay, marked stale; the others are fresh.",
    )
    demo.kill("ny-tracking")
    shell.run("kdir create /la/tracking/ads/clickouts", shows=["ads.clickouts"])
    shell.run("kdir index build", shows=["ny-tracking.*stale"], code=3)
    shell.run(
        "kdir find click",
        shows=[rf"{_NY_CLICKS}.*stale", "/la/tracking/ads/clickouts"],
        lacks=[rf"{_CLICKS} .*stale"],
    )
    shell.say("It is started again, and is back:")
    demo.restart("ny-tracking")
    shell.eventually(f"kdir --at $ROOT resolve -o kcat {_NY_CLICKS}")


def _farewell(demo: Federation, shell: Shell, began: float) -> None:
    shell.summary(
        "seen",
        [
            "3 real Kafka brokers and 6 directory servers, each a process of its own, as one tree",
            "topics that were there before kdir, adopted under their own names, split at the dot",
            "clusters mounted where both sides agree; links made by themselves",
            "directories and topics made by path; refused where kdir may only observe",
            "/tracking: one name, another answer at each site",
            "one path, six starting points, the same answer",
            "messages through a resolved topic, by a plain Kafka client",
            "/ and /la killed: la's paths resolve on; /ny unreachable once all is down",
            "all of it healed without a hand; the index of all topics, and found in it",
            "the index with a cluster away: its rows kept, marked stale",
        ],
    )
    shell.say(f"It took {time.monotonic() - began:.0f} seconds. The federation runs on. To play:")
    shell.text(
        f"""
  . {demo.home / "env"}
  kdir tree /
  kdir ls -l /la/tracking
  kdir --at $NY resolve /tracking/search/clicks
  kdir mkdir /la/tracking/mine; kdir create /la/tracking/mine/first --partitions 2
  kdir find click

More on this very tree: docs/tutorial.md, and for policies docs/access-and-policies.md
All of the above is in {demo.home / "transcript.txt"}. To end it: make demo-down"""
    )
