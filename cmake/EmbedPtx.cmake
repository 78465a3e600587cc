# EmbedPtx.cmake - a C table SYMBOL in OUT of PTX files and cubins (FILES, separated by |), which the assembler puts in as they are: written as
# numbers they took seconds. They are aligned: a cubin is an ELF file, which a driver may read in place.
string(REPLACE "|" ";" files "${FILES}")
set(arrays "")
set(rows "")
foreach(file ${files})
    get_filename_component(base ${file} NAME_WE)
    get_filename_component(kind ${file} LAST_EXT)
    string(REGEX MATCH "^(.*)_sm([0-9]+)$" ignored ${base})
    set(name ${CMAKE_MATCH_1})
    set(sm ${CMAKE_MATCH_2})
    set(is_cubin 0)
    if(kind STREQUAL ".cubin")
        set(is_cubin 1)
        string(APPEND base _cubin)
    endif()
    file(SIZE ${file} size)
    string(APPEND arrays "__asm__(\".pushsection .rodata\\n.balign 64\\n${base}: .incbin \\\"${file}\\\"\\n.byte 0\\n.popsection\");\n"
        "extern const char ${base}[];\n")
    string(APPEND rows "    {\"${name}\", ${sm}, ${base}, ${size}, ${is_cubin}},\n")
endforeach()
file(WRITE ${OUT} "#include \"cuda/ptx_image.h\"\n\n${arrays}\nextern const struct ptx_image ${SYMBOL}[];\n"
    "const struct ptx_image ${SYMBOL}[] = {\n${rows}    {0, 0, 0, 0, 0},\n};\n")
