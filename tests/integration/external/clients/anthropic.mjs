// @anthropic-ai/sdk.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { Arguments, check, messages, parameters, url } from "./common.mjs";

const client = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
const tools = [{ name: "weather", description: "The weather.", input_schema: parameters }];
const base = { model: "any", max_tokens: 20, messages, temperature: 0 };

await check("models have what its types ask for", async () => {
    for await (const model of client.models.list()) assert.ok(model.id && model.display_name && Date.parse(model.created_at));
});

await check("a message is counted, answered and streamed", async () => {
    assert.ok((await client.messages.countTokens({ model: "any", messages })).input_tokens > 4);
    const whole = await client.messages.create(base);
    assert.equal(whole.stop_reason, "max_tokens");
    const streamed = await client.messages.stream(base).finalMessage();
    assert.equal(streamed.content[0].text, whole.content[0].text);
    assert.equal(streamed.usage.output_tokens, 20);
});

await check("the chosen tool is called, and takes its result", async () => {
    const asked = { ...base, max_tokens: 200, tools, tool_choice: { type: "tool", name: "weather", disable_parallel_tool_use: true } };
    for (const reply of [await client.messages.create(asked), await client.messages.stream(asked).finalMessage()]) {
        assert.equal(reply.stop_reason, "tool_use");
        Arguments.parse(reply.content[0].input);
    }
    const call = { type: "tool_use", id: "toolu_1", name: "weather", input: { city: "Bern", now: true } };
    const result = { type: "tool_result", tool_use_id: "toolu_1", is_error: true, content: "no" };
    const talk = [...messages, { role: "assistant", content: [call] }, { role: "user", content: [result] }];
    assert.ok((await client.messages.create({ ...base, tools, messages: talk })).content.length);
});

await check("a tool runner's second request has the whole conversation", async () => {
    const given = [];
    const weather = { type: "custom", name: "weather", description: "The weather.", input_schema: parameters, parse: (input) => input, run: (input) => (given.push(input), "sunny") };
    const runner = client.beta.messages.toolRunner({ ...base, max_tokens: 200, tools: [weather], tool_choice: { type: "any" }, max_iterations: 2 });
    const sizes = [];
    for await (const { usage } of runner) sizes.push(usage.input_tokens + usage.cache_read_input_tokens);
    assert.equal(sizes.length, 2);
    assert.ok(given.length >= 1 && sizes[1] > sizes[0] + 20, sizes.join(" "));
});

await check("a tool's output may hold what is no character", async () => {
    const call = { type: "tool_use", id: "toolu_1", name: "weather", input: { city: "Bern", now: true } };
    const result = { type: "tool_result", tool_use_id: "toolu_1", content: "a\0b\ud83d" };
    const talk = [...messages, { role: "assistant", content: [call] }, { role: "user", content: [result] }];
    assert.equal((await client.messages.create({ ...base, tools, messages: talk })).usage.output_tokens, 20);
});

await check("thinking of an unknown type is refused by name", async () => {
    await assert.rejects(
        client.messages.create({ ...base, thinking: { type: "deep" } }),
        (error) => error.status === 400 && error.error.error.type === "invalid_request_error" && /thinking\.type must be .*deep/.test(error.message),
    );
});

await check("an output format is held", async () => {
    const output_config = { format: { type: "json_schema", schema: parameters } };
    const reply = await client.messages.create({ ...base, max_tokens: 200, output_config });
    Arguments.parse(JSON.parse(reply.content[0].text));
});

await check("a begun answer is gone on with", async () => {
    const talk = [...messages, { role: "assistant", content: "Once upon" }];
    const reply = await client.messages.create({ ...base, messages: talk });
    assert.match(reply.content[0].text, /^ a time/);
});

await check("a stop sequence is named, and images are refused by name", async () => {
    const talk = [...messages, { role: "assistant", content: "Once upon" }];
    const reply = await client.messages.create({ ...base, messages: talk, stop_sequences: [" a", "zebra"] });
    assert.deepEqual([reply.stop_reason, reply.stop_sequence, reply.content], ["stop_sequence", " a", []]);
    const image = { type: "image", source: { type: "base64", media_type: "image/png", data: "" } };
    const seen = [{ role: "user", content: [{ type: "text", text: "This?" }, image] }];
    await assert.rejects(client.messages.create({ ...base, messages: seen }), (error) => {
        assert.equal(error.error.error.type, "invalid_request_error");
        assert.match(error.requestID, /^req-/);
        return error.status === 400 && /messages\[0\]\.content\[1\]\.type must be .*image/.test(error.message);
    });
});

await check("a billing header, which changes, does not spoil the cache", async () => {
    const text = "You are a helpful assistant who tells stories about a dog. ".repeat(12);
    const ask = (nonce) =>
        client.messages.create({ ...base, system: [{ type: "text", text: `x-anthropic-billing-header: cc_version=${nonce}` }, { type: "text", text }] });
    await ask("1");
    assert.ok((await ask("2")).usage.cache_read_input_tokens >= 64);
    assert.equal((await fetch(url, { method: "HEAD" })).status, 200);
    const body = JSON.stringify({ ...base, stream: true });
    const reply = await fetch(`${url}/v1/messages?beta=true`, { method: "POST", headers: { "content-type": "application/json" }, body });
    assert.match(await reply.text(), /^event: message_stop$/m);
});

await check("a prompt that does not fit has their words", async () => {
    const long = [{ role: "user", content: "a dog ".repeat(2000) }];
    await assert.rejects(client.messages.create({ ...base, messages: long }), /prompt is too long: \d+ tokens > 1024 maximum/);
});
