// @huggingface/inference with an endpoint of its own.
import assert from "node:assert/strict";
import { InferenceClient } from "@huggingface/inference";
import { check, join, messages, url } from "./common.mjs";

const client = new InferenceClient("hf_none", { endpointUrl: url });
const plain = new InferenceClient("hf_none", { endpointUrl: `${url}/generate_stream` });
const ask = { model: "any", messages, max_tokens: 12, temperature: 0 };

await check("a chat is answered and streamed", async () => {
    const whole = await client.chatCompletion(ask);
    const streamed = await join(client.chatCompletionStream(ask), (chunk) => chunk.choices[0]?.delta.content);
    assert.equal(streamed, whole.choices[0].message.content);
});

await check("a text is streamed as TGI streams it", async () => {
    const asked = { model: "any", inputs: "Once upon a time", parameters: { max_new_tokens: 12 } };
    let last = null;
    let text = "";
    for await (const event of plain.textGenerationStream(asked)) {
        text += event.token.text;
        last = event;
    }
    assert.match(text, /^, there was/);
    assert.equal(last.generated_text, text);
    assert.equal(last.details.finish_reason, "length");
});
