# EmbedText.cmake - cmake -DIN=file -DSYMBOL=name -DOUT=file.c -P this: the file as a C array of bytes and its length.
file(READ ${IN} hex HEX)
string(LENGTH "${hex}" n)
math(EXPR n "${n} / 2")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
string(REGEX REPLACE "(................................................................................)" "\\1\n" bytes "${bytes}")
file(WRITE ${OUT} "#include <stddef.h>\nextern const char ${SYMBOL}[];\nextern const size_t ${SYMBOL}_size;\n"
    "const char ${SYMBOL}[] = {\n${bytes}0};\nconst size_t ${SYMBOL}_size = ${n};\n")
