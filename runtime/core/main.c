/* `main` of every compiled program. Apart from the rest of the runtime, so that tests can link that without a program.
 */
#include "core/run.h"

int main(int argc, char **argv) { return prt_main(argc, argv, plan_program, plan_entries); }
