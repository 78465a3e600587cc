// ai with @ai-sdk/openai-compatible and @ai-sdk/anthropic.
import assert from "node:assert/strict";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, streamObject, streamText, tool } from "ai";
import { Arguments, Dog, check, content, join, url } from "./common.mjs";

const settings = { name: "hearth", baseURL: `${url}/v1`, supportsStructuredOutputs: true };
const model = createOpenAICompatible(settings).chatModel("any");
const tools = { weather: tool({ description: "The weather.", inputSchema: Arguments }) };
const ask = { model, prompt: content, maxRetries: 0 };

await check("text is generated and streamed", async () => {
    const whole = await generateText({ ...ask, temperature: 0, maxOutputTokens: 12 });
    const { textStream } = streamText({ ...ask, temperature: 0, maxOutputTokens: 12 });
    assert.equal(await join(textStream, (text) => text), whole.text);
    assert.equal(whole.usage.outputTokens, 12);
    assert.equal(whole.finishReason, "length");
});

await check("reasoning comes as parts of its own, whole and streamed", async () => {
    const regex = "<think>I see (cats|dogs)\\.</think>A (cat|dog)\\.";
    const thinks = { ...ask, providerOptions: { hearth: { regex, chat_format: "hermes" } } };
    const whole = await generateText(thinks);
    assert.match(whole.reasoningText, /^I see (cats|dogs)\.$/);
    assert.match(whole.text, /^A (cat|dog)\.$/);
    const parts = [];
    for await (const part of streamText(thinks).fullStream) parts.push(part);
    const join = (type) => parts.filter((part) => part.type === type).map((part) => part.text).join("");
    assert.match(join("reasoning-delta"), /^I see (cats|dogs)\.$/);
    assert.match(join("text-delta"), /^A (cat|dog)\.$/);
    const kinds = parts.map((part) => part.type);
    assert.ok(kinds.indexOf("reasoning-end") < kinds.indexOf("text-start"), kinds.join(" "));
});

await check("a required tool is called, and a chosen one in a stream", async () => {
    const whole = await generateText({ ...ask, tools, toolChoice: "required" });
    Arguments.parse(whole.toolCalls[0].input);
    const chosen = streamText({ ...ask, tools, toolChoice: { type: "tool", toolName: "weather" } });
    Arguments.parse((await chosen.toolCalls)[0].input);
});

await check("an object is generated and streamed", async () => {
    Dog.parse((await generateObject({ ...ask, schema: Dog })).object);
    const streamed = streamObject({ ...ask, schema: Dog });
    for await (const partial of streamed.partialObjectStream) assert.ok(partial);
    Dog.parse(await streamed.object);
});

await check("Anthropic's provider: a text and a call, whole and streamed", async () => {
    const asked = { ...ask, model: createAnthropic({ baseURL: `${url}/v1`, apiKey: "none" })("any"), temperature: 0, maxOutputTokens: 200 };
    const whole = await generateText({ ...asked, maxOutputTokens: 12 });
    assert.equal(await join(streamText({ ...asked, maxOutputTokens: 12 }).textStream, (text) => text), whole.text);
    Arguments.parse((await generateText({ ...asked, tools, toolChoice: "required" })).toolCalls[0].input);
    Arguments.parse((await streamText({ ...asked, tools, toolChoice: "required" }).toolCalls)[0].input);
});
