// The official openai client, unmodified, against a running hearthd: node client.mjs http://127.0.0.1:PORT
import assert from "node:assert/strict";
import OpenAI from "openai";

const url = process.argv[2];
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
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
await check("a model is found by its id", async () => {
    assert.equal((await client.models.retrieve(model)).id, model);
    await assert.rejects(client.models.retrieve("another"), OpenAI.NotFoundError);
});
const messages = [{ role: "user", content: "Tell me a story about a dog." }];

await check("a completion returns text and usage", async () => {
    const reply = await client.completions.create({ model, prompt: "Once upon a time", max_tokens: 24, temperature: 0 });
    assert.equal(reply.object, "text_completion");
    assert.match(reply.choices[0].text, /^, there was/);
    assert.equal(reply.choices[0].finish_reason, "length");
    assert.equal(reply.usage.prompt_tokens, 4);
    assert.equal(reply.usage.completion_tokens, 24);
});

await check("several prompts have their choices in order", async () => {
    const prompt = ["Once upon a time", "One day"];
    const reply = await client.completions.create({ model, prompt, max_tokens: 8, temperature: 0 });
    assert.deepEqual(reply.choices.map((c) => c.index), [0, 1]);
    assert.match(reply.choices[0].text, /^, there was/);
});

await check("a vector is the same unasked, where the client asks for base64, and as floats", async () => {
    const input = ["Once upon a time", "One day"];
    const unasked = await client.embeddings.create({ model, input });
    const floats = await client.embeddings.create({ model, input, encoding_format: "float" });
    assert.equal(unasked.data.length, 2);
    assert.deepEqual(unasked.data[1].embedding.map(Math.fround), floats.data[1].embedding.map(Math.fround));
    const few = await client.embeddings.create({ model, input: [[1, 2], [3]], dimensions: 16 });
    assert.ok(Math.abs(few.data[1].embedding.reduce((sum, x) => sum + x * x, 0) - 1) < 1e-5);
    await assert.rejects(client.embeddings.create({ model, input, dimensions: 9999 }), OpenAI.BadRequestError);
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

const figures = async () => (await fetch(`${url}/stats`)).json();

// The daemon counts it as cancelled and has nothing left to do.
async function countsCancelled(before) {
    for (;;) {
        const { requests } = await figures();
        if (requests.cancelled > before && requests.running + requests.waiting === 0) return;
        await new Promise((resolve) => setTimeout(resolve, 20));
    }
}
const long = { model, max_tokens: 900, ignore_eos: true, temperature: 0 };

for (const [name, start] of [
    ["completion", () => client.completions.create({ ...long, prompt: "Once", stream: true })],
    ["chat answer", () => client.chat.completions.create({ ...long, messages, stream: true })],
])
    await check(`an aborted stream of a ${name} is cancelled`, async () => {
        const before = (await figures()).requests.cancelled;
        const stream = await start();
        for await (const chunk of stream) {
            assert.ok(chunk);
            stream.controller.abort();
            break;
        }
        await countsCancelled(before);
    });

for (const [name, start] of [
    ["completion", (options) => client.completions.create({ ...long, prompt: "Once" }, options)],
    ["chat answer", (options) => client.chat.completions.create({ ...long, messages }, options)],
])
    await check(`an aborted ${name} that is not streamed is cancelled`, async () => {
        const before = (await figures()).requests.cancelled;
        const controller = new AbortController();
        let ended = false;
        const reply = start({ signal: controller.signal });
        reply.finally(() => (ended = true)).catch(() => {});
        while (!ended && (await figures()).requests.running === 0);
        assert.ok(!ended, "it is long enough to be aborted");
        controller.abort();
        await assert.rejects(reply, OpenAI.APIUserAbortError);
        await countsCancelled(before);
    });

await check("after all that the server goes on", async () => {
    const reply = await client.completions.create({ model, prompt: "Once", max_tokens: 2 });
    assert.equal(reply.usage.completion_tokens, 2);
});
console.log(`${passed} passed, 0 failed`);
