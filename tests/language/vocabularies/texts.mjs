// texts.mjs - ten thousand lines that ask a pre-tokeniser everything: scripts, numbers, contractions, white space, punctuation, code.
import { readFileSync, readdirSync } from "node:fs"
import { join } from "node:path"

// Numbers from a fixed seed (mulberry32): the same lines in every run.
function random(seed) {
    return n => {
        seed = (seed + 0x6d2b79f5) | 0
        let t = Math.imul(seed ^ (seed >>> 15), 1 | seed)
        t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t
        return ((t ^ (t >>> 14)) >>> 0) % n
    }
}

// First and last code point. Nothing younger than Unicode 12: what reads these lines is as old as Debian's libraries.
const SCRIPTS = {
    latin: [[0x41, 0x5a], [0x61, 0x7a]],
    latin_marked: [[0xc0, 0xd6], [0xd8, 0xf6], [0x100, 0x17f], [0x1e00, 0x1eff]],
    title_case: [[0x1c4, 0x1cc], [0x1f1, 0x1f3], [0x1f88, 0x1faf]],
    greek: [[0x391, 0x3a1], [0x3a3, 0x3c9]],
    cyrillic: [[0x400, 0x481], [0x48a, 0x52f]],
    armenian: [[0x531, 0x556], [0x561, 0x587]],
    georgian: [[0x10d0, 0x10fa]],
    hebrew: [[0x5d0, 0x5ea], [0x5b0, 0x5bc]],
    arabic: [[0x620, 0x64a], [0x64b, 0x652], [0x660, 0x669]],
    devanagari: [[0x904, 0x939], [0x93e, 0x94d], [0x966, 0x96f]],
    bengali: [[0x995, 0x9a8], [0x9be, 0x9c4], [0x9e6, 0x9ef]],
    tamil: [[0xb92, 0xb95], [0xbae, 0xbb9], [0xbbe, 0xbc2]],
    thai: [[0xe01, 0xe30], [0xe31, 0xe3a], [0xe40, 0xe4e], [0xe50, 0xe59]],
    tibetan: [[0xf40, 0xf47], [0xf71, 0xf7d], [0xf20, 0xf29]],
    khmer: [[0x1780, 0x17b3], [0x17b6, 0x17c5]],
    ethiopic: [[0x1200, 0x1248]],
    hiragana: [[0x3041, 0x3096]],
    katakana: [[0x30a1, 0x30fa], [0xff66, 0xff9d]],
    han: [[0x4e00, 0x9fa5], [0x3400, 0x3440], [0x20000, 0x20040], [0xf900, 0xf920]],
    hangul: [[0xac00, 0xd7a3], [0x1100, 0x1112]],
    modifier_letters: [[0x2b0, 0x2c1], [0x1d2c, 0x1d61]],
    mathematical: [[0x1d400, 0x1d454], [0x1d7ce, 0x1d7ff]],
    digits: [[0x30, 0x39]],
    other_numbers: [[0xbc, 0xbe], [0xb2, 0xb3], [0x2150, 0x218b], [0x2460, 0x2473], [0xff10, 0xff19], [0x3007, 0x3007]],
    marks: [[0x300, 0x36f], [0x20d0, 0x20dc], [0xfe0f, 0xfe0f]],
    punctuation: [[0x21, 0x2f], [0x3a, 0x40], [0x5b, 0x60], [0x7b, 0x7e]],
    wide_punctuation: [[0x2010, 0x2027], [0x3001, 0x3003], [0x3008, 0x3011], [0xff01, 0xff0f], [0xff1a, 0xff20]],
    symbols: [[0xa1, 0xa9], [0xab, 0xac], [0x20a0, 0x20bf], [0x2190, 0x21ff], [0x2200, 0x22ff]],
    emoji: [[0x1f300, 0x1f5ff], [0x1f600, 0x1f64f], [0x1f680, 0x1f6c5], [0x1f1e6, 0x1f1ff], [0x1f3fb, 0x1f3ff]],
    joiners: [[0x200b, 0x200d], [0x2060, 0x2060], [0xad, 0xad]],
    control: [[0x01, 0x08], [0x0e, 0x1f], [0x7f, 0x7f]],
}

// Without U+0085 and U+FEFF: JavaScript's \s takes the second for white space, not the first, unlike the tokenizers that it stands for.
const SPACES = [" ", " ", " ", "  ", "   ", "        ", "\t", "\t\t", "\n", "\n\n", "\r\n", "\r", " \n", "\n ", "\u00a0", "\u3000", "\u2003", "\u2028", "\u000b", "\u000c"]
const CONTRACTIONS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'T", "'RE", "'Ve", "'M", "'lL", "'D", "\u2019s", "'x", "''s", "'\u017f", "'", "s'"]
const ENDS = [".", "...", "!?", "\u3002", "/", "//", "/\n", ".\n", ";\n\n", "))\n", "}\r\n", ");/", "-->", "=>", "::", "\\n", "{{", "}}", "$$", "~~~", "```\n", "#!"]

const OF = Object.values(SCRIPTS)

function letter(rand, ranges) {
    const [first, last] = ranges[rand(ranges.length)]
    return String.fromCodePoint(first + rand(last - first + 1))
}

function word(rand) {
    const ranges = rand(3) ? OF[rand(OF.length)] : SCRIPTS.latin
    let s = ""
    for (let n = 1 + rand(rand(8) ? 7 : 24); n > 0; n--) {
        s += letter(rand, rand(40) ? ranges : OF[rand(OF.length)])
        if (!rand(30)) s += letter(rand, SCRIPTS.marks)
    }
    return rand(4) ? s : s.toLowerCase()
}

function line(rand) {
    let s = rand(6) ? "" : SPACES[rand(SPACES.length)]
    for (let n = 1 + rand(12); n > 0; n--) {
        s += word(rand)
        if (!rand(6)) s += CONTRACTIONS[rand(CONTRACTIONS.length)]
        if (!rand(5)) s += ENDS[rand(ENDS.length)]
        if (rand(8)) s += rand(3) ? " " : SPACES[rand(SPACES.length)]
    }
    return s
}

// Each file's text, cut into pieces of one to four lines with their line ends.
function* pieces_of(rand, text) {
    const lines = text.split(/(?<=\n)/)
    for (let i = 0; i < lines.length; ) {
        const n = 1 + rand(4)
        yield lines.slice(i, i + n).join("")
        i += n
    }
}

function* sources(dir) {
    for (const entry of readdirSync(dir, { withFileTypes: true }).sort((a, b) => (a.name < b.name ? -1 : 1))) {
        if (entry.name.startsWith(".") || entry.name.startsWith("build")) continue
        if (entry.isDirectory()) yield* sources(join(dir, entry.name))
        else if (/\.(c|h|md|txt|sh|py|mjs|html|css|json|yaml|conf|service)$/.test(entry.name)) yield join(dir, entry.name)
    }
}

// Returns `n` texts of synthetic lines and `n_code` pieces of the files below the folders.
export function texts(n, n_code, folders) {
    const rand = random(20)
    const all = ["", " ", "\n", "  \n ", "'s", "1", "1234567", "a".repeat(300), " ".repeat(200), "\n".repeat(100), "=".repeat(150), "1".repeat(100)]
    while (all.length < n) all.push(line(rand))
    const code = folders.flatMap(folder => [...sources(folder)]).flatMap(path => [...pieces_of(rand, readFileSync(path, "utf8"))])
    for (let i = 0; i < n_code; i++) all.push(code[Math.floor((i * code.length) / n_code)])
    return all.filter(s => !/[\u0000\u0085\ufeff]/.test(s))
}
