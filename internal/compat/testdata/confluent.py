"""What a user of librdkafka does with a broker: client.py ADDR PART."""
import sys
import threading
import time

from confluent_kafka import Consumer, Producer, KafkaError, TopicPartition, OFFSET_BEGINNING
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, ResourceType

ADDR = sys.argv[1]
TIMEOUT = 30


def producer(**settings):
    conf = {"bootstrap.servers": ADDR, "message.timeout.ms": 20000}
    conf.update({k.replace("_", "."): v for k, v in settings.items()})
    return Producer(conf)


def consumer(group, **settings):
    conf = {"bootstrap.servers": ADDR, "group.id": group, "auto.offset.reset": "earliest",
            "enable.auto.commit": False, "session.timeout.ms": 6000}
    conf.update({k.replace("_", "."): v for k, v in settings.items()})
    return Consumer(conf)


def produce(p, topic, values, **kw):
    """Sends values and returns where each was stored."""
    reports = []

    def done(err, msg):
        assert err is None, f"{topic}: {err}"
        reports.append((msg.partition(), msg.offset()))

    for v in values:
        p.produce(topic, v, on_delivery=done, **kw)
        p.poll(0)
    left = p.flush(TIMEOUT)
    assert left == 0, f"{left} of {len(values)} messages not delivered to {topic}"
    return reports


def read(c, n):
    """Consumes until n messages are there."""
    got, deadline = [], time.monotonic() + TIMEOUT
    while len(got) < n:
        assert time.monotonic() < deadline, f"only {len(got)} of {n} messages"
        m = c.poll(0.2)
        if m is None:
            continue
        assert m.error() is None, m.error()
        got.append(m)
    return got


def codecs():
    for codec in ["none", "gzip", "snappy", "lz4", "zstd"]:
        topic = "py-" + codec
        p = producer(compression_type=codec, linger_ms=20)
        values = [f"{codec} line {i} ".encode() * 5 for i in range(5000)]
        where = produce(p, topic, values)
        assert sorted(o for _, o in where) == list(range(5000)), f"{codec}: offsets not dense"
        c = consumer("py-codecs", check_crcs=True)
        c.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        got = [m.value() for m in read(c, len(values))]
        assert got == values, f"{codec}: other values"
        c.close()


def idempotence():
    p = producer(enable_idempotence=True, compression_type="lz4", linger_ms=1)
    values = [str(i).encode() for i in range(20000)]
    where = produce(p, "py-idempotent", values, key=b"k", headers=[("h", b"1"), ("h", None), ("empty", b"")])
    assert [o for _, o in where] == list(range(20000))
    c = consumer("py-idempotent-readers")
    c.assign([TopicPartition("py-idempotent", 0, OFFSET_BEGINNING)])
    got = read(c, len(values))
    assert [m.value() for m in got] == values, "order or content"
    assert got[0].headers() == [("h", b"1"), ("h", None), ("empty", b"")], got[0].headers()
    assert got[0].key() == b"k"
    c.close()


def wait_all(futures):
    return {k: f.result(TIMEOUT) for k, f in futures.items()}


def admin():
    a = AdminClient({"bootstrap.servers": ADDR})
    wait_all(a.create_topics([NewTopic("py-admin", 2, 1, config={"retention.ms": "3600000"})]))
    try:
        wait_all(a.create_topics([NewTopic("py-admin", 2, 1)]))
        raise AssertionError("a topic was created twice")
    except Exception as e:
        assert e.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS, e
    wait_all(a.create_partitions([NewPartitions("py-admin", 5)]))
    deadline = time.monotonic() + TIMEOUT
    while len(a.list_topics("py-admin", timeout=TIMEOUT).topics["py-admin"].partitions) != 5:
        assert time.monotonic() < deadline, "partitions were not added"
    for entries in wait_all(a.describe_configs([ConfigResource(ResourceType.TOPIC, "py-admin")])).values():
        assert entries["retention.ms"].value == "3600000", entries["retention.ms"]
        assert entries["cleanup.policy"].value == "delete", entries["cleanup.policy"]
    wait_all(a.delete_topics(["py-admin"]))
    deadline = time.monotonic() + TIMEOUT
    while "py-admin" in a.list_topics(timeout=TIMEOUT).topics:
        assert time.monotonic() < deadline, "the topic was not deleted"


