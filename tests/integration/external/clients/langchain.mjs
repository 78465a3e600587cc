// @langchain/openai.
import assert from "node:assert/strict";
import { AIMessage, HumanMessage, ToolMessage } from "@langchain/core/messages";
import { ChatOpenAI } from "@langchain/openai";
import { Arguments, Dog, check, content, join, parameters, url } from "./common.mjs";

const settings = { model: "any", apiKey: "none", maxRetries: 0, configuration: { baseURL: `${url}/v1` } };
const chat = new ChatOpenAI(settings);
const short = new ChatOpenAI({ ...settings, maxTokens: 12 });
const weather = { type: "function", function: { name: "weather", description: "The weather.", parameters } };

await check("a chat is answered and streamed", async () => {
    const reply = await short.invoke(content);
    assert.equal(reply.usage_metadata.output_tokens, 12);
    await join(await short.stream(content), (piece) => piece.content);
});

for (const tool_choice of ["weather", "any"])
    await check(`bindTools calls the tool that is chosen: ${tool_choice}`, async () => {
        const reply = await chat.bindTools([weather], { tool_choice }).invoke(content);
        Arguments.parse(reply.tool_calls[0].args);
    });

await check("a tool's result is taken", async () => {
    const call = { id: "call_1", name: "weather", args: { city: "Bern", now: true } };
    const talk = [new HumanMessage(content), new AIMessage({ content: "", tool_calls: [call] })];
    const result = new ToolMessage({ content: "sunny", tool_call_id: "call_1" });
    assert.ok(await short.bindTools([weather]).invoke([...talk, result]));
});

for (const tool_choice of ["none", "auto"])
    await check(`bindTools leaves the model its choice: ${tool_choice}`, async () => {
        const reply = await short.bindTools([weather], { tool_choice }).invoke(content);
        assert.equal(reply.tool_calls.length, 0);
        assert.ok(reply.content.length > 0);
    });

for (const method of ["functionCalling", "jsonSchema"])
    await check(`withStructuredOutput gives what it describes: ${method}`, async () => {
        Dog.parse(await chat.withStructuredOutput(Dog, { method, name: "dog" }).invoke(content));
    });

await check("responses are answered", async () => {
    const reply = await new ChatOpenAI({ ...settings, maxTokens: 16, useResponsesApi: true }).invoke(content);
    assert.ok(reply.text.length > 0);
});
