"""A plain Kafka client with kcat's options: lists, produces and consumes, without kdir.

It shows that what `kdir resolve -o kcat` prints is all that any Kafka client needs. Where kcat is
installed, it does the same: `kcat -P -b HOST:PORT -t TOPIC`.
"""

import argparse
import sys
from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

_SECONDS = 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what the arguments name; returns 0, or raises SystemExit or KafkaException."""
    parser = argparse.ArgumentParser(prog="plain_client", description=__doc__)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("-L", action="store_true", help="list the topics")
    mode.add_argument("-P", action="store_true", help="produce each line of standard input")
    mode.add_argument("-C", action="store_true", help="print what is there now, then end")
    parser.add_argument("-b", required=True, metavar="HOST:PORT", help="brokers")
    parser.add_argument("-t", metavar="TOPIC", help="for -P and -C")
    options = parser.parse_args(arguments)
    if options.L:
        _list(options.b)
    elif not options.t:
        parser.error("-t TOPIC is missing")
    elif options.P:
        _produce(options.b, options.t, [line.rstrip("\n") for line in sys.stdin])
    else:
        _consume(options.b, options.t)
    return 0


def _list(bootstrap: str) -> None:
    metadata = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=_SECONDS)
    print(f"Kafka cluster {metadata.cluster_id}:")
    for name, topic in sorted(metadata.topics.items()):
        print(f"  {name}, partitions: {len(topic.partitions)}")


def _produce(bootstrap: str, topic: str, lines: Sequence[str]) -> None:
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(error)
        else:
            print(f"delivered to {message.topic()} [{message.partition()}] @ {message.offset()}")

    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    for line in lines:
        producer.produce(topic, line.encode(), on_delivery=delivered)
    if producer.flush(_SECONDS) or failed:
        raise SystemExit(f"not delivered: {failed or 'no answer in time'}")


def _consume(bootstrap: str, topic: str) -> None:
    """Reads each partition from its start to the end that it has now; joins no group."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "plain-client",
            "enable.auto.commit": False,
            "allow.auto.create.topics": False,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=_SECONDS).topics[topic].partitions
        left = 0
        start = []
        for number in partitions:
            low, high = consumer.get_watermark_offsets(
                TopicPartition(topic, number), timeout=_SECONDS
            )
            left += high - low
            start.append(TopicPartition(topic, number, low))
        consumer.assign(start)
        while left > 0:
            message = consumer.poll(_SECONDS)
            if message is None:
                raise SystemExit(f"{left} messages did not come in time")
            error = message.error()
            if error is not None:
                raise KafkaException(error)
            print((message.value() or b"").decode())
            left -= 1
    finally:
        consumer.close()


if __name__ == "__main__":
    sys.exit(main())
