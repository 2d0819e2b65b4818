# Builds the tree with the address and undefined-behaviour sanitizers in a folder of its own and runs its unit tests and fuzzers.
#   cmake -DSOURCE=... -DBINARY=... -P sanitize.cmake
function(step what)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE out ERROR_VARIABLE out)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${what} failed:\n${out}")
  endif()
endfunction()

set(ENV{PLAN_COUNT} 40) # random plans: ten times slower here
set(ENV{UBSAN_OPTIONS} halt_on_error=1:print_stacktrace=1)
step("configuring" ${CMAKE_COMMAND} -S ${SOURCE} -B ${BINARY} -G Ninja -DCMAKE_BUILD_TYPE=Debug -DPLAN_SANITIZE=ON -DPLAN_VERIFY=ON)
step("building" ${CMAKE_COMMAND} --build ${BINARY} --parallel 2)
step("testing" ${CMAKE_CTEST_COMMAND} --test-dir ${BINARY} --output-on-failure --no-tests=error --parallel 2 -R "^test_|^fuzz_|^mutate_examples$"
  -E "^test_codegen") # minutes each, and LLVM is not built with sanitizers
message(STATUS "unit tests and fuzzers are clean")
