# What librdkafka makes of brokers that restart: confluent.py BROKERS TOPIC.
#
# Until its standard input ends it produces 0, 1, 2, ... with idempotence, and
# reads them as a member of a group. It prints "acked N", "got N" and "error ...".
import sys
import threading
import time

from confluent_kafka import Consumer, Producer

brokers, topic = sys.argv[1:3]
interval = 0.01  # seconds between two records
drain = 60  # seconds until all is acknowledged and read, at most

printing = threading.Lock()
ended = threading.Event()
acked, got = set(), set()


def say(*words):
    with printing:
        print(*words, flush=True)


def delivered(err, message):
    n = int(message.value())
    if err is not None:
        say("error", f"record {n} was given up: {err}")
        return
    acked.add(n)
    say("acked", n)


def produce():
    p = Producer({"bootstrap.servers": brokers, "enable.idempotence": True, "linger.ms": 0})
    n = 0
    while not ended.is_set():
        p.produce(topic, str(n).encode(), key=b"k", on_delivery=delivered)
        p.poll(0)
        n += 1
        time.sleep(interval)
    p.flush(drain)


def consume(finished):
    c = Consumer({"bootstrap.servers": brokers, "group.id": topic + "-readers", "auto.offset.reset": "earliest",
                  "enable.auto.commit": True, "auto.commit.interval.ms": 500})
    c.subscribe([topic])
    while not finished.is_set():
        m = c.poll(0.1)
        if m is None:
            continue
        if m.error():
            say("error", f"consumer: {m.error()}")
            continue
        got.add(int(m.value()))
        say("got", int(m.value()))
    c.close()


def main():
    finished = threading.Event()
    threads = [threading.Thread(target=produce), threading.Thread(target=consume, args=(finished,))]
    for t in threads:
        t.start()
    sys.stdin.read()
    ended.set()
    threads[0].join()
    until = time.time() + drain
    while not acked <= got and time.time() < until:
        time.sleep(0.05)
    finished.set()
    threads[1].join()


main()
