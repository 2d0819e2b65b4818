# Kinds of parallelism alone, in pairs and in larger combinations, by real processes: some of them in the ordinary run
# (label full), all of them in `sh tests/run.sh all` (label all). And 2,000 random plans on simulated ranks.
set(pairs ${CMAKE_CURRENT_SOURCE_DIR}/ranks/pairs.py)
foreach(part gpt:4/28 llama:11/30 mixtral:6/35 tasks:9/34)
  string(REPLACE ":" ";" part ${part})
  list(GET part 0 model)
  list(GET part 1 some)
  add_test(NAME pairs_${model} COMMAND ${Python3_EXECUTABLE} ${pairs} $<TARGET_FILE:plc> ${model} --part ${some})
  set_tests_properties(pairs_${model} PROPERTIES LABELS full TIMEOUT 1800)
  add_test(NAME all_pairs_${model} COMMAND ${Python3_EXECUTABLE} ${pairs} $<TARGET_FILE:plc> ${model})
  set_tests_properties(all_pairs_${model} PROPERTIES LABELS all TIMEOUT 14400)
endforeach()
add_test(NAME random_plans_2000 COMMAND test_random_plans)
set_tests_properties(random_plans_2000 PROPERTIES LABELS full TIMEOUT 3600 ENVIRONMENT PLAN_COUNT=2000)
