// @huggingface/inference with an endpoint of its own.
import assert from "node:assert/strict";
import { InferenceClient } from "@huggingface/inference";
import { check, join, messages, url } from "./common.mjs";

const client = new InferenceClient("hf_none", { endpointUrl: url });
const ask = { model: "any", messages, max_tokens: 12, temperature: 0 };

await check("a chat is answered and streamed", async () => {
    const whole = await client.chatCompletion(ask);
    const streamed = await join(client.chatCompletionStream(ask), (chunk) => chunk.choices[0]?.delta.content);
    assert.equal(streamed, whole.choices[0].message.content);
});

await check("a text is gone on with", async () => {
    const reply = await client.textGeneration({ model: "any", inputs: "Once upon a time", parameters: { max_new_tokens: 12, temperature: 0 } });
    assert.match(reply.generated_text, /^, there was/);
});
