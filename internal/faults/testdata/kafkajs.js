// What kafkajs makes of brokers that restart: kafkajs.js BROKERS TOPIC. It does
// what confluent.py beside it does.
"use strict";
const { Kafka, logLevel } = require("kafkajs");

const [brokers, topic] = process.argv.slice(2);
const kafka = new Kafka({ clientId: "restarts", brokers: brokers.split(","), logLevel: logLevel.NOTHING, retry: { retries: 15, initialRetryTime: 50, maxRetryTime: 1000 } });
const interval = 10; // ms between two records
const drain = 60_000; // ms until all is read, at most

const acked = new Set();
const got = new Set();
let ended = false;
const say = (...words) => console.log(words.join(" "));
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function produce() {
  const p = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });
  await p.connect();
  for (let n = 0; !ended; n++) {
    try {
      await p.send({ topic, acks: -1, messages: [{ key: "k", value: String(n) }] });
      acked.add(n);
      say("acked", n);
    } catch (e) {
      say("error", `record ${n} was given up: ${e.message}`);
    }
    await pause(interval);
  }
  await p.disconnect();
}

async function main() {
  process.stdin.resume();
  process.stdin.on("end", () => (ended = true));
  const c = kafka.consumer({ groupId: `${topic}-readers`, sessionTimeout: 10_000, maxWaitTimeInMs: 100 });
  c.on(c.events.CRASH, (e) => {
    if (!e.payload.restart) say("error", `consumer: ${e.payload.error.message}`);
  });
  await c.connect();
  await c.subscribe({ topics: [topic], fromBeginning: true });
  await c.run({
    autoCommitInterval: 500,
    eachMessage: async ({ message }) => {
      got.add(Number(message.value.toString()));
      say("got", message.value.toString());
    },
  });
  await produce();
  for (const until = Date.now() + drain; Date.now() < until && [...acked].some((n) => !got.has(n)); ) await pause(50);
  await c.disconnect();
}

main().then(
  () => process.exit(0),
  (e) => {
    say("error", e.stack);
    process.exit(1);
  },
);
