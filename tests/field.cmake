# Cases from the field (docs/field-cases.md): what `plc check` decides, what runs decide, and layouts of odd sizes.
set(field ${CMAKE_CURRENT_SOURCE_DIR}/field)
add_test(NAME field_static COMMAND ${Python3_EXECUTABLE} ${field}/run.py $<TARGET_FILE:plc>)
set_tests_properties(field_static PROPERTIES LABELS fast TIMEOUT 600)
add_test(NAME field_runs COMMAND ${Python3_EXECUTABLE} ${field}/test_runs.py $<TARGET_FILE:plc>)
foreach(layouts layouts experts)
  add_test(NAME field_${layouts} COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/ranks/equality.py $<TARGET_FILE:plc> ${field}/${layouts}.plan)
endforeach()
set_tests_properties(field_runs field_layouts field_experts PROPERTIES LABELS full TIMEOUT 1800)
