#!/bin/sh
# links.sh - what the *.md files point to exists: each relative link names a file, folder or heading (GitHub's anchors) of this repository,
# and so does each word in backquotes that reads as a path: it ends in a slash or a known extension, or has a slash and an extension.
# Such a word may be short: `engine.c` is any file of that name, `fuzz/` any folder. `*`, NAME and ROOM stand for part of a
# name. And README.md keeps its length. Passed over: code blocks, absolute paths, URLs, what is built (build/), and places with a name in capitals (REPORT/report.md).
set -u
cd "$(dirname "$0")/../.."
export LC_ALL=C
found=$(git ls-files | awk '
    # ---- paths ----
    function folder(path) { return sub("/[^/]*$", "", path) ? path : "" }
    function join(dir, name,    n, parts, i, depth, out) { # ".." and "." taken out; "" where it leaves the repository
        n = split((dir == "" ? "" : dir "/") name, parts, "/")
        for (i = 1; i <= n; i++) {
            if (parts[i] == "" || parts[i] == ".") continue
            if (parts[i] != "..") out[++depth] = parts[i]
            else if (--depth < 0) return ""
        }
        name = depth ? out[1] : "."
        for (i = 2; i <= depth; i++) name = name "/" out[i]
        return name
    }
    function add_file(path,    dir) {
        files[path] = exists[path] = 1
        for (dir = folder(path); dir != "" && !(dir in exists); dir = folder(dir)) exists[dir] = folders[dir] = 1
    }
    function is_there(word, dir,    path, pattern) {
        if (join(dir, word) in exists || join("", word) in exists) return 1
        pattern = join("", word) # a link to the right folder may still be wrong; a word only has to name something
        gsub(/[.@+]/, "[&]", pattern)
        gsub(/\*|NAME|ROOM/, "[^/]*", pattern)
        pattern = "(^|/)" pattern "$"
        if (word ~ /\/$/) {
            for (path in folders) if (path ~ pattern) return 1
        } else
            for (path in files) if (path ~ pattern) return 1
        return 0
    }
    # ---- headings and text ----
    function anchor(title,    name) {
        gsub(/<[^>]*>|`|\*/, "", title)
        while (match(title, /\[[^]]*\]\([^)]*\)/)) {
            name = substr(title, RSTART + 1, RLENGTH - 1)
            sub(/\]\(.*/, "", name)
            title = substr(title, 1, RSTART - 1) name substr(title, RSTART + RLENGTH)
        }
        title = tolower(title)
        gsub(/\342\200[\200-\277]|\342\206[\200-\277]|\302[\240-\277]/, "", title) # dashes, quotes, dots, arrows
        gsub(/[\001-\037!-,.\/:-@[-^`{-~]/, "", title)
        gsub(/ /, "-", title)
        return title
    }
    function add_anchor(file, name) {
        if (n_of[file, name]++) name = name "-" n_of[file, name] - 1
        anchors[file, name] = 1
    }
    function add_link(target) { links[++n_links] = target; link_at[n_links] = FILENAME ":" line; link_in[n_links] = FILENAME }
    function add_words(span,    n, list, i) {
        n = split(span, list, " ")
        for (i = 1; i <= n; i++) {
            sub(/[,;:.)]+$/, "", list[i])
            if (list[i] !~ /^[A-Za-z0-9_.@*-][A-Za-z0-9_.@*\/-]*$/ || list[i] ~ /^build[a-z-]*\/|^[A-Z]+\//) continue
            if (list[i] ~ /[A-Za-z0-9_-]\/$/ || list[i] ~ /[A-Za-z0-9_*-]\.(c|h|sh|md|txt|mjs|json|yml|html|cmake|gguf|supp|dict|conf|cfg)$/ ||
                list[i] ~ /\/[^\/]*[A-Za-z0-9_*-]\.[A-Za-z0-9]+$/) {
                words[++n_words] = list[i]; word_at[n_words] = FILENAME ":" line; word_in[n_words] = FILENAME
            }
        }
    }
    function read_text(text,    at) {
        while (match(text, /`[^`]+`/)) {
            add_words(substr(text, RSTART + 1, RLENGTH - 2))
            text = substr(text, 1, RSTART - 1) substr(text, RSTART + RLENGTH)
        }
        if (text ~ /^ *\[[^]]*\]: */) { sub(/^ *\[[^]]*\]: */, "", text); sub(/ .*/, "", text); add_link(text); return }
        while (match(text, /\]\([^() ]*(\([^()]*\))?[^() ]*( "[^"]*")?\)|(src|href)="[^"]*"/)) {
            at = substr(text, RSTART, RLENGTH)
            text = substr(text, RSTART + RLENGTH)
            if (at ~ /^\]/) { at = substr(at, 3, length(at) - 3); sub(/ .*/, "", at) }
            else { sub(/^[a-z]*="/, "", at); sub(/"$/, "", at) }
            add_link(at)
        }
    }
    function end_text() { if (text != "") read_text(text); text = "" }

    FILENAME == "" || FILENAME == "-" { add_file($0); next }
    FNR == 1 { end_text(); fenced = 0 }
    /^ *(```|~~~)/ { end_text(); fenced = !fenced; next }
    fenced { next }
    /^(    |\t)/ && text == "" { next }
    /^##?#?#?#?#? / {
        end_text()
        title = $0
        sub(/^#+ +/, "", title); sub(/ *#*$/, "", title)
        add_anchor(FILENAME, anchor(title))
    }
    match($0, /(name|id)="[^"]*"/) { name = substr($0, RSTART, RLENGTH); gsub(/^[a-z]*="|"$/, "", name); add_anchor(FILENAME, name) }
    { # a span in backquotes may go on in the next line
        if (text == "") line = FNR
        text = text == "" ? $0 : text " " $0
        quotes = text
        if ($0 == "" || gsub(/`/, "", quotes) % 2 == 0) end_text()
    }
    END {
        end_text()
        for (i = 1; i <= n_links; i++) {
            target = links[i]
            if (target ~ /^[a-z]+:/) continue
            name = path = target
            sub(/#.*/, "", path)
            if (!sub(/^[^#]*#/, "", name)) name = ""
            file = path == "" ? link_in[i] : join(folder(link_in[i]), path)
            if (!(file in exists) && file != ".") print link_at[i] ": no file " target
            else if (name != "" && file ~ /\.md$/ && !((file, name) in anchors)) print link_at[i] ": no heading " target
        }
        for (i = 1; i <= n_words; i++)
            if (!is_there(words[i], folder(word_in[i]))) print word_at[i] ": `" words[i] "` is no file here"
    }' - $(git ls-files '*.md'))
[ -z "$found" ] || echo "$found"
# The first page stays one: what grows belongs on the pages that it names.
lines=$(wc -l <README.md)
columns=$(LC_ALL=C.UTF-8 wc -L <README.md)
[ "$lines" -le 130 ] && [ "$columns" -le 140 ] || {
    echo "README.md has $lines lines of up to $columns characters, of 130 and 140"
    exit 1
}
[ -z "$found" ]
