# Tests of compiled programs: each is a Python script (standard library alone) that gets the path of plc.
find_package(Python3 COMPONENTS Interpreter REQUIRED)
set(PLAN_RUN_TESTS reference equality)
foreach(name IN LISTS PLAN_RUN_TESTS)
  add_test(NAME run_${name} COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/run/test_${name}.py $<TARGET_FILE:plc>)
  set_tests_properties(run_${name} PROPERTIES LABELS full TIMEOUT 1800)
endforeach()
set_tests_properties(run_reference PROPERTIES LABELS fast)