def group():
    a = AdminClient({"bootstrap.servers": ADDR})
    wait_all(a.create_topics([NewTopic("py-group", 3, 1)]))
    p = producer()
    produce(p, "py-group", [str(i).encode() for i in range(300)])
    c = consumer("py-committers")
    c.subscribe(["py-group"])
    first = read(c, 300)
    c.commit(asynchronous=False)
    c.close()
    produce(p, "py-group", [b"after"])
    c = consumer("py-committers")
    c.subscribe(["py-group"])
    again = read(c, 1)
    assert [m.value() for m in again] == [b"after"], "the commit was not where the group went on"
    committed = c.committed([TopicPartition("py-group", i) for i in range(3)], timeout=TIMEOUT)
    # A partition that the producer left out has no offset.
    assert sum(tp.offset for tp in committed if tp.offset >= 0) == len(first), committed
    lo_hi = [c.get_watermark_offsets(TopicPartition("py-group", i), timeout=TIMEOUT) for i in range(3)]
    assert sum(hi - lo for lo, hi in lo_hi) == 301, lo_hi

    listed = a.list_consumer_groups().result(TIMEOUT)
    assert "py-committers" in [g.group_id for g in listed.valid], listed.valid
    described = wait_all(a.describe_consumer_groups(["py-committers"]))["py-committers"]
    assert described.state.name == "STABLE" and len(described.members) == 1, described.state
    c.close()
    wait_all(a.delete_consumer_groups(["py-committers"]))


def rebalance():
    """Two eager and then two cooperative members share and hand over partitions."""
    a = AdminClient({"bootstrap.servers": ADDR})
    for strategy in ["range", "roundrobin", "cooperative-sticky"]:
        topic = "py-rebalance-" + strategy
        wait_all(a.create_topics([NewTopic(topic, 4, 1)]))
        members = [consumer("py-" + strategy, partition_assignment_strategy=strategy) for _ in range(2)]
        stop = threading.Event()
        got = [[], []]

        def run(i):
            while not stop.is_set():
                m = members[i].poll(0.1)
                if m is not None and m.error() is None:
                    got[i].append(m.value())

        threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
        for i, m in enumerate(members):
            m.subscribe([topic])
            threads[i].start()
        deadline = time.monotonic() + TIMEOUT
        while [len(m.assignment()) for m in members] != [2, 2]:
            assert time.monotonic() < deadline, f"{strategy}: {[m.assignment() for m in members]}"
            time.sleep(0.05)
        p = producer()
        for i in range(200):
            p.produce(topic, str(i).encode(), partition=i % 4)
        assert p.flush(TIMEOUT) == 0
        while len(got[0]) + len(got[1]) < 200:
            assert time.monotonic() < deadline, f"{strategy}: {len(got[0])} + {len(got[1])} of 200"
            time.sleep(0.05)
        stop.set()
        for t in threads:
            t.join()
        assert sorted(got[0] + got[1]) == sorted(str(i).encode() for i in range(200)), strategy
        assert len(got[0]) == len(got[1]) == 100, (len(got[0]), len(got[1]))
        for m in members:
            m.close()


def seek():
    p = producer()
    base = int(time.time() * 1000) - 100000
    for i in range(100):
        p.produce("py-seek", str(i).encode(), timestamp=base + i * 1000)
    assert p.flush(TIMEOUT) == 0
    c = consumer("py-seekers")
    found = c.offsets_for_times([TopicPartition("py-seek", 0, base + 40500)], timeout=TIMEOUT)
    assert found[0].offset == 41, found
    c.assign(found)
    m = read(c, 1)[0]
    assert m.value() == b"41" and m.timestamp()[1] == base + 41000, (m.value(), m.timestamp())
    c.close()


part = sys.argv[2]
{"codecs": codecs, "idempotence": idempotence, "admin": admin, "group": group, "rebalance": rebalance, "seek": seek}[part]()
print("passed", part)
