// @langchain/ollama.
import assert from "node:assert/strict";
import { AIMessage, HumanMessage, ToolMessage } from "@langchain/core/messages";
import { ChatOllama, OllamaEmbeddings } from "@langchain/ollama";
import { Arguments, Dog, check, content, join, parameters, url } from "./common.mjs";

const settings = { model: "any", baseUrl: url, maxRetries: 0, temperature: 0 };
const short = new ChatOllama({ ...settings, numPredict: 12 });
const weather = { type: "function", function: { name: "weather", description: "The weather.", parameters } };

await check("a chat is answered and streamed", async () => {
    const reply = await short.invoke(content);
    assert.equal(reply.usage_metadata.output_tokens, 12);
    assert.equal(await join(await short.stream(content), (piece) => piece.content), reply.content);
});

await check("bindTools offers a tool, and its result is taken", async () => {
    const bound = short.bindTools([weather]);
    assert.ok((await bound.invoke(content)).content.length > 0);
    const call = { id: "call_1", name: "weather", args: { city: "Bern", now: true } };
    const talk = [new HumanMessage(content), new AIMessage({ content: "", tool_calls: [call] })];
    assert.ok((await bound.invoke([...talk, new ToolMessage({ content: "sunny", tool_call_id: "call_1" })])).content.length > 0);
});

await check("a format is held, and withStructuredOutput gives what it describes", async () => {
    const reply = await new ChatOllama({ ...settings, format: parameters }).invoke(content);
    Arguments.parse(JSON.parse(reply.content));
    Dog.parse(await new ChatOllama(settings).withStructuredOutput(Dog, { method: "jsonSchema" }).invoke(content));
});

await check("vectors of texts", async () => {
    const embeddings = new OllamaEmbeddings({ model: "any", baseUrl: url });
    const [one, two] = await embeddings.embedDocuments([content, "Once"]);
    assert.deepEqual(await embeddings.embedQuery("Once"), two);
    assert.equal(one.length, two.length);
});
