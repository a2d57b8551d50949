"""What a user of kafka-python does with a broker: kafka_python.py ADDR PART."""
import sys
import time

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource
from kafka.errors import TopicAlreadyExistsError

ADDR = sys.argv[1]
TIMEOUT = 40


def values(prefix, n):
    return [f"{prefix} line {i} of a log, of a log".encode() for i in range(n)]


def eventually(what, holds):
    deadline = time.monotonic() + TIMEOUT
    while not holds():
        assert time.monotonic() < deadline, f"{what}: not after {TIMEOUT} s"
        time.sleep(0.05)  # what was changed is known a little later


def produce(topic, vs, timestamps=None, **settings):
    p = KafkaProducer(bootstrap_servers=ADDR, acks="all", linger_ms=5, **settings)
    sent = [p.send(topic, v, key=b"k", headers=[("h", b"1")], timestamp_ms=timestamps and timestamps[i]) for i, v in enumerate(vs)]
    p.flush(TIMEOUT)
    offsets = [f.get(TIMEOUT).offset for f in sent]
    p.close()
    return offsets


def read(c, n):
    got, deadline = [], time.monotonic() + TIMEOUT
    while len(got) < n:
        assert time.monotonic() < deadline, f"only {len(got)} of {n} messages"
        for messages in c.poll(200).values():
            got += messages
    return got


def read_group(group, topic, n):
    c = KafkaConsumer(topic, bootstrap_servers=ADDR, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False)
    got = read(c, n)
    c.commit()
    c.close()
    return [m.value for m in got]


def codecs():
    for codec in [None, "gzip", "snappy", "lz4", "zstd"]:
        topic = f"kafka-python-{codec}"
        want = values(topic, 2000)
        assert produce(topic, want, compression_type=codec) == list(range(2000)), f"{codec}: offsets not dense"
        c = KafkaConsumer(bootstrap_servers=ADDR, auto_offset_reset="earliest", check_crcs=True)
        c.assign([TopicPartition(topic, 0)])
        got = read(c, len(want))
        assert [m.value for m in got] == want, f"{codec}: other values"
        assert got[0].key == b"k" and list(got[0].headers) == [("h", b"1")], got[0]
        c.close()


def idempotence():
    want = values("once", 5000)
    assert produce("kafka-python-idempotent", want, enable_idempotence=True) == list(range(5000))
    assert read_group("kafka-python-once", "kafka-python-idempotent", 5000) == want


def admin():
    a = KafkaAdminClient(bootstrap_servers=ADDR)
    topic = "kafka-python-admin"
    new = {topic: {"num_partitions": 2, "replication_factor": 1, "configs": {"retention.ms": "3600000"}}}
    a.create_topics(new)
    try:
        a.create_topics(new)
        raise AssertionError("a topic was created twice")
    except TopicAlreadyExistsError:
        pass
    a.create_partitions({topic: 3})
    eventually("three partitions", lambda: len(a.describe_topics([topic])[0]["partitions"]) == 3)
    configs = a.describe_configs([ConfigResource("topic", topic)])
    assert "3600000" in str(configs), configs
    assert len(a.describe_cluster()["brokers"]) == 1
    a.delete_topics([topic])
    eventually("the deletion", lambda: topic not in a.list_topics())
    a.close()


def group():
    topic, name = "kafka-python-group", "kafka-python-readers"
    first = values("first", 200)
    produce(topic, first)
    assert read_group(name, topic, 200) == first
    produce(topic, [b"after"])
    assert read_group(name, topic, 1) == [b"after"], "the group went on elsewhere"
    a = KafkaAdminClient(bootstrap_servers=ADDR)
    offsets = a.list_group_offsets(name)[name]
    assert offsets[TopicPartition(topic, 0)].offset == 201, offsets
    assert "Empty" in str(a.describe_groups([name])), a.describe_groups([name])
    assert name in str(a.list_groups())
    a.delete_groups([name])
    assert name not in str(a.list_groups())
    a.close()


def timestamps():
    topic, tp = "kafka-python-seek", TopicPartition("kafka-python-seek", 0)
    base = int(time.time() * 1000) - 100_000
    produce(topic, values("t", 100), [base + i * 1000 for i in range(100)])
    c = KafkaConsumer(bootstrap_servers=ADDR)
    found = c.offsets_for_times({tp: base + 40_500})[tp]
    assert (found.offset, found.timestamp) == (41, base + 41_000), found
    assert c.beginning_offsets([tp]) == {tp: 0} and c.end_offsets([tp]) == {tp: 100}
    c.close()


def delete_records():
    topic, tp = "kafka-python-delete", TopicPartition("kafka-python-delete", 0)
    produce(topic, values("d", 10))
    a = KafkaAdminClient(bootstrap_servers=ADDR)
    a.delete_records({tp: 4})
    a.close()
    c = KafkaConsumer(bootstrap_servers=ADDR)
    assert c.beginning_offsets([tp]) == {tp: 4}
    c.close()


part = sys.argv[2]
{"codecs": codecs, "idempotence": idempotence, "admin": admin, "group": group, "timestamps": timestamps,
 "delete-records": delete_records}[part]()
print("passed", part)
