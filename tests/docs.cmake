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
