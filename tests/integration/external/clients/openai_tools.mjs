// openai: tools, structured outputs and responses.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { Arguments, Dog, check, content, messages, parameters, url } from "./common.mjs";

const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const named = { type: "function", function: { name: "weather" } };
const tools = [{ type: "function", function: { name: "weather", description: "The weather.", parameters } }];

await check("a required call is streamed", async () => {
    const chat = { model: "any", messages, tools, tool_choice: "required", parallel_tool_calls: false };
    const { choices } = await client.chat.completions.stream(chat).finalChatCompletion();
    assert.equal(choices[0].finish_reason, "tool_calls");
    assert.equal(choices[0].message.tool_calls.length, 1);
    Arguments.parse(JSON.parse(choices[0].message.tool_calls[0].function.arguments));
});

await check("runTools calls the function with the model's arguments", async () => {
    let given = null;
    const weather = {
        name: "weather",
        parse: JSON.parse,
        parameters,
        function: (args) => {
            given = args;
            return "sunny";
        },
    };
    await client.chat.completions
        .runTools({
            model: "any",
            messages,
            parallel_tool_calls: false,
            tool_choice: named,
            tools: [{ type: "function", function: weather }],
        })
        .done();
    Arguments.parse(given);
});

await check("a tool's output may hold what is no character", async () => {
    const call = { id: "call_1", type: "function", function: { name: "weather", arguments: "{}" } };
    const talk = [...messages, { role: "assistant", tool_calls: [call] }, { role: "tool", tool_call_id: "call_1", content: "a\0b\ud83d" }];
    const reply = await client.chat.completions.create({ model: "any", messages: talk, max_tokens: 4 });
    assert.equal(reply.usage.completion_tokens, 4);
});

await check("zodResponseFormat gives what it describes", async () => {
    const reply = await client.chat.completions.parse({ model: "any", messages, response_format: zodResponseFormat(Dog, "dog") });
    Dog.parse(reply.choices[0].message.parsed);
});

await check("a prompt that does not fit has the code and the sentence", async () => {
    const long = [{ role: "user", content: "a dog ".repeat(2000) }];
    await assert.rejects(
        client.chat.completions.create({ model: "any", messages: long }),
        (error) => error.code === "context_length_exceeded" && /maximum context length is 1024 tokens/.test(error.message),
    );
});

await check("a response that was cut is incomplete", async () => {
    const reply = await client.responses.create({ model: "any", input: content, max_output_tokens: 12 });
    assert.equal(reply.status, "incomplete");
    assert.ok(reply.output_text.length > 0);
    assert.equal(reply.usage.output_tokens, 12);
});

await check("a streamed response has the items of the whole one", async () => {
    const body = { model: "any", input: content, temperature: 0, max_output_tokens: 12 };
    const whole = await client.responses.create(body);
    const streamed = await client.responses.stream(body).finalResponse();
    assert.equal(streamed.output_text, whole.output_text);
});

await check("a response's log-probabilities are those of its tokens, streamed too", async () => {
    const body = { model: "any", input: content, temperature: 0, max_output_tokens: 12, top_logprobs: 2, include: ["message.output_text.logprobs"] };
    const whole = await client.responses.create(body);
    const scores = whole.output[0].content[0].logprobs;
    assert.equal(scores.map((s) => s.token).join(""), whole.output_text);
    assert.equal(scores[0].top_logprobs.length, 2);
    const stream = client.responses.stream(body);
    const deltas = [];
    stream.on("response.output_text.delta", (e) => deltas.push(...e.logprobs));
    const streamed = await stream.finalResponse();
    assert.deepEqual(deltas, scores);
    assert.deepEqual(streamed.output[0].content[0].logprobs, scores);
});

await check("a response's function call is streamed", async () => {
    const reply = await client.responses
        .stream({
            model: "any",
            input: content,
            tools: [{ type: "function", name: "weather", parameters, strict: true }],
            tool_choice: "required",
            parallel_tool_calls: false,
        })
        .finalResponse();
    assert.equal(reply.output[0].type, "function_call");
    Arguments.parse(JSON.parse(reply.output[0].arguments));
});

await check("a response gives back what the request said, whole and streamed", async () => {
    const said = {
        instructions: "Be brief.",
        metadata: { run: "7" },
        tools: [{ type: "function", name: "weather", description: "Tells it.", parameters, strict: true }],
        tool_choice: "auto",
        text: { format: { type: "text" }, verbosity: "low" },
        prompt_cache_key: "k",
        safety_identifier: "s",
        user: "u",
    };
    const body = { model: "any", input: content, max_output_tokens: 12, ...said };
    for (const reply of [await client.responses.create(body), await client.responses.stream(body).finalResponse()])
        for (const name of Object.keys(said)) assert.deepEqual(reply[name], said[name], name);
    const plain = await client.responses.create({ model: "any", input: content, max_output_tokens: 12 });
    assert.deepEqual([plain.tools, plain.tool_choice, plain.instructions, plain.metadata], [[], "auto", null, {}]);
});

await check("zodTextFormat gives what it describes", async () => {
    const reply = await client.responses.parse({ model: "any", input: content, text: { format: zodTextFormat(Dog, "dog") } });
    Dog.parse(reply.output_parsed);
});

await check("a response that would need a store is a BadRequestError that names the field", async () => {
    await assert.rejects(
        client.responses.create({ model: "any", input: content, previous_response_id: "resp_1" }),
        (error) => error instanceof OpenAI.BadRequestError && error.param === "previous_response_id",
    );
});
