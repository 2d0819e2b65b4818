# Tests of structure, documents, editor grammars and mistakes. Included from tests/CMakeLists.txt.
find_package(Python3 REQUIRED COMPONENTS Interpreter)

function(plan_fuzzer name)
  add_executable(fuzz_${name} fuzz/${name}.c)
  target_include_directories(fuzz_${name} PRIVATE ${PROJECT_SOURCE_DIR}/compiler ${CMAKE_CURRENT_SOURCE_DIR}/fuzz ${CJSON_INCLUDE})
  target_link_libraries(fuzz_${name} PRIVATE plan_flags ${PLAN_COMPILER_LIBS} ${CJSON_LIBRARY} m)
endfunction()

# ---- one wrong token ----
plan_fuzzer(mutate)
file(GLOB examples RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/examples/*.plan)
add_test(NAME mutate_examples COMMAND fuzz_mutate ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/mutate-examples ${examples})
set_tests_properties(mutate_examples PROPERTIES LABELS fast TIMEOUT 600)
file(GLOB library RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/stdlib/*.plan ${PROJECT_SOURCE_DIR}/stdlib/models/*.plan)
add_test(NAME mutate_library COMMAND fuzz_mutate ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/mutate-library ${library})
set_tests_properties(mutate_library PROPERTIES LABELS full TIMEOUT 900)

# ---- the rules of the tree ----
set(structure ${CMAKE_CURRENT_SOURCE_DIR}/structure)
add_test(NAME structure COMMAND ${Python3_EXECUTABLE} ${structure}/check.py ${PROJECT_SOURCE_DIR} --plc $<TARGET_FILE:plc> --objects ${PROJECT_BINARY_DIR})
add_test(NAME structure_rules COMMAND ${Python3_EXECUTABLE} ${structure}/check.py ${PROJECT_SOURCE_DIR} --self-test)
add_test(NAME structure_format COMMAND ${Python3_EXECUTABLE} ${structure}/format.py ${PROJECT_SOURCE_DIR})
set_tests_properties(structure structure_rules structure_format PROPERTIES LABELS fast TIMEOUT 120)
set_tests_properties(structure_format PROPERTIES SKIP_RETURN_CODE 77)

# ---- editors ----
set(editors ${CMAKE_CURRENT_SOURCE_DIR}/editors)
add_test(NAME editors_textmate COMMAND ${Python3_EXECUTABLE} ${editors}/textmate.py ${PROJECT_SOURCE_DIR})
add_test(NAME editors_vim COMMAND ${Python3_EXECUTABLE} ${editors}/vim.py ${PROJECT_SOURCE_DIR} $<TARGET_FILE:plc>)
add_test(NAME editors_vscode COMMAND ${Python3_EXECUTABLE} ${editors}/vscode.py ${PROJECT_SOURCE_DIR})
set_tests_properties(editors_textmate editors_vim editors_vscode PROPERTIES LABELS fast TIMEOUT 300)

# ---- random texts; everything once more with the sanitizers ----
plan_fuzzer(texts)
set(PLAN_FUZZ_SECONDS 30 CACHE STRING "how long the text fuzzer runs in the tests")
add_test(NAME fuzz_texts COMMAND fuzz_texts ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/fuzz-text --seconds ${PLAN_FUZZ_SECONDS})
set_tests_properties(fuzz_texts PROPERTIES LABELS fast TIMEOUT 300)
plan_fuzzer(graphs)
add_test(NAME fuzz_graphs COMMAND fuzz_graphs ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/fuzz-graph --seconds 10)
set_tests_properties(fuzz_graphs PROPERTIES LABELS fast TIMEOUT 300)
if(NOT PLAN_SANITIZE)
  add_test(NAME sanitize_fast COMMAND ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR} -DBINARY=${PROJECT_BINARY_DIR}/sanitize -DCMAKE_CTEST_COMMAND=${CMAKE_CTEST_COMMAND}
    -P ${CMAKE_CURRENT_SOURCE_DIR}/fuzz/sanitize.cmake)
  set_tests_properties(sanitize_fast PROPERTIES LABELS full TIMEOUT 3600 RUN_SERIAL ON)
endif()

# ---- documents ----
set(docs ${CMAKE_CURRENT_SOURCE_DIR}/docs)
add_test(NAME docs_errors COMMAND ${Python3_EXECUTABLE} ${docs}/errors.py ${PROJECT_SOURCE_DIR} $<TARGET_FILE:plc>)
add_test(NAME docs_commands COMMAND ${Python3_EXECUTABLE} ${docs}/commands.py ${PROJECT_SOURCE_DIR} $<TARGET_FILE:plc>)
set_tests_properties(docs_errors PROPERTIES LABELS fast TIMEOUT 900)
set_tests_properties(docs_commands PROPERTIES LABELS full TIMEOUT 900)

# ---- examples and library are in canonical form ----
file(GLOB canonical CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/examples/*.plan ${PROJECT_SOURCE_DIR}/examples/large/*.plan ${PROJECT_SOURCE_DIR}/stdlib/*.plan
  ${PROJECT_SOURCE_DIR}/stdlib/models/*.plan)
add_test(NAME canonical_form COMMAND plc fmt --check ${canonical})
set_tests_properties(canonical_form PROPERTIES LABELS fast TIMEOUT 60)
