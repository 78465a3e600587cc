# Ptx.cmake - every .c below kernels/ to PTX, with the flags without which that goes wrong, and PTX into programs.
#
# Wanted: clang >= 18 with the NVPTX target (Debian: clang-19). Without it everything else is built and the cuda
# backend has no kernels. The traps, all of them met:
#   -fconvergent-functions   else clang copies a barrier into both arms of a branch
#   --cuda-feature=+ptxNN    else clang 19 stamps .version 8.5, which drivers before R555 refuse: 7.8 for sm_80 and
#                            8.0 for sm_90 are read by every driver since R525
#   sm_80 and sm_90          never an 'a' target: ptxas and the driver refuse those for any other chip
#   .maxntid, .minnctapersm  cannot be said in C on this target: simt.h leaves a comment, PatchPtx.cmake writes them
set(HEARTH_PTX_GENERATIONS 80 90)
set(HEARTH_PTX_VERSION_80 78)
set(HEARTH_PTX_VERSION_90 80)

function(hearth_find_ptx_clang)
    if(HEARTH_PTX_CLANG)
        return()
    endif()
    foreach(name clang-19 clang-20 clang-21 clang-18 clang)
        find_program(found_${name} ${name} NO_CACHE)
        if(NOT found_${name})
            continue()
        endif()
        execute_process(COMMAND ${found_${name}} --print-targets OUTPUT_VARIABLE targets ERROR_QUIET)
        execute_process(COMMAND ${found_${name}} -dumpversion OUTPUT_VARIABLE version ERROR_QUIET
            OUTPUT_STRIP_TRAILING_WHITESPACE)
        if(targets MATCHES "nvptx64" AND version VERSION_GREATER_EQUAL 18)
            set(HEARTH_PTX_CLANG ${found_${name}} CACHE FILEPATH "clang >= 18 with the NVPTX target")
            set(HEARTH_PTX_CLANG_VERSION ${version} CACHE STRING "its version" FORCE)
            return()
        endif()
    endforeach()
endfunction()

hearth_find_ptx_clang()
string(REGEX MATCH "^[0-9]+" HEARTH_PTX_CLANG_MAJOR "${HEARTH_PTX_CLANG_VERSION}")
if(HEARTH_PTX_CLANG)
    message(STATUS "GPU kernels: ${HEARTH_PTX_CLANG} ${HEARTH_PTX_CLANG_VERSION}")
else()
    message(STATUS "GPU kernels: not built; no clang >= 18 with the NVPTX target was found (Debian: clang-19)")
endif()

