// gguf.mjs - a vocabulary as a GGUF without tensors, from either of two public forms: tiktoken's ranks, or the tokenizer.json of a model.

const NORMAL = 1
const CONTROL = 3
const USER_DEFINED = 4
const BYTE = 6

// ---- GGUF, version 3 ----

class Writer {
    parts = []
    u32(v) {
        const b = Buffer.alloc(4)
        b.writeUInt32LE(v)
        this.parts.push(b)
    }
    u64(v) {
        const b = Buffer.alloc(8)
        b.writeBigUInt64LE(BigInt(v))
        this.parts.push(b)
    }
    string(s) {
        const b = Buffer.from(s)
        this.u64(b.length)
        this.parts.push(b)
    }
}

const TYPE = { u32: 4, i32: 5, f32: 6, bool: 7, string: 8, array: 9 }

const write_item = {
    u32: (w, v) => w.u32(v),
    i32: (w, v) => w.u32(v >>> 0),
    f32: (w, v) => {
        const b = Buffer.alloc(4)
        b.writeFloatLE(v)
        w.parts.push(b)
    },
    bool: (w, v) => w.parts.push(Buffer.from([v ? 1 : 0])),
    string: (w, v) => w.string(v),
}

// keys: [name, type, value], where the value of type "array of T" is a list.
function gguf(keys) {
    const w = new Writer()
    w.parts.push(Buffer.from("GGUF"))
    w.u32(3)
    w.u64(0)
    w.u64(keys.length)
    for (const [name, type, value] of keys) {
        w.string(name)
        const of = type.startsWith("array of ") ? type.slice(9) : null
        if (of) {
            w.u32(TYPE.array)
            w.u32(TYPE[of])
            w.u64(value.length)
            for (const item of value) write_item[of](w, item)
        } else {
            w.u32(TYPE[type])
            write_item[type](w, value)
        }
    }
    return Buffer.concat(w.parts)
}

function keys_of(model, pre, tokens, types) {
    return [
        ["general.architecture", "string", "llama"],
        ["tokenizer.ggml.model", "string", model],
        ["tokenizer.ggml.pre", "string", pre],
        ["tokenizer.ggml.tokens", "array of string", tokens],
        ["tokenizer.ggml.token_type", "array of i32", types],
        ["tokenizer.ggml.add_bos_token", "bool", false],
        ["tokenizer.ggml.add_space_prefix", "bool", false],
    ]
}

// ---- tiktoken: a line is the base64 of a token's bytes, and its rank ----

// GPT-2's letters for bytes: printable Latin-1 stands for itself, the others follow from U+0100 on.
const LETTERS = (() => {
    const letters = []
    let next = 0x100
    for (let b = 0; b < 256; b++) {
        const printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae
        letters.push(String.fromCharCode(printable ? b : next++))
    }
    return letters
})()

// The two tokens that the token of this rank is merged from: what is left of it when no pair of its rank or above is merged.
function halves(text, rank, ranks) {
    let parts = [...text]
    while (parts.length > 2) {
        let best = -1
        let least = rank
        for (let i = 0; i + 1 < parts.length; i++) {
            const r = ranks.get(parts[i] + parts[i + 1])
            if (r !== undefined && r < least) [best, least] = [i, r]
        }
        if (best < 0) throw new Error(`token ${rank} is no merge of two tokens`)
        parts = [...parts.slice(0, best), parts[best] + parts[best + 1], ...parts.slice(best + 2)]
    }
    return parts
}

export function gguf_of_tiktoken(text, pre) {
    const ranks = new Map()
    for (const line of text.split("\n")) {
        if (!line) continue
        const [bytes, rank] = line.split(" ")
        ranks.set([...Buffer.from(bytes, "base64")].map(b => LETTERS[b]).join(""), Number(rank))
    }
    const tokens = []
    const merges = []
    for (const [token, rank] of [...ranks].sort((a, b) => a[1] - b[1])) {
        while (tokens.length < rank) tokens.push(`[hole ${tokens.length}]`)
        tokens.push(token)
        if (token.length > 1) merges.push(halves(token, rank, ranks).join(" "))
    }
    const types = tokens.map(t => (t.startsWith("[hole") ? CONTROL : NORMAL))
    return gguf([...keys_of("gpt2", pre, tokens, types), ["tokenizer.ggml.merges", "array of string", merges]])
}

// ---- tokenizer.json ----

// An added token that files hold as a control token: a special one, or one that looks like it, as DeepSeek's marks of tool calls.
export function is_control(added) {
    return added.special || /^<[|\uff5c].*[|\uff5c]>$/.test(added.content)
}

// model: gpt2 (bytes as letters), gemma4 (BPE over characters) or llama (SPM; a token's score is minus the rank of its first merge,
// as SentencePiece trains a BPE).
export function gguf_of_json(json, model, pre) {
    const tokens = []
    const types = []
    const put = (text, id, type) => {
        tokens[id] = text
        types[id] = type
    }
    for (const [text, id] of Object.entries(json.model.vocab)) put(text, id, /^<0x[0-9A-F]{2}>$/.test(text) ? BYTE : NORMAL)
    // Files store the spaces of user-defined tokens as spaces: these tokens are looked for in a text before its spaces become U+2581.
    for (const added of json.added_tokens)
        is_control(added) ? put(added.content, added.id, CONTROL) : put(added.content.replaceAll("\u2581", " "), added.id, USER_DEFINED)
    for (let id = 0; id < tokens.length; id++) if (tokens[id] === undefined) put(`[hole ${id}]`, id, CONTROL)
    const merges = json.model.merges.map(m => (typeof m === "string" ? m : m.join(" ")))
    const keys = keys_of(model, pre, tokens, types)
    if (model !== "llama") return gguf([...keys, ["tokenizer.ggml.merges", "array of string", merges]])
    const first = new Map()
    json.model.merges.forEach((m, rank) => {
        const merged = typeof m === "string" ? m.replace(" ", "") : m.join("")
        if (!first.has(merged)) first.set(merged, rank)
    })
    return gguf([...keys, ["tokenizer.ggml.scores", "array of f32", tokens.map(t => -(first.get(t) ?? merges.length))]])
}
