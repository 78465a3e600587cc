// ollama.
import assert from "node:assert/strict";
import { Ollama } from "ollama";
import { Arguments, check, content, join, messages, parameters, url } from "./common.mjs";

const client = new Ollama({ host: url });
const options = { num_predict: 16, temperature: 0 };

await check("the model's facts", async () => {
    const { models } = await client.list();
    assert.equal(models.length, 1);
    assert.ok((await client.show({ model: models[0].name })).capabilities.includes("tools"));
    assert.equal((await client.ps()).models.length, 1);
    assert.match((await client.version()).version, /^\d+\.\d+/);
});

await check("a chat is answered and streamed", async () => {
    const whole = await client.chat({ model: "any", messages, options });
    const streamed = await join(await client.chat({ model: "any", messages, options, stream: true }), (p) => p.message.content);
    assert.equal(streamed, whole.message.content);
    assert.equal(whole.done_reason, "length");
});

await check("generate takes a prompt for the template, and a raw one", async () => {
    assert.ok((await client.generate({ model: "any", prompt: content, options })).response.length);
    const raw = { model: "any", prompt: "Once upon a time", raw: true, options };
    const { response } = await client.generate(raw);
    assert.match(response, /^, there was/);
    assert.equal(await join(await client.generate({ ...raw, stream: true }), (p) => p.response), response);
});

await check("log-probabilities come with the tokens, whole and streamed", async () => {
    const asked = { model: "any", messages, options, logprobs: true, top_logprobs: 2 };
    const whole = await client.chat(asked);
    const token = ({ token, logprob, top_logprobs }) => ({ token, logprob, top: top_logprobs.map((t) => t.token) });
    assert.equal(whole.logprobs.map((t) => t.token).join(""), whole.message.content);
    const streamed = [];
    for await (const line of await client.chat({ ...asked, stream: true })) streamed.push(...(line.logprobs ?? []));
    assert.deepEqual(streamed.map(token), whole.logprobs.map(token));
    assert.equal(whole.logprobs[0].top_logprobs.length, 2);
});

await check("vectors of one text and of several", async () => {
    const { embeddings } = await client.embed({ model: "any", input: [content, "Once"] });
    const one = await client.embed({ model: "any", input: "Once" });
    assert.deepEqual(one.embeddings[0], embeddings[1]);
    assert.equal((await client.embeddings({ model: "any", prompt: "Once" })).embedding.length, embeddings[0].length);
});

await check("a format is held: a schema, and any JSON", async () => {
    const reply = await client.chat({ model: "any", messages, format: parameters });
    Arguments.parse(JSON.parse(reply.message.content));
    const list = await client.generate({ model: "any", prompt: content, format: { type: "array", maxItems: 2, items: { enum: [1, 2] } } });
    assert.ok(JSON.parse(list.response).length <= 2);
});
