// The official openai client, unmodified, against a running hearthd: node client.mjs http://127.0.0.1:PORT
import assert from "node:assert/strict";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none", maxRetries: 0 });
let passed = 0;
async function check(name, body) {
    await body();
    passed++;
    console.log(`ok - ${name}`);
}

const models = [];
await check("models lists the loaded model", async () => {
    for await (const model of client.models.list()) models.push(model.id);
    assert.equal(models.length, 1);
});
const model = models[0];
const messages = [{ role: "user", content: "Tell me a story about a dog." }];

await check("a completion returns text and usage", async () => {
    const reply = await client.completions.create({ model, prompt: "Once upon a time", max_tokens: 24, temperature: 0 });
    assert.equal(reply.object, "text_completion");
    assert.match(reply.choices[0].text, /^, there was/);
    assert.equal(reply.choices[0].finish_reason, "length");
    assert.equal(reply.usage.prompt_tokens, 4);
    assert.equal(reply.usage.completion_tokens, 24);
});

await check("a streamed completion gives the same text", async () => {
    const options = { model, prompt: "Once upon a time", max_tokens: 24, temperature: 0 };
    const whole = await client.completions.create(options);
    let text = "";
    let usage = null;
    for await (const chunk of await client.completions.create({
        ...options,
        stream: true,
        stream_options: { include_usage: true },
    })) {
        text += chunk.choices[0]?.text ?? "";
        usage = chunk.usage ?? usage;
    }
    assert.equal(text, whole.choices[0].text);
    assert.equal(usage.completion_tokens, 24);
});

await check("a chat answer tells a story and stops by itself", async () => {
    const reply = await client.chat.completions.create({ model, messages, temperature: 0 });
    assert.equal(reply.object, "chat.completion");
    assert.equal(reply.choices[0].message.role, "assistant");
    assert.match(reply.choices[0].message.content, /dog named Spot/);
    assert.equal(reply.choices[0].finish_reason, "stop");
});

await check("a streamed chat answer gives the same text", async () => {
    const whole = await client.chat.completions.create({ model, messages, temperature: 0 });
    let text = "";
    let finish = null;
    for await (const chunk of await client.chat.completions.create({ model, messages, temperature: 0, stream: true })) {
        text += chunk.choices[0]?.delta?.content ?? "";
        finish = chunk.choices[0]?.finish_reason ?? finish;
    }
    assert.equal(text, whole.choices[0].message.content);
    assert.equal(finish, "stop");
});

await check("log-probabilities come in the dialect's shape", async () => {
    const reply = await client.chat.completions.create({
        model,
        messages,
        temperature: 0,
        max_tokens: 4,
        logprobs: true,
        top_logprobs: 2,
    });
    const content = reply.choices[0].logprobs.content;
    assert.equal(content.length, 4);
    assert.equal(content[0].top_logprobs.length, 2);
    assert.ok(content[0].logprob <= 0);
});

await check("a bad parameter is a BadRequestError that names it", async () => {
    await assert.rejects(
        client.chat.completions.create({ model, messages, temperature: 7 }),
        (error) => error instanceof OpenAI.BadRequestError && error.param === "temperature",
    );
});

await check("an aborted stream ends and the server goes on", async () => {
    const stream = await client.completions.create({ model, prompt: "Once", max_tokens: 500, stream: true });
    for await (const chunk of stream) {
        assert.ok(chunk);
        stream.controller.abort();
        break;
    }
    const reply = await client.completions.create({ model, prompt: "Once", max_tokens: 2 });
    assert.equal(reply.usage.completion_tokens, 2);
});
console.log(`${passed} passed, 0 failed`);
