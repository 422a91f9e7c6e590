// The protocol's own client reads and writes by a gateway: each message once, in order, live and later.
import { DurableStream, IdempotentProducer, stream } from "@durable-streams/client"
import { expect, test } from "vitest"

const url = (name) => `${process.env.CONFORMANCE_TEST_URL}/v1/stream/${name}-${Date.now()}`

test("an idempotent producer writes, and a reader has each message once and in order", async () => {
  const made = await DurableStream.create({ url: url("client"), contentType: "application/json" })
  const errors = []
  const producer = new IdempotentProducer(made, "client", { autoClaim: true, onError: (error) => errors.push(error) })
  for (let number = 0; number < 500; number++) producer.append(JSON.stringify({ number }))
  await producer.flush()
  await producer.close()
  const items = await (await stream({ url: made.url, offset: "-1", live: false })).json()
  expect(errors).toEqual([])
  expect(items.map((each) => each.number)).toEqual([...Array(500).keys()])
})

test("a live reader has what is appended while it waits", async () => {
  const made = await DurableStream.create({ url: url("live"), contentType: "application/json" })
  const reading = await stream({ url: made.url, offset: "-1", live: "sse" })
  const found = []
  const all = new Promise((done) => {
    reading.subscribeJson(async (batch) => {
      found.push(...batch.items)
      if (found.length >= 3) done()
    })
  })
  for (const text of ["one", "two", "three"]) await made.append(JSON.stringify({ text }))
  await all
  expect(found.map((each) => each.text)).toEqual(["one", "two", "three"])
})
