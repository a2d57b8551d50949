// What a user of kafkajs does with a broker: kafkajs.js ADDR PART.
"use strict";
const assert = require("assert");
const { Kafka, CompressionTypes, logLevel } = require("kafkajs");

const [addr, part] = process.argv.slice(2);
const kafka = new Kafka({ clientId: "compat", brokers: [addr], logLevel: logLevel.ERROR, retry: { retries: 8 } });
const timeout = 50_000;
const values = (prefix, n) => Array.from({ length: n }, (_, i) => `${prefix} line ${i} of a log, of a log`);

// eventually waits for what was changed to be known, until the timeout below.
async function eventually(holds) {
  while (!(await holds())) await new Promise((resolve) => setTimeout(resolve, 50));
}

async function produce(topic, vs, options = {}) {
  const p = kafka.producer(options.producer);
  await p.connect();
  await p.send({
    topic,
    compression: options.compression,
    acks: -1,
    messages: vs.map((value, i) => ({ key: "k", value, headers: { h: "1" }, timestamp: options.base && String(options.base + i * 1000) })),
  });
  await p.disconnect();
}

// read is a member of a group until it has n messages.
async function read(groupId, topic, n) {
  const c = kafka.consumer({ groupId, sessionTimeout: 10_000, maxWaitTimeInMs: 100 });
  await c.connect();
  await c.subscribe({ topics: [topic], fromBeginning: true });
  const got = [];
  await new Promise((resolve, reject) => {
    c.on(c.events.CRASH, (e) => reject(e.payload.error));
    c.run({
      eachMessage: async ({ message }) => {
        got.push(message);
        if (got.length === n) resolve();
      },
    }).catch(reject);
  });
  await c.disconnect(); // commits
  return got;
}

const parts = {
  async codecs() {
    for (const [name, compression] of [["none", CompressionTypes.None], ["gzip", CompressionTypes.GZIP]]) {
      const topic = `kafkajs-${name}`;
      const want = values(name, 2000);
      await produce(topic, want, { compression });
      const got = await read(`kafkajs-${name}-readers`, topic, want.length);
      assert.deepStrictEqual(got.map((m) => m.value.toString()), want);
      assert.strictEqual(got[0].key.toString(), "k");
      assert.strictEqual(got[0].headers.h.toString(), "1");
    }
  },

  async idempotence() {
    const want = values("once", 1000);
    await produce("kafkajs-idempotent", want, { producer: { idempotent: true, maxInFlightRequests: 1 } });
    const got = await read("kafkajs-idempotent-readers", "kafkajs-idempotent", want.length);
    assert.deepStrictEqual(got.map((m) => m.value.toString()), want);
  },

  async admin() {
    const a = kafka.admin();
    await a.connect();
    const topic = "kafkajs-admin";
    const entry = { name: "retention.ms", value: "3600000" };
    assert.ok(await a.createTopics({ topics: [{ topic, numPartitions: 2, replicationFactor: 1, configEntries: [entry] }], waitForLeaders: true }));
    assert.strictEqual(await a.createTopics({ topics: [{ topic }] }), false, "a topic was created twice");
    await a.createPartitions({ topicPartitions: [{ topic, count: 3 }] });
    await eventually(async () => (await a.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions.length === 3);
    const { resources } = await a.describeConfigs({ resources: [{ type: 2, name: topic, configNames: ["retention.ms"] }] });
    assert.strictEqual(resources[0].configEntries[0].configValue, "3600000");
    assert.strictEqual((await a.describeCluster()).brokers.length, 1);
    await a.deleteTopics({ topics: [topic] });
    await eventually(async () => !(await a.listTopics()).includes(topic));
    await a.disconnect();
  },

  async group() {
    const topic = "kafkajs-group";
    const first = values("first", 200);
    await produce(topic, first);
    assert.strictEqual((await read("kafkajs-readers", topic, first.length)).length, first.length);
    await produce(topic, ["after"]);
    const again = await read("kafkajs-readers", topic, 1);
    assert.deepStrictEqual(again.map((m) => m.value.toString()), ["after"], "the group went on elsewhere");
    const a = kafka.admin();
    await a.connect();
    const [{ partitions }] = await a.fetchOffsets({ groupId: "kafkajs-readers", topics: [topic] });
    assert.strictEqual(partitions[0].offset, "201");
    const { groups } = await a.describeGroups(["kafkajs-readers"]);
    assert.strictEqual(groups[0].state, "Empty");
    await a.resetOffsets({ groupId: "kafkajs-readers", topic, earliest: true });
    assert.strictEqual((await read("kafkajs-readers", topic, first.length + 1)).length, first.length + 1);
    await a.deleteGroups(["kafkajs-readers"]);
    await a.disconnect();
  },

  async timestamps() {
    const base = Date.now() - 100_000;
    await produce("kafkajs-seek", values("t", 100), { base });
    const a = kafka.admin();
    await a.connect();
    const [found] = await a.fetchTopicOffsetsByTimestamp("kafkajs-seek", base + 40_500);
    assert.strictEqual(found.offset, "41");
    const [offsets] = await a.fetchTopicOffsets("kafkajs-seek");
    assert.deepStrictEqual([offsets.low, offsets.high], ["0", "100"]);
    await a.disconnect();
  },

  async "delete-records"() {
    const topic = "kafkajs-delete";
    await produce(topic, values("d", 10));
    const a = kafka.admin();
    await a.connect();
    assert.strictEqual((await a.fetchTopicOffsets(topic))[0].high, "10"); // and so the client knows the topic
    await a.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: "4" }] });
    assert.strictEqual((await a.fetchTopicOffsets(topic))[0].low, "4");
    await a.disconnect();
  },
};

setTimeout(() => {
  console.error(`${part}: no end after ${timeout} ms`);
  process.exit(1);
}, timeout).unref();

parts[part]().then(
  () => console.log("passed", part),
  (err) => {
    console.error(err);
    process.exit(1);
  },
);
