# A build tree takes the kernels of another one, HEARTH_KERNELS_FROM, instead of building them again.

# Configures the tree `from`, with its tests, unless it is.
function(hearth_configure_tree from)
    set(cache)
    if(EXISTS ${from}/CMakeCache.txt)
        file(STRINGS ${from}/CMakeCache.txt cache REGEX "^HEARTH_TESTS:BOOL=ON")
    endif()
    if(NOT cache)
        execute_process(COMMAND ${CMAKE_COMMAND} -S ${CMAKE_SOURCE_DIR} -B ${from} -G ${CMAKE_GENERATOR} -DHEARTH_TESTS=ON
            COMMAND_ERROR_IS_FATAL ANY)
    endif()
endfunction()

# Gives the target the objects that the tree `from` has of these sources, from its target hearth_products, and keeps them up to date.
function(hearth_import_objects target from)
    hearth_configure_tree(${from})
    set(objects)
    foreach(source ${ARGN})
        file(RELATIVE_PATH name ${CMAKE_SOURCE_DIR} ${source})
        list(APPEND objects ${from}/CMakeFiles/hearth_products.dir/${name}.o)
    endforeach()
    add_custom_target(hearth_products COMMAND ${CMAKE_COMMAND} --build ${from} --target hearth_products
        BYPRODUCTS ${objects} USES_TERMINAL VERBATIM)
    set_source_files_properties(${objects} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
    target_sources(${target} PRIVATE ${objects})
    add_dependencies(${target} hearth_products)
endfunction()
