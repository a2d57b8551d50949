"""What a user of aiokafka does with a broker: aiokafka_client.py ADDR PART."""
import asyncio
import sys
import time

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

ADDR = sys.argv[1]
TIMEOUT = 40


def values(prefix, n):
    return [f"{prefix} line {i} of a log, of a log".encode() for i in range(n)]


async def produce(topic, vs, timestamps=None, **settings):
    async with AIOKafkaProducer(bootstrap_servers=ADDR, acks="all", linger_ms=5, **settings) as p:
        sent = [await p.send(topic, v, key=b"k", headers=[("h", b"1")], timestamp_ms=timestamps and timestamps[i], partition=0)
                for i, v in enumerate(vs)]
        return [(await f).offset for f in sent]


async def read(c, n):
    got = []
    while len(got) < n:
        for messages in (await c.getmany(timeout_ms=200)).values():
            got += messages
    return got


async def read_group(group, topic, n):
    async with AIOKafkaConsumer(topic, bootstrap_servers=ADDR, group_id=group, auto_offset_reset="earliest",
                                enable_auto_commit=False) as c:
        got = await read(c, n)
        await c.commit()
        return [m.value for m in got]


async def codecs():
    for codec in [None, "gzip", "snappy", "lz4", "zstd"]:
        topic = f"aiokafka-{codec}"
        want = values(topic, 2000)
        assert await produce(topic, want, compression_type=codec) == list(range(2000)), f"{codec}: offsets not dense"
        async with AIOKafkaConsumer(bootstrap_servers=ADDR, auto_offset_reset="earliest", check_crcs=True) as c:
            c.assign([TopicPartition(topic, 0)])
            got = await read(c, len(want))
        assert [m.value for m in got] == want, f"{codec}: other values"
        assert got[0].key == b"k" and list(got[0].headers) == [("h", b"1")], got[0]


async def idempotence():
    want = values("once", 5000)
    assert await produce("aiokafka-idempotent", want, enable_idempotence=True) == list(range(5000))
    assert await read_group("aiokafka-once", "aiokafka-idempotent", 5000) == want


async def with_admin(use):
    a = AIOKafkaAdminClient(bootstrap_servers=ADDR)
    await a.start()
    try:
        return await use(a)
    finally:
        await a.close()


async def admin():
    topic = "aiokafka-admin"

    async def use(a):
        await a.create_topics([NewTopic(topic, 2, 1, topic_configs={"retention.ms": "3600000"})])
        again = await a.create_topics([NewTopic(topic, 2, 1)])
        assert again.topic_errors[0][1] == 36, again
        await a.create_partitions({topic: NewPartitions(3)})
        while len((await a.describe_topics([topic]))[0]["partitions"]) != 3:
            await asyncio.sleep(0.05)  # what was changed is known a little later
        configs = await a.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
        assert "3600000" in str(configs), configs
        assert len((await a.describe_cluster())["brokers"]) == 1
        await a.delete_topics([topic])
        while topic in await a.list_topics():
            await asyncio.sleep(0.05)

    await with_admin(use)


async def group():
    topic, name = "aiokafka-group", "aiokafka-readers"
    first = values("first", 200)
    await produce(topic, first)
    assert await read_group(name, topic, 200) == first
    await produce(topic, [b"after"])
    assert await read_group(name, topic, 1) == [b"after"], "the group went on elsewhere"

    async def use(a):
        offsets = await a.list_consumer_group_offsets(name)
        assert offsets[TopicPartition(topic, 0)].offset == 201, offsets
        assert "Empty" in str(await a.describe_consumer_groups([name]))
        assert name in [g[0] for g in await a.list_consumer_groups()]

    await with_admin(use)


async def timestamps():
    topic, tp = "aiokafka-seek", TopicPartition("aiokafka-seek", 0)
    base = int(time.time() * 1000) - 100_000
    await produce(topic, values("t", 100), [base + i * 1000 for i in range(100)])
    async with AIOKafkaConsumer(bootstrap_servers=ADDR) as c:
        found = (await c.offsets_for_times({tp: base + 40_500}))[tp]
        assert (found.offset, found.timestamp) == (41, base + 41_000), found
        assert await c.beginning_offsets([tp]) == {tp: 0} and await c.end_offsets([tp]) == {tp: 100}


async def delete_records():
    topic, tp = "aiokafka-delete", TopicPartition("aiokafka-delete", 0)
    await produce(topic, values("d", 10))
    await with_admin(lambda a: a.delete_records({tp: RecordsToDelete(before_offset=4)}))
    async with AIOKafkaConsumer(bootstrap_servers=ADDR) as c:
        assert await c.beginning_offsets([tp]) == {tp: 4}


part = sys.argv[2]
run = {"codecs": codecs, "idempotence": idempotence, "admin": admin, "group": group, "timestamps": timestamps,
       "delete-records": delete_records}[part]
asyncio.run(asyncio.wait_for(run(), TIMEOUT))
print("passed", part)
