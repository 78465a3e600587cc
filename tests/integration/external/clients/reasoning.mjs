// ai with @ai-sdk/openai-compatible, openai, @langchain/openai and @anthropic-ai/sdk (node reasoning.mjs URL), with a model
// whose prompt opens its reasoning: it is apart from the text, counted, and taken back with the next request.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { ChatOpenAI } from "@langchain/openai";
import { generateText, stepCountIs, streamText, tool } from "ai";
import OpenAI from "openai";
import { Arguments, check, content, messages, url } from "./common.mjs";

const regex = "I (see|know)\\.\\n</think>\\n\\nAll is (well|fine)\\.";
const words = { regex, chat_template_kwargs: { enable_thinking: true } };
const thought = /^I (see|know)\.\n*$/;
const said = /^All is (well|fine)\.$/;
const settings = { name: "hearth", baseURL: `${url}/v1`, supportsStructuredOutputs: true };
const ask = { model: createOpenAICompatible(settings).chatModel("any"), maxRetries: 0, providerOptions: { hearth: words } };

await check("parts of type reasoning come before the text, whole and streamed, and are taken back", async () => {
    const whole = await generateText({ ...ask, prompt: content });
    assert.match(whole.reasoningText, thought);
    assert.match(whole.text, said);
    assert.ok(whole.usage.reasoningTokens > 0 || whole.usage.outputTokenDetails?.reasoningTokens > 0);
    const parts = [];
    for await (const part of streamText({ ...ask, prompt: content }).fullStream) parts.push(part);
    const kinds = parts.map((part) => part.type);
    assert.ok(kinds.indexOf("reasoning-start") >= 0 && kinds.indexOf("reasoning-end") < kinds.indexOf("text-start"), kinds.join(" "));
    const again = [{ role: "user", content }, ...whole.response.messages, { role: "user", content }];
    assert.match((await generateText({ ...ask, messages: again })).text, said);
});

await check("a tool is called behind the reasoning, and the loop ends with its result", async () => {
    const call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern", "now": true}}\n</tool_call>';
    const escaped = call.replace(/[{}]/g, "\\$&").replaceAll("\n", "\\n");
    let given = null;
    const weather = tool({ description: "The weather.", inputSchema: Arguments, execute: async (input) => ((given = input), "sunny") });
    const step = ({ stepNumber }) => ({
        providerOptions: { hearth: { ...words, regex: stepNumber ? regex : `I see\\.\\n</think>\\n\\n${escaped}` } },
    });
    const reply = await generateText({ ...ask, prompt: content, tools: { weather }, stopWhen: stepCountIs(3), prepareStep: step });
    assert.deepEqual(given, { city: "Bern", now: true });
    assert.equal(reply.steps.length, 2);
    assert.equal(reply.steps[0].finishReason, "tool-calls");
    assert.match(reply.text, said);
});

await check("usage counts tokens of the reasoning and of the cache, in streams too", async () => {
    const model = { model: "any", apiKey: "none", maxRetries: 0, configuration: { baseURL: `${url}/v1` }, modelKwargs: words };
    const chat = new ChatOpenAI(model);
    const long = content.repeat(20);
    for (const reply of [await chat.invoke(long), await (async () => {
        let sum = null;
        for await (const piece of await chat.stream(long)) sum = sum ? sum.concat(piece) : piece;
        return sum;
    })()]) {
        const { usage_metadata: usage } = reply;
        assert.equal(usage.input_tokens + usage.output_tokens, usage.total_tokens);
        assert.ok(usage.output_token_details.reasoning > 0, JSON.stringify(usage));
        assert.ok(usage.output_token_details.reasoning < usage.output_tokens);
        chat.cached = usage.input_token_details.cache_read;
    }
    assert.ok(chat.cached > 0, "the second request was read from the cache");
    const responses = await new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 }).responses.create({ model: "any", input: content, ...words });
    assert.deepEqual(responses.output.map((item) => item.type), ["reasoning", "message"]);
    assert.ok(responses.usage.output_tokens_details.reasoning_tokens > 0);
});

await check("Anthropic's blocks: thinking, then text, whole and streamed, and back", async () => {
    const client = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
    const asked = { model: "any", max_tokens: 100, messages, ...words };
    for (const reply of [await client.messages.create(asked), await client.messages.stream(asked).finalMessage()]) {
        assert.deepEqual(reply.content.map((block) => block.type), ["thinking", "text"]);
        assert.match(reply.content[1].text, said);
        assert.ok(reply.usage.output_tokens_details.thinking_tokens > 0);
        const talk = [...messages, { role: "assistant", content: reply.content }, ...messages];
        assert.equal((await client.messages.create({ ...asked, messages: talk })).stop_reason, "end_turn");
    }
});

await check("a budget closes the reasoning", async () => {
    const client = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
    const thinking = { type: "enabled", budget_tokens: 1024 };
    const reply = await client.messages.create({ model: "any", max_tokens: 1200, messages, thinking, temperature: 1 });
    assert.deepEqual(reply.content.map((block) => block.type), ["thinking", "text"]);
    assert.ok(reply.usage.output_tokens_details.thinking_tokens >= 1024);
});