# Compiles each source for each generation; the PTX files' names are put into ${out_var} (empty without clang).
# Further arguments after FLAGS go to the compiler.
function(hearth_ptx out_var directory)
    cmake_parse_arguments(ARG "" "" "FLAGS" ${ARGN})
    set(files)
    if(HEARTH_PTX_CLANG)
        file(MAKE_DIRECTORY ${directory})
        foreach(source ${ARG_UNPARSED_ARGUMENTS})
            get_filename_component(name ${source} NAME_WE)
            foreach(sm ${HEARTH_PTX_GENERATIONS})
                set(ptx ${directory}/${name}_sm${sm}.ptx)
                add_custom_command(OUTPUT ${ptx}
                    COMMAND ${CMAKE_C_COMPILER_LAUNCHER} ${HEARTH_PTX_CLANG} -x c -std=c17 --target=nvptx64-nvidia-cuda
                        -march=sm_${sm} --cuda-feature=+ptx${HEARTH_PTX_VERSION_${sm}} -DSIMT_SM=${sm} -O3 -ffreestanding
                        -fconvergent-functions -ffp-contract=off -fno-math-errno -Wall -Wextra -Werror -Wshadow
                        -Wstrict-prototypes -Wvla -I${CMAKE_SOURCE_DIR}/kernels ${ARG_FLAGS}
                        -MD -MF ${ptx}.d -MT ${ptx} -S ${source} -o ${ptx}.raw
                    COMMAND ${CMAKE_COMMAND} -DIN=${ptx}.raw -DOUT=${ptx} -P ${CMAKE_SOURCE_DIR}/cmake/PatchPtx.cmake
                    DEPENDS ${source} ${CMAKE_SOURCE_DIR}/cmake/PatchPtx.cmake
                    DEPFILE ${ptx}.d
                    COMMENT "PTX ${name} sm_${sm}"
                    VERBATIM)
                list(APPEND files ${ptx})
            endforeach()
        endforeach()
        file(GLOB stale ${directory}/*_sm*.ptx) # of sources that are gone: the PTX gate takes all that lies there
        list(REMOVE_ITEM stale ${files})
        if(stale)
            file(REMOVE ${stale})
        endif()
    endif()
    set(${out_var} ${files} PARENT_SCOPE)
endfunction()

# Machine code for the compute capabilities of HEARTH_CUBINS, where ptxas is installed and knows them. A tree with tests has none
# unless it is asked: they take two minutes of a core, and no test has a device.
set(HEARTH_CUBINS "auto" CACHE STRING "Compute capabilities to assemble the kernels for with ptxas: auto (all where it is installed, in a build without tests), all (80;86;89;90;100;120), a list, or empty")
find_program(HEARTH_PTXAS ptxas PATHS /usr/local/cuda/bin /opt/cuda/bin)
function(hearth_cubin_generations out_var)
    set(wanted ${HEARTH_CUBINS})
    set(known)
    if(wanted STREQUAL "auto")
        set(wanted)
        if(HEARTH_PTXAS AND NOT HEARTH_TESTS)
            set(wanted all)
        endif()
    endif()
    if(wanted STREQUAL "all")
        set(wanted 80 86 89 90 100 120)
    endif()
    if(wanted AND HEARTH_PTXAS)
        execute_process(COMMAND ${HEARTH_PTXAS} --help OUTPUT_VARIABLE help COMMAND_ERROR_IS_FATAL ANY)
        foreach(sm ${wanted})
            if(NOT help MATCHES "sm_${sm}[^0-9]")
                message(STATUS "GPU kernels: ${HEARTH_PTXAS} knows no sm_${sm}, which gets PTX alone")
            else()
                list(APPEND known ${sm})
            endif()
        endforeach()
    elseif(wanted)
        message(STATUS "GPU kernels: PTX alone; HEARTH_CUBINS needs ptxas, which is not installed")
    endif()
    set(${out_var} ${known} PARENT_SCOPE)
endfunction()

# Assembles PTX files NAME_smNN.ptx for the generations; the names of the cubins, NAME_smNN.cubin, are put into ${out_var}.
# A capability takes the newest PTX that is not later than it, as the driver does.
function(hearth_cubins out_var directory generations)
    set(files)
    file(MAKE_DIRECTORY ${directory})
    foreach(ptx ${ARGN})
        string(REGEX MATCH "([^/]*)_sm([0-9]+)\\.ptx$" ignored ${ptx})
        set(name ${CMAKE_MATCH_1})
        set(from ${CMAKE_MATCH_2})
        foreach(sm ${generations})
            set(newest 0)
            foreach(generation ${HEARTH_PTX_GENERATIONS})
                if(generation LESS_EQUAL sm)
                    set(newest ${generation})
                endif()
            endforeach()
            if(from EQUAL newest)
                set(cubin ${directory}/${name}_sm${sm}.cubin)
                add_custom_command(OUTPUT ${cubin}
                    COMMAND ${HEARTH_PTXAS} -arch=sm_${sm} ${ptx} -o ${cubin}
                    DEPENDS ${ptx} ${HEARTH_PTXAS} COMMENT "cubin ${name} sm_${sm}" VERBATIM)
                list(APPEND files ${cubin})
            endif()
        endforeach()
    endforeach()
    set(${out_var} ${files} PARENT_SCOPE)
endfunction()

# The PTX of the sources, and the emulated drivers cuda-simt and cuda-simt-fast, as the build tree ${from} makes them: they are the
# same whatever the rest is built with. Every build of this tree first brings them up to date there.
function(hearth_import_kernels out_var from)
    set(${out_var} PARENT_SCOPE)
    if(NOT HEARTH_PTX_CLANG)
        return()
    endif()
    hearth_configure_tree(${from})
    set(files)
    foreach(source ${ARGN})
        get_filename_component(name ${source} NAME_WE)
        foreach(sm ${HEARTH_PTX_GENERATIONS})
            list(APPEND files ${from}/ptx/${name}_sm${sm}.ptx)
        endforeach()
    endforeach()
    set(drivers ${from}/lib/libcuda-simt.so ${from}/lib/libcuda-simt-fast.so)
    add_custom_target(hearth_kernels COMMAND ${CMAKE_COMMAND} --build ${from} --target hearth_kernels
        BYPRODUCTS ${files} ${drivers} USES_TERMINAL VERBATIM)
    foreach(driver ${drivers})
        get_filename_component(name ${driver} NAME_WE)
        string(REPLACE "libcuda" "cuda" name ${name})
        add_library(${name} MODULE IMPORTED GLOBAL)
        set_target_properties(${name} PROPERTIES IMPORTED_LOCATION ${driver})
        add_dependencies(${name} hearth_kernels)
    endforeach()
    set(${out_var} ${files} PARENT_SCOPE)
endfunction()

# Adds a table `const struct ptx_image <symbol>[]` of the PTX files and cubins (possibly none) to the target; lib/cuda/ptx_image.h.
function(hearth_embed_ptx target symbol)
    find_program(HEARTH_GZIP gzip REQUIRED)
    set(c ${CMAKE_CURRENT_BINARY_DIR}/${symbol}.c)
    string(REPLACE ";" "|" files "${ARGN}")
    add_custom_command(OUTPUT ${c}
        COMMAND ${CMAKE_COMMAND} "-DFILES=${files}" -DSYMBOL=${symbol} -DOUT=${c} -DGZIP=${HEARTH_GZIP}
            -P ${CMAKE_SOURCE_DIR}/cmake/EmbedPtx.cmake
        DEPENDS ${ARGN} ${CMAKE_SOURCE_DIR}/cmake/EmbedPtx.cmake
        COMMENT "embedding ${symbol}"
        VERBATIM)
    set_source_files_properties(${c} PROPERTIES OBJECT_DEPENDS "${ARGN}")
    target_sources(${target} PRIVATE ${c})
    target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR}/lib)
endfunction()
